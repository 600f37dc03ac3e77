#include "traces/chrome_check.h"

#include <map>
#include <set>

#include "sim/base/json.h"
#include "sim/base/op_kind.h"
#include "traces/json_scanner.h"
#include "traces/strict_events.h"

namespace dbo {
namespace {

using namespace strict;

struct ArrowEnd {
  Place place;
  std::int64_t time = 0;
  std::uint64_t offset = 0;
  std::string label;  ///< category and name
};

struct Arrow {
  std::vector<ArrowEnd> starts, ends;
};

class Checker {
 public:
  Checker(std::string_view text, std::size_t limit) : text_(text), limit_(limit) {}

  std::vector<ChromeFinding> run() {
    if (text_.substr(0, 2) != "{\"") add(0, "the file must begin with {\" (viewers recognise it by that)");
    try {
      read();
    } catch (const ScanError& error) {
      add(error.offset(), std::string("not strict JSON: ") + error.what());
      return std::move(findings_);
    }
    if (!has_events_) add(0, "no traceEvents array");
    if (unit_ != "ns") add(0, "displayTimeUnit must be \"ns\", is \"" + unit_ + "\"");
    if (!has_metadata_) add(0, "no top-level metadata object");
    check_names();
    check_rows();
    check_arrows();
    return std::move(findings_);
  }

 private:
  void add(std::uint64_t offset, std::string text) {
    if (findings_.size() < limit_) findings_.push_back({offset, std::move(text)});
  }

  void read() {
    JsonScanner scanner(text_, true);
    std::set<std::string, std::less<>> keys;
    scanner.object([&](std::string_view key) {
      if (!keys.insert(std::string(key)).second) add(scanner.offset(), "duplicate key \"" + std::string(key) + "\"");
      if (key == "traceEvents") {
        has_events_ = true;
        scanner.array([&] { check_event(read_event(scanner)); });
      } else if (key == "displayTimeUnit") {
        unit_ = scanner.string();
      } else if (key == "metadata") {
        has_metadata_ = scanner.peek() == '{';
        scanner.skip_value();
      } else {
        scanner.skip_value();
      }
    });
    if (scanner.peek() != 0) scanner.fail("text behind the closing brace");
  }

  void check_event(const Event& event) {
    for (const std::string& key : event.duplicates) add(event.offset, "duplicate key \"" + key + "\"");
    const std::string phase = text_of(event.fields, "ph");
    if (phase == "M") {
      check_meta(event);
    } else if (phase == "X") {
      check_slice(event);
    } else if (phase == "s" || phase == "f") {
      check_arrow_end(event, phase == "s");
    } else if (phase == "C") {
      check_counter(event);
    } else {
      add(event.offset, "phase \"" + phase + "\" (allowed: X, M, s, f, C)");
    }
  }

  std::int64_t id_field(const Event& event, std::string_view name, std::int64_t low) {
    const auto value = whole(find(event.fields, name));
    if (!value || *value < low || *value > UINT32_MAX) {
      add(event.offset, std::string(name) + " must be a whole number from " + std::to_string(low) + ", is " +
                            text_of(event.fields, name));
      return low;
    }
    return *value;
  }

  std::int64_t time_field(const Event& event, std::string_view name, std::int64_t low) {
    const auto value = exact_micros(find(event.fields, name));
    if (!value || *value < low || *value > kMaxExact) {
      add(event.offset, std::string(name) + " must be microseconds with three decimals, " +
                            (low > 0 ? "above 0" : "not negative") + ", is " + text_of(event.fields, name));
      return low;
    }
    return *value;
  }

  void need_text(const Event& event, std::string_view name) {
    const Field* field = find(event.fields, name);
    if (field == nullptr || !field->quoted || field->text.empty())
      add(event.offset, std::string(name) + " must be a text that is not empty");
  }

  void check_meta(const Event& event) {
    const std::string name = text_of(event.fields, "name");
    const std::int64_t pid = id_field(event, "pid", 1);
    const bool thread = name == "thread_name" || name == "thread_sort_index";
    const Place place{pid, thread ? id_field(event, "tid", 1) : 0};
    bool fresh = true;
    if (name == "process_name" || name == "thread_name") {
      const Field* value = find(event.args, "name");
      if (value == nullptr || !value->quoted || value->text.empty()) {
        add(event.offset, name + " needs args.name");
        return;
      }
      fresh = names_.emplace(place, value->text).second;
    } else if (name == "process_sort_index" || name == "thread_sort_index") {
      if (!whole(find(event.args, "sort_index"))) add(event.offset, name + " needs a whole args.sort_index");
      fresh = sorted_.insert(place).second;
    } else {
      add(event.offset, "unknown metadata event \"" + name + "\"");
    }
    if (!fresh) add(event.offset, name + " twice for one row");
  }

  void check_slice(const Event& event) {
    need_text(event, "name");
    need_text(event, "cat");
    const Place place{id_field(event, "pid", 1), id_field(event, "tid", 1)};
    const std::int64_t start = time_field(event, "ts", 0), length = time_field(event, "dur", 1);
    rows_[place].push_back({start, start + length, event.offset});
    if (event.has_args && find(event.args, "op") != nullptr) check_op(event, place);
  }

  void check_op(const Event& event, const Place& place) {
    const std::string op = text_of(event.args, "op");
    if (!find_op_kind(op)) add(event.offset, "args.op \"" + op + "\" is no kind of op");
    for (const char* name : {"layer", "ubatch", "rank", "tokens", "bytes", "sms"})
      if (!whole(find(event.args, name))) add(event.offset, std::string("args.") + name + " must be a whole number");
    const std::int64_t rank = whole(find(event.args, "rank")).value_or(-1);
    const auto [known, fresh] = rank_of_pid_.emplace(place.pid, rank);
    if (!fresh && known->second != rank) add(event.offset, "two ranks in one process");
    const auto [process, fresh_rank] = pid_of_rank_.emplace(rank, place.pid);
    if (!fresh_rank && process->second != place.pid) add(event.offset, "one rank in two processes");
    const auto [lane, fresh_lane] = lanes_.emplace(place, text_of(event.args, "lane"));
    if (!fresh_lane && lane->second != text_of(event.args, "lane")) add(event.offset, "two lanes on one row");
    if (const Field* number = find(event.args, "plan_op"); number != nullptr) {
      const auto plan_op = whole(number);
      if (!plan_op || *plan_op < 0)
        add(event.offset, "args.plan_op must be a count");
      else if (!op.ends_with(".wire") && !plan_ops_.emplace(rank, *plan_op).second)
        add(event.offset, "plan_op " + number->text + " twice on rank " + std::to_string(rank));
    }
    const bool receive = op == "D.recv" || op == "C.recv";
    if (receive && whole(find(event.args, "waited_ns")).value_or(-1) < 0)
      add(event.offset, "a receive needs args.waited_ns");
  }

  void check_arrow_end(const Event& event, bool start) {
    need_text(event, "name");
    need_text(event, "cat");
    const auto id = whole(find(event.fields, "id"));
    if (!id || *id < 1 || *id >= kMaxExact) {
      add(event.offset, "an arrow's id must be a whole number from 1 below 2^53");
      return;
    }
    if (!start && text_of(event.fields, "bp") != "e")
      add(event.offset, "an arrow's end needs \"bp\": \"e\", or viewers bind it to the next slice");
    ArrowEnd end{{id_field(event, "pid", 1), id_field(event, "tid", 1)},
                 time_field(event, "ts", 0),
                 event.offset,
                 text_of(event.fields, "cat") + "/" + text_of(event.fields, "name")};
    (start ? arrows_[*id].starts : arrows_[*id].ends).push_back(std::move(end));
  }

  void check_counter(const Event& event) {
    need_text(event, "name");
    const std::int64_t pid = id_field(event, "pid", 1), time = time_field(event, "ts", 0);
    if (event.args.empty()) add(event.offset, "a counter needs args");
    for (const auto& [name, value] : event.args)
      if (!whole(&value)) add(event.offset, "counter value " + name + " must be a whole number");
    auto [last, fresh] = counters_.emplace(std::pair(pid, text_of(event.fields, "name")), time);
    if (!fresh && time < last->second) add(event.offset, "a counter that goes back in time");
    last->second = time;
    used_.insert({pid, 0});
  }

  void check_names() {
    std::map<std::pair<std::int64_t, std::string>, Place> by_name;
    for (const auto& [place, slices] : rows_) {
      used_.insert(place);
      used_.insert({place.pid, 0});
    }
    for (const Place& place : used_) {
      const std::string what = place.tid == 0 ? "process " + std::to_string(place.pid)
                                              : "thread " + std::to_string(place.pid) + "/" + std::to_string(place.tid);
      const auto name = names_.find(place);
      if (name == names_.end()) add(0, what + " has no name");
      if (sorted_.count(place) == 0) add(0, what + " has no sort index");
      const std::int64_t scope = place.tid == 0 ? 0 : place.pid;
      if (name != names_.end() && !by_name.emplace(std::pair(scope, name->second), place).second)
        add(0, what + " shares the name \"" + name->second + "\"");
      const auto lane = lanes_.find(place);
      if (place.tid != 0 && lane != lanes_.end() && name != names_.end() && name->second != lane->second &&
          name->second.rfind(lane->second + " (", 0) != 0)
        add(0, what + " is called \"" + name->second + "\" but holds lane \"" + lane->second + "\"");
    }
  }

  void check_rows() {
    for (auto& [place, slices] : rows_)
      for (const Slice& slice : partly_overlapping(slices))
        add(slice.offset,
            "a slice partly overlaps another on row " + std::to_string(place.pid) + "/" + std::to_string(place.tid));
  }

  bool inside(const ArrowEnd& end) const {
    const auto row = rows_.find(end.place);
    return row != rows_.end() && inside_a_slice(row->second, end.time);
  }

  void check_arrows() {
    for (const auto& [id, arrow] : arrows_) {
      const std::string what = "arrow " + std::to_string(id);
      const std::uint64_t offset = arrow.starts.empty() ? arrow.ends.front().offset : arrow.starts.front().offset;
      if (arrow.starts.size() != 1 || arrow.ends.size() != 1) {
        add(offset, what + " has " + std::to_string(arrow.starts.size()) + " starts and " +
                        std::to_string(arrow.ends.size()) + " ends (one of each)");
        continue;
      }
      const ArrowEnd &start = arrow.starts.front(), &end = arrow.ends.front();
      if (start.label != end.label) add(offset, what + " changes its category or name");
      if (start.time > end.time) add(offset, what + " ends before it starts");
      if (start.time == end.time && start.offset > end.offset)
        add(offset, what + " has its end before its start in the file, at the same time");
      if (!inside(start)) add(offset, what + " starts outside any slice");
      if (!inside(end)) add(offset, what + " ends outside any slice");
    }
  }

  std::string_view text_;
  std::size_t limit_;
  std::vector<ChromeFinding> findings_;
  bool has_events_ = false, has_metadata_ = false;
  std::string unit_;
  std::map<Place, std::string> names_;
  std::set<Place> sorted_, used_;
  std::map<Place, std::vector<Slice>> rows_;
  std::map<Place, std::string> lanes_;
  std::map<std::int64_t, std::int64_t> rank_of_pid_, pid_of_rank_;
  std::set<std::pair<std::int64_t, std::int64_t>> plan_ops_;
  std::map<std::int64_t, Arrow> arrows_;
  std::map<std::pair<std::int64_t, std::string>, std::int64_t> counters_;
};

}  // namespace

std::vector<ChromeFinding> check_chrome_trace(std::string_view text, std::size_t limit) {
  return Checker(text, limit).run();
}

std::string findings_text(const std::vector<ChromeFinding>& findings) {
  std::string text;
  for (const ChromeFinding& finding : findings)
    text += "byte " + std::to_string(finding.offset) + ": " + finding.text + "\n";
  return text;
}

}  // namespace dbo
