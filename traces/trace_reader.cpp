#include "traces/trace_reader.h"

#include <algorithm>

#include "sim/base/error.h"
#include "traces/json_scanner.h"
#include "traces/raw_event.h"
#include "traces/trace_file.h"
#include "traces/trace_finish.h"

namespace dbo {
namespace {

constexpr std::int64_t kMostDurNs = std::int64_t{7} * 24 * 3600 * 1'000'000'000;  // longer is a broken clock
constexpr std::size_t kMaxCounterPoints = 1'000'000;

std::string trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return std::string(text);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// What an event is, by its category.
enum class Class : std::uint8_t { Kernel, Memcpy, Memset, Call, Sync, Range, GpuRange, Trace, Unknown };

Class class_of(std::string_view category) {
  if (category == "kernel" || category == "concurrent_kernel") return Class::Kernel;
  if (category == "gpu_memcpy" || category == "memcpy") return Class::Memcpy;
  if (category == "gpu_memset" || category == "memset") return Class::Memset;
  if (category == "cuda_runtime" || category == "cuda_driver" || category == "runtime" || category == "hip_runtime")
    return Class::Call;
  if (category == "cuda_sync") return Class::Sync;
  if (category == "user_annotation") return Class::Range;
  if (category == "gpu_user_annotation") return Class::GpuRange;
  if (category == "trace") return Class::Trace;
  return Class::Unknown;
}

/// Calls that launch GPU work, order streams or block the host; queries and attribute calls say nothing of order.
bool is_kept_call(std::string_view name) {
  return contains(name, "Launch") || contains(name, "Memcpy") || contains(name, "Memset") ||
         contains(name, "StreamWaitEvent") || contains(name, "EventRecord") || contains(name, "Synchronize");
}

class Reader {
 public:
  Reader(JsonScanner& scanner, std::string file, const ReadOptions& options) : scanner_(scanner), options_(options) {
    trace_.file = std::move(file);
  }

  RawTrace run() {
    try {
      read_top();
    } catch (const ScanError& error) {
      if (trace_.events == 0) throw InputError(trace_.file, "", error.what());
      if (error.truncated())
        cut_here(error.offset());
      else
        skip("text behind the events that is no JSON", error.offset());
    }
    if (trace_.truncated && trace_.events == 0)
      throw InputError(trace_.file, "",
                       "byte " + std::to_string(trace_.truncated_at) + ": the file ends before its first event");
    trace_.bytes = scanner_.offset();
    finish();
    return std::move(trace_);
  }

 private:
  void skip(const std::string& reason, std::uint64_t offset) {
    SkipCount& count = trace_.skipped[reason];
    if (count.count++ == 0) count.first_offset = offset;
  }
  void skip(const std::string& reason) { skip(reason, event_.offset); }

  void cut_here(std::uint64_t offset) {
    trace_.truncated = true;
    trace_.truncated_at = offset;
  }

  void read_top() {
    if (scanner_.peek() == '\xEF') scanner_.skip_byte_order_mark();
    const char first = scanner_.peek();
    if (first == '[') return read_events();
    if (first == 0) scanner_.fail("no trace: the file is empty");
    if (first != '{') scanner_.fail("no Chrome trace: expected '{' or '['" + hint(first));
    bool any = false;
    scanner_.object([&](std::string_view key) {
      if (key == "traceEvents") {
        any = true;
        read_events();
      } else if (key == "metadata") {
        read_json(trace_.metadata, "metadata");
      } else if (key == "distributedInfo") {
        read_json(trace_.distributed, "distributedInfo");
      } else if (key == "deviceProperties") {
        read_json(trace_.devices, "deviceProperties");
      } else if (key == "displayTimeUnit" && scanner_.peek() == '"') {
        trace_.time_unit = scanner_.string();
      } else if (key == "traceName" && scanner_.peek() == '"') {
        trace_.trace_name = scanner_.string();
      } else if (key == "baseTimeNanoseconds" && scanner_.peek() != '{' && scanner_.peek() != '[') {
        bool quoted = false;
        const std::int64_t base = whole_number(scanner_.string_or_scalar(quoted));
        if (base != RawEvent::kAbsent) trace_.epoch_ns = base;
      } else {
        scanner_.skip_value();
      }
    });
    if (!any) throw InputError(trace_.file, "", "no traceEvents: this is JSON, but no Chrome trace");
    if (scanner_.peek() != 0) skip("text behind the trace", scanner_.offset());
  }

  static std::string hint(char first) {
    if (static_cast<unsigned char>(first) < 0x20) return " (a Perfetto protobuf? export it as JSON)";
    if (first == 'P') return " (a ZIP archive? unpack it first)";
    if (first == 'S') return " (an SQLite database of Nsight Systems? export it as JSON)";
    return "";
  }

  void read_json(Json& to, const char* key) {
    const std::uint64_t offset = scanner_.offset();
    try {
      to = parse_json(scanner_.raw_value(), key);
    } catch (const InputError&) {
      skip(std::string("unreadable ") + key, offset);
    }
  }

  void read_events() {
    scanner_.expect('[');
    while (true) {
      const char first = scanner_.peek();
      const std::uint64_t offset = scanner_.offset();
      if (first == 0) return cut_here(offset);
      if (first == ']') {
        scanner_.consume(']');
        return;
      }
      if (first == ',') {
        scanner_.consume(',');
        continue;
      }
      try {
        read_element(first, offset);
        const char next = scanner_.peek();
        if (next != ',' && next != ']' && next != '{' && next != 0) scanner_.fail("expected ',' or ']'");
      } catch (const ScanError& error) {
        if (error.truncated()) return cut_here(error.offset());
        skip("event that is no JSON", error.offset());
        if (!scanner_.resync()) return cut_here(scanner_.offset());
      }
    }
  }

  void read_element(char first, std::uint64_t offset) {
    if (first != '{') {
      scanner_.skip_value();
      return skip("element that is no event", offset);
    }
    event_.read(scanner_);
    ++trace_.events;
    handle();
  }

  void handle() {
    if (event_.empty) return skip("empty event");
    switch (event_.phase.empty() ? '\0' : event_.phase.front()) {
      case 'X':
        return handle_slice(event_.has_dur);
      case 'B':
        return open_slice();
      case 'E':
        return close_slice();
      case 'M':
        return handle_names();
      case 's':
      case 't':
      case 'f':
        return handle_arrow();
      case 'C':
        return handle_counter();
      case 'i':
      case 'I':
      case 'R':
        ++trace_.host_events;
        return;
      case '\0':
        return skip("event without a phase");
      default:
        return skip("event of phase " + event_.phase.substr(0, 1));
    }
  }

  std::uint32_t row() {
    if (last_row_ != UINT32_MAX && trace_.rows[last_row_].pid == event_.pid && trace_.rows[last_row_].tid == event_.tid)
      return last_row_;
    const auto [at, fresh] =
        row_ids_.emplace(event_.pid + '\x1f' + event_.tid, static_cast<std::uint32_t>(trace_.rows.size()));
    if (fresh) {
      RawRow fresh_row;
      fresh_row.pid = event_.pid;
      fresh_row.tid = event_.tid;
      trace_.rows.push_back(std::move(fresh_row));
    }
    return last_row_ = at->second;
  }

  bool sound_time() {
    if (event_.bad_time || !event_.has_ts) {
      skip(event_.bad_time ? "time that is no number" : "event without ts");
      return false;
    }
    return true;
  }

  void handle_slice(bool has_dur) {
    if (!sound_time()) return;
    const Class cls = class_of(lower_case(event_.category));
    if (cls == Class::Trace) return skip("slice of the profiler itself");
    if (!has_dur) return skip("slice without dur");
    if (event_.dur_ns < 0) return skip("slice of negative length");
    if (event_.dur_ns > kMostDurNs) return skip("slice longer than seven days");
    if (!event_.op.empty() && event_.rank != RawEvent::kAbsent) return add_op();
    switch (cls) {
      case Class::Kernel:
        return add_gpu(RawKind::Kernel);
      case Class::Memcpy:
        return add_gpu(RawKind::Memcpy);
      case Class::Memset:
        return add_gpu(RawKind::Memset);
      case Class::Call:
        return add_call();
      case Class::Sync:
        return add_sync();
      case Class::Range:
      case Class::GpuRange:
        trace_.ranges.push_back(
            {event_.ts_ns, event_.dur_ns, trace_.names.add(event_.name), row(), cls == Class::GpuRange});
        return;
      case Class::Trace:
      case Class::Unknown:
        break;
    }
    if (event_.stream >= 0 && event_.stream != RawEvent::kAbsent) return add_gpu(gpu_kind_of_name(event_.name));
    add_generic();
  }

  RawSlice slice(RawKind kind) {
    const std::string_view name = event_.name.empty() ? std::string_view("(no name)") : std::string_view(event_.name);
    return {event_.ts_ns,           event_.dur_ns, event_.correlation == RawEvent::kAbsent ? -1 : event_.correlation,
            trace_.names.add(name), row(),         kind};
  }

  void add_gpu(RawKind kind) {
    if (!any_gpu_) {  // only a trace without GPU slices is read as rows of anything
      trace_.host_events += static_cast<std::int64_t>(trace_.slices.size());
      trace_.slices.clear();
      any_gpu_ = true;
    }
    trace_.slices.push_back(slice(kind));
    RawRow& place = trace_.rows[trace_.slices.back().row];
    place.gpu = true;
    if (event_.stream != RawEvent::kAbsent) place.stream = event_.stream;
    if (event_.device != RawEvent::kAbsent) place.device = event_.device;
  }

  void add_generic() {
    if (any_gpu_) {
      ++trace_.host_events;
    } else if (trace_.slices.size() >= options_.max_generic) {
      skip("slice beyond the limit for traces without GPU slices");
    } else {
      trace_.slices.push_back(slice(RawKind::Generic));
    }
  }

  void add_call() {
    if (!is_kept_call(event_.name)) {
      ++trace_.host_events;
      return;
    }
    trace_.calls.push_back({event_.ts_ns, event_.dur_ns,
                            event_.correlation == RawEvent::kAbsent ? -1 : event_.correlation,
                            trace_.names.add(event_.name), row()});
  }

  void add_sync() {
    const auto known = [](std::int64_t value) { return value == RawEvent::kAbsent ? -1 : value; };
    trace_.syncs.push_back({event_.ts_ns, event_.dur_ns, known(event_.stream), known(event_.wait_on_stream),
                            known(event_.record_correlation), known(event_.correlation), known(event_.device)});
  }

  void add_op() {
    const auto kind = find_op_kind(event_.op);
    if (!kind) return skip("op slice of an unknown kind");
    const auto bounded = [](std::int64_t value, std::int64_t low, std::int64_t high, std::int64_t absent) {
      return value == RawEvent::kAbsent ? absent : std::clamp(value, low, high);
    };
    TraceOp op;
    op.rank = static_cast<std::int32_t>(bounded(event_.rank, 0, INT32_MAX - 1, 0));
    op.layer = static_cast<std::int32_t>(bounded(event_.layer, -1, INT32_MAX, -1));
    op.ubatch = static_cast<std::int16_t>(bounded(event_.ubatch, 0, INT16_MAX, 0));
    op.kind = *kind;
    const std::size_t lane = lane_id(event_.lane.empty() ? "unnamed" : event_.lane);
    if (lane > UINT8_MAX) return skip("op slice beyond 256 lanes");
    op.lane = static_cast<std::uint8_t>(lane);
    op.name = trace_.names.add(*kind == OpKind::Other ? std::string_view(event_.name) : std::string_view(event_.op));
    if (event_.plan_op != RawEvent::kAbsent)
      op.plan_op = static_cast<std::uint32_t>(bounded(event_.plan_op, 0, UINT32_MAX - 1, 0));
    op.start = at(event_.ts_ns);
    op.end = at(event_.ts_ns + event_.dur_ns);
    op.waited = Ns{bounded(event_.waited_ns, 0, kMostDurNs, 0)};
    op.tokens = bounded(event_.tokens, 0, INT64_MAX, 0);
    op.bytes = bounded(event_.bytes, 0, INT64_MAX, 0);
    op.sms = static_cast<std::int32_t>(bounded(event_.sms, 0, INT32_MAX, 0));
    if (event_.dur_ns == 0) return skip("op slice of zero length");
    trace_.ops.push_back(op);
    trace_.op_rows.push_back(row());
  }

  std::size_t lane_id(const std::string& lane) {
    for (std::size_t i = 0; i < trace_.lanes.size(); ++i)
      if (trace_.lanes[i] == lane) return i;
    if (trace_.lanes.size() <= UINT8_MAX) trace_.lanes.push_back(lane);
    return trace_.lanes.size() <= UINT8_MAX ? trace_.lanes.size() - 1 : UINT8_MAX + 1;
  }

  void open_slice() {
    if (!sound_time()) return;
    open_[row()].push_back(event_);
  }

  void close_slice() {
    if (!sound_time()) return;
    std::vector<RawEvent>& stack = open_[row()];
    if (stack.empty()) return skip("end without a beginning");
    const std::int64_t end = event_.ts_ns;
    event_ = std::move(stack.back());
    stack.pop_back();
    event_.dur_ns = end - event_.ts_ns;
    handle_slice(true);
  }

  void handle_names() {
    if (event_.name == "process_name") {
      process_names_[event_.pid] = trimmed(event_.arg_name);
    } else if (event_.name == "thread_name") {
      trace_.rows[row()].thread = trimmed(event_.arg_name);
    }
  }

  void handle_arrow() {
    const bool data = event_.category == "data";
    if ((!data && event_.category != "event") || event_.phase == "t" || !event_.has_ts) return;
    const std::int64_t id = whole_number(event_.id);
    if (id == RawEvent::kAbsent) return skip("arrow without a number");
    trace_.arrows.push_back({id, event_.ts_ns, row(), event_.phase == "s", data});
  }

  void handle_counter() {
    if (!event_.has_ts || event_.value == RawEvent::kAbsent || counter_points_ >= kMaxCounterPoints) return;
    const std::string key = event_.pid + '\x1f' + event_.name;
    const auto [at, fresh] = counter_ids_.emplace(key, trace_.counters.size());
    if (fresh) {
      trace_.counters.push_back({event_.name, 0, {}});
      counter_pids_.push_back(event_.pid);
    }
    trace_.counters[at->second].points.emplace_back(dbo::at(event_.ts_ns), event_.value);
    ++counter_points_;
  }

  void finish() {
    for (const auto& [row, stack] : open_)
      for (std::size_t i = 0; i < stack.size(); ++i) skip("beginning without an end", stack[i].offset);
    finish_raw_trace(trace_, process_names_, counter_pids_, any_gpu_);
  }

  JsonScanner& scanner_;
  const ReadOptions& options_;
  RawTrace trace_;
  RawEvent event_;
  bool any_gpu_ = false;
  std::uint32_t last_row_ = UINT32_MAX;
  std::unordered_map<std::string, std::uint32_t> row_ids_;  // looked up, never walked
  std::map<std::string, std::string> process_names_;
  std::map<std::uint32_t, std::vector<RawEvent>> open_;
  std::map<std::string, std::size_t> counter_ids_;
  std::vector<std::string> counter_pids_;
  std::size_t counter_points_ = 0;
};

}  // namespace

RawTrace read_raw_trace(const std::string& path, const ReadOptions& options) {
  TraceFile source(path, options.progress);
  JsonScanner scanner([&](char* to, std::size_t size) { return source.read(to, size); });
  return Reader(scanner, path, options).run();
}

RawTrace read_raw_trace_text(std::string_view text, const std::string& name, const ReadOptions& options) {
  JsonScanner scanner(text);
  return Reader(scanner, name, options).run();
}

}  // namespace dbo
