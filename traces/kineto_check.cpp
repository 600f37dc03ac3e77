#include "traces/kineto_check.h"

#include <map>
#include <regex>
#include <set>

#include "traces/json_scanner.h"
#include "traces/strict_events.h"

namespace dbo {
namespace {

using namespace strict;

class Checker {
 public:
  Checker(std::string_view text, std::size_t limit) : text_(text), limit_(limit) {}

  std::vector<ChromeFinding> run() {
    try {
      read();
    } catch (const ScanError& error) {
      add(error.offset(), std::string("not strict JSON: ") + error.what());
      return std::move(findings_);
    }
    for (const char* key : {"schemaVersion", "deviceProperties", "distributedInfo", "traceEvents"})
      if (keys_.count(key) == 0) add(0, std::string("no ") + key);
    // HTA reads the rank with this pattern, line by line, and takes rank 0 for every file in which it finds none.
    const std::string head(text_.substr(0, text_.find("\"traceEvents\"")));
    if (!std::regex_search(head, std::regex("\"rank\":\\s+(\\d+)")))
      add(0, "distributedInfo needs \"rank\": N with a blank");
    check_rows();
    check_steps();
    check_kernels();
    return std::move(findings_);
  }

 private:
  struct Gpu {
    std::int64_t correlation = 0, start = 0;
    Place place;
    std::uint64_t offset = 0;
  };
  struct End {
    Place place;
    std::int64_t time = 0;
  };

  void add(std::uint64_t offset, std::string text) {
    if (findings_.size() < limit_) findings_.push_back({offset, std::move(text)});
  }

  void read() {
    JsonScanner scanner(text_, true);
    scanner.object([&](std::string_view key) {
      keys_.insert(std::string(key));
      if (key == "traceEvents")
        scanner.array([&] { check_event(read_event(scanner)); });
      else
        scanner.skip_value();
    });
    if (scanner.peek() != 0) scanner.fail("text behind the closing brace");
  }

  void check_event(const Event& event) {
    for (const std::string& key : event.duplicates) add(event.offset, "duplicate key \"" + key + "\"");
    const std::string phase = text_of(event.fields, "ph");
    if (find(event.fields, "name") == nullptr) add(event.offset, "an event without a name");
    if (phase == "X") return check_slice(event);
    if (phase == "M") return check_meta(event);
    if (phase == "s" || phase == "f") return check_arrow(event, phase == "s");
    add(event.offset, "phase \"" + phase + "\" (allowed: X, M, s, f)");
  }

  std::optional<Place> place_of(const Event& event) {
    const auto pid = whole(find(event.fields, "pid")), tid = whole(find(event.fields, "tid"));
    if (pid && tid && *pid >= 0 && *tid >= 0) return Place{*pid, *tid};
    add(event.offset, "pid and tid must be whole numbers from 0");
    return std::nullopt;
  }

  std::optional<std::int64_t> time_of(const Event& event, const char* key) {
    const auto time = exact_micros(find(event.fields, key));
    if (!time || *time > kMaxExact) {
      add(event.offset,
          std::string(key) + " must be microseconds with three decimals, is " + text_of(event.fields, key));
      return std::nullopt;
    }
    return time;
  }

  void check_slice(const Event& event) {
    const std::string category = text_of(event.fields, "cat");
    if (category.empty()) add(event.offset, "a slice without a category");
    const auto place = place_of(event);
    const auto start = time_of(event, "ts"), length = time_of(event, "dur");
    if (!place || !start || !length) return;
    if (*length == 0) add(event.offset, "a slice of no length");
    rows_[*place].push_back({*start, *start + *length, event.offset});
    if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
      check_gpu(event, *place, *start);
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      const auto correlation = whole(find(event.args, "correlation"));
      if (!correlation) {
        add(event.offset, "a host call without args.correlation");
      } else if (!calls_.emplace(*correlation, End{*place, *start}).second) {
        add(event.offset, "correlation " + std::to_string(*correlation) + " of two host calls");
      }
    } else if (category == "cuda_sync") {
      const auto record = whole(find(event.args, "wait_on_cuda_event_record_corr_id"));
      if (!record || !whole(find(event.args, "wait_on_stream")) || !whole(find(event.args, "stream")))
        add(event.offset, "a synchronisation without what it waits for");
      else
        records_.emplace_back(*record, event.offset);
    } else if (category == "user_annotation") {
      if (text_of(event.fields, "name").rfind("ProfilerStep#", 0) == 0)
        steps_.push_back({*start, *start + *length, event.offset});
    } else {
      add(event.offset, "category \"" + category + "\" is none that such tools know");
    }
  }

  void check_gpu(const Event& event, const Place& place, std::int64_t start) {
    const auto device = whole(find(event.args, "device")), stream = whole(find(event.args, "stream"));
    const auto correlation = whole(find(event.args, "correlation"));
    if (!device || *device != place.pid) add(event.offset, "args.device must be the pid");
    if (!stream) add(event.offset, "a kernel without args.stream");
    if (!correlation) return add(event.offset, "a kernel without args.correlation");
    kernels_.push_back({*correlation, start, place, event.offset});
  }

  void check_meta(const Event& event) {
    const auto place = place_of(event);
    if (!place) return;
    const std::string name = text_of(event.fields, "name");
    const Place at = name.rfind("process", 0) == 0 ? Place{place->pid, -1} : *place;
    if (!meta_.emplace(at, name).second) add(event.offset, name + " twice for one row");
  }

  void check_arrow(const Event& event, bool start) {
    const auto place = place_of(event);
    const auto time = time_of(event, "ts");
    const auto id = whole(find(event.fields, "id"));
    if (text_of(event.fields, "cat") != "ac2g" || text_of(event.fields, "name") != "ac2g")
      add(event.offset, "arrows from calls to kernels are called ac2g");
    if (!start && text_of(event.fields, "bp") != "e") add(event.offset, "an arrow's end needs \"bp\": \"e\"");
    if (!place || !time || !id) return add(event.offset, "an arrow needs a whole id");
    if (!(start ? starts_ : ends_).emplace(*id, End{*place, *time}).second)
      add(event.offset, "arrow " + std::to_string(*id) + (start ? " starts twice" : " ends twice"));
  }

  void check_rows() {
    for (auto& [place, row] : rows_) {
      const std::string what = std::to_string(place.pid) + "/" + std::to_string(place.tid);
      for (const Slice& slice : partly_overlapping(row))
        add(slice.offset, "a slice partly overlaps another on row " + what);
      for (const char* name : {"thread_name", "thread_sort_index"})
        if (meta_.count({place, name}) == 0) add(0, "row " + what + " has no " + name);
      for (const char* name : {"process_name", "process_labels", "process_sort_index"})
        if (meta_.count({Place{place.pid, -1}, name}) == 0)
          add(0, "process " + std::to_string(place.pid) + " has no " + name);
    }
  }

  void check_steps() {
    if (steps_.size() != 1) {
      // With two or more HTA drops the last one and all kernels it cannot assign.
      add(0, "exactly one ProfilerStep is needed, there are " + std::to_string(steps_.size()));
      return;
    }
    for (const auto& [place, row] : rows_)
      for (const Slice& slice : row)
        if (slice.start < steps_.front().start || slice.end > steps_.front().end)
          return add(slice.offset, "a slice outside the profiler step");
  }

  void check_kernels() {
    std::set<std::int64_t> seen;
    for (const Gpu& kernel : kernels_) {
      const std::string what = "correlation " + std::to_string(kernel.correlation);
      if (!seen.insert(kernel.correlation).second) add(kernel.offset, what + " of two kernels");
      const auto call = calls_.find(kernel.correlation);
      if (call == calls_.end())
        add(kernel.offset, what + " has no host call");
      else if (call->second.time > kernel.start)
        add(kernel.offset, what + ": the kernel begins before its call");
      const auto start = starts_.find(kernel.correlation), end = ends_.find(kernel.correlation);
      if (start == starts_.end() || end == ends_.end()) {
        add(kernel.offset, what + " has no ac2g arrow");
        continue;
      }
      if (call != calls_.end() &&
          (start->second.place != call->second.place || start->second.time != call->second.time))
        add(kernel.offset, what + ": the arrow does not start at the call");
      if (end->second.place != kernel.place || end->second.time != kernel.start)
        add(kernel.offset, what + ": the arrow does not end at the kernel");
    }
    if (starts_.size() != kernels_.size() || ends_.size() != kernels_.size()) add(0, "arrows that belong to no kernel");
    for (const auto& [record, offset] : records_)
      if (calls_.count(record) == 0) add(offset, "no call recorded event " + std::to_string(record));
  }

  std::string_view text_;
  std::size_t limit_;
  std::vector<ChromeFinding> findings_;
  std::set<std::string> keys_;
  std::map<Place, std::vector<Slice>> rows_;
  std::set<std::pair<Place, std::string>> meta_;
  std::vector<Slice> steps_;
  std::vector<Gpu> kernels_;
  std::map<std::int64_t, End> calls_, starts_, ends_;
  std::vector<std::pair<std::int64_t, std::uint64_t>> records_;
};

}  // namespace

std::vector<ChromeFinding> check_kineto_trace(std::string_view text, std::size_t limit) {
  return Checker(text, limit).run();
}

}  // namespace dbo
