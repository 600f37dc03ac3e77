// Traces as a profiler writes them, for tests: kernels on streams with the host calls that launched them.
#pragma once

#include <string>

#include "sim/base/json.h"
#include "traces/trace_reader.h"

namespace dbo::testing {

class KinetoBuilder {
 public:
  /// Times in us. `called` -1: launched one us before it started. Returns the correlation.
  int kernel(const std::string& name, int stream, int start, int dur, int called = -1, int thread = 1) {
    const int correlation = next_++;
    add("{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":" + quoted(name) + ",\"pid\":0,\"tid\":" + std::to_string(stream) +
        ",\"ts\":" + std::to_string(start + kBase) + ",\"dur\":" + std::to_string(dur) +
        ",\"args\":{\"device\":0,\"stream\":" + std::to_string(stream) +
        ",\"correlation\":" + std::to_string(correlation) + "}}");
    call("cudaLaunchKernel", called < 0 ? start - 1 : called, 1, correlation, thread);
    return correlation;
  }
  void call(const std::string& name, int start, int dur, int correlation = -1, int thread = 1) {
    add("{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"" + name + "\",\"pid\":77,\"tid\":" +
        std::to_string(thread) + ",\"ts\":" + std::to_string(start + kBase) + ",\"dur\":" + std::to_string(dur) +
        ",\"args\":{\"correlation\":" + std::to_string(correlation < 0 ? next_++ : correlation) + "}}");
  }
  void range(const std::string& name, int start, int end, int thread = 1) {
    add("{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":" + quoted(name) +
        ",\"pid\":77,\"tid\":" + std::to_string(thread) + ",\"ts\":" + std::to_string(start + kBase) +
        ",\"dur\":" + std::to_string(end - start) + "}");
  }
  /// A "Stream Wait Event" of `stream` on an event recorded on `other` by the call `record`.
  void sync(int stream, int other, int record, int start) {
    add("{\"ph\":\"X\",\"cat\":\"cuda_sync\",\"name\":\"Stream Wait Event\",\"pid\":0,\"tid\":" +
        std::to_string(stream) + ",\"ts\":" + std::to_string(start + kBase) +
        ",\"dur\":1,\"args\":{\"stream\":" + std::to_string(stream) + ",\"wait_on_stream\":" + std::to_string(other) +
        ",\"wait_on_cuda_event_record_corr_id\":" + std::to_string(record) +
        ",\"correlation\":" + std::to_string(next_++) + "}}");
  }
  int correlation() { return next_++; }
  std::string text() const { return "{\"traceEvents\":[" + events_ + "]}"; }
  RawTrace read() const { return read_raw_trace_text(text(), "t.json"); }

 private:
  static constexpr long kBase = 1'700'000'000'000'000;

  static std::string quoted(const std::string& text) {
    std::string out;
    append_json_string(out, text);
    return out;
  }
  void add(const std::string& event) { events_ += (events_.empty() ? "" : ",\n") + event; }

  int next_ = 1;
  std::string events_;
};

}  // namespace dbo::testing
