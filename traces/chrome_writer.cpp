#include "traces/chrome_writer.h"

#include <algorithm>

#include "sim/base/error.h"
#include "traces/output_file.h"
#include "traces/text_out.h"

namespace dbo {
namespace {

constexpr const char* kSubscripts[] = {"₀", "₁", "₂", "₃", "₄", "₅", "₆", "₇", "₈", "₉"};

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

/// The start of every slice of one (name, kind, ubatch, row): all of it but times and numbers is the same again and
/// again, so it is put together once.
class SliceHeads {
 public:
  SliceHeads(const Trace& trace, bool args) : trace_(trace), args_(args) {}

  struct Head {
    std::string before_time;  ///< up to "ts":
    std::string before_args;  ///< from after dur to "layer":
  };

  const Head& of(const TraceOp& op) {
    if (op.name >= heads_.size()) heads_.resize(op.name + 1);
    // A name rarely has more than one kind and a few ubatches.
    for (const Entry& entry : heads_[op.name])
      if (entry.kind == op.kind && entry.ubatch == op.ubatch) return entry.head;
    heads_[op.name].push_back({op.kind, op.ubatch, make(op)});
    return heads_[op.name].back().head;
  }

 private:
  Head make(const TraceOp& op) const {
    Head head;
    head.before_time =
        "{\"ph\":\"X\",\"name\":" + quoted(slice_name(trace_, op)) + ",\"cat\":\"" + slice_category(op.kind) + "\"";
    head.before_args = args_ ? ",\"args\":{\"op\":\"" + std::string(op_name(op.kind)) +
                                   "\",\"ubatch\":" + std::to_string(op.ubatch) + ",\"layer\":"
                             : "}";
    return head;
  }

  struct Entry {
    OpKind kind;
    std::int16_t ubatch;
    Head head;
  };

  const Trace& trace_;
  bool args_;
  std::vector<std::vector<Entry>> heads_;
};

class Writer {
 public:
  Writer(const Trace& trace, const ChromeOptions& options, TextOut::Sink sink)
      : trace_(trace), options_(options), rows_(make_rows(trace, options.filter)), out_(std::move(sink)) {
    std::int64_t first = 0;
    for (const TraceOp& op : trace.ops) first = std::min(first, op.start.time_since_epoch().count());
    shift_ = -first;
    number_rows();
    choose_flows();
  }

  void write() {
    put_head();
    put_names();
    for (std::size_t row = 0; row < rows_.rows.size(); ++row) put_row(row);
    for (const Arrow& arrow : arrows_) put_flow(arrow);
    if (options_.counters)
      for (const TraceCounter& counter : trace_.counters) put_counter(counter);
    out_.put("\n]}\n");
    out_.flush();
  }

 private:
  struct Arrow {
    std::uint32_t flow = 0;
    FlowEnds ends;
  };

  void number_rows() {
    int tid = 0;
    for (std::size_t i = 0; i < rows_.rows.size(); ++i) {
      tid = i > 0 && rows_.rows[i - 1].rank == rows_.rows[i].rank ? tid + 1 : 1;
      tids_.push_back(tid);
    }
  }

  void choose_flows() {
    if (!options_.flows) return;
    for (std::uint32_t i = 0; i < trace_.flows.size(); ++i) {
      const TraceFlow& flow = trace_.flows[i];
      DBO_CHECK(flow.from < trace_.ops.size() && flow.to < trace_.ops.size(), "flow without its ops");
      const FlowEnds ends = flow_ends(trace_.ops[flow.from], trace_.ops[flow.to]);
      if (ends.valid && rows_.row_of_op[flow.from] != kNoRow && rows_.row_of_op[flow.to] != kNoRow)
        arrows_.push_back({i, ends});
      else
        ++dropped_flows_;
    }
  }

  void put_head() {
    Json metadata = trace_.metadata.is_object() ? trace_.metadata : Json::object();
    if (shift_ > 0) metadata.set("shifted_ns", shift_);
    if (rows_.dropped > 0) metadata.set("dropped_slices", rows_.dropped);
    if (dropped_flows_ > 0) metadata.set("dropped_flows", dropped_flows_);
    out_.put("{\"displayTimeUnit\":\"ns\",");
    if (const Json* base = metadata.find("baseTimeNanoseconds"); base != nullptr && base->is_int()) {
      out_.put("\"baseTimeNanoseconds\":");
      out_.integer(base->as_int());
      out_.put(',');
    }
    out_.put("\"metadata\":");
    out_.put(compact_json(metadata));
    out_.put(",\n\"traceEvents\":[\n");
  }

  void separate() {
    out_.put(first_ ? "" : ",\n");
    first_ = false;
  }

  void put_meta(const char* what, std::int64_t pid, std::int64_t tid, std::string_view key, const std::string& value) {
    separate();
    out_.put("{\"ph\":\"M\",\"name\":\"");
    out_.put(what);
    out_.put("\",\"pid\":");
    out_.integer(pid);
    out_.put(",\"tid\":");
    out_.integer(tid);
    out_.put(",\"args\":{\"");
    out_.put(key);
    out_.put("\":");
    out_.put(value);
    out_.put("}}");
  }

  void put_names() {
    for (std::size_t i = 0; i < rows_.rows.size(); ++i) {
      const Row& row = rows_.rows[i];
      const std::int64_t pid = row.rank + 1;
      if (i == 0 || rows_.rows[i - 1].rank != row.rank) {
        put_meta("process_name", pid, 0, "name", "\"rank " + std::to_string(row.rank) + "\"");
        put_meta("process_sort_index", pid, 0, "sort_index", std::to_string(row.rank));
      }
      put_meta("thread_name", pid, tids_[i], "name", quoted(row_name(trace_, row)));
      put_meta("thread_sort_index", pid, tids_[i], "sort_index", std::to_string(tids_[i]));
    }
  }

  void put_row(std::size_t index) {
    const Row& row = rows_.rows[index];
    const std::string place =
        ",\"pid\":" + std::to_string(row.rank + 1) + ",\"tid\":" + std::to_string(tids_[index]) + ",\"ts\":";
    const std::string lane = ",\"rank\":" + std::to_string(row.rank) +
                             ",\"lane\":" + quoted(row.lane < trace_.lanes.size() ? trace_.lanes[row.lane] : "") +
                             ",\"tokens\":";
    for (const std::uint32_t i : row.ops) {
      const TraceOp& op = trace_.ops[i];
      const SliceHeads::Head& head = heads_.of(op);
      separate();
      out_.put(head.before_time);
      out_.put(place);
      out_.micros(op.start.time_since_epoch().count() + shift_);
      out_.put(",\"dur\":");
      out_.micros((op.end - op.start).count());
      out_.put(head.before_args);
      if (options_.args) put_args(op, lane);
    }
  }

  void put_args(const TraceOp& op, const std::string& lane) {
    out_.integer(op.layer);
    out_.put(lane);
    out_.integer(op.tokens);
    out_.put(",\"bytes\":");
    out_.integer(op.bytes);
    out_.put(",\"sms\":");
    out_.integer(op.sms);
    if (op.plan_op != kNoPlanOp) {
      out_.put(",\"plan_op\":");
      out_.integer(op.plan_op);
    }
    if (is_recv(op.kind) || op.waited.count() > 0) {
      out_.put(",\"waited_ns\":");
      out_.integer(op.waited.count());
    }
    out_.put("}}");
  }

  void put_end(const Arrow& arrow, bool start) {
    const TraceFlow& flow = trace_.flows[arrow.flow];
    const std::uint32_t row = rows_.row_of_op[start ? flow.from : flow.to];
    separate();
    out_.put(start ? "{\"ph\":\"s\"" : "{\"ph\":\"f\",\"bp\":\"e\"");
    out_.put(flow.kind == TraceFlow::Kind::Event ? ",\"cat\":\"event\",\"name\":\"wait\",\"id\":"
                                                 : ",\"cat\":\"data\",\"name\":\"transfer\",\"id\":");
    out_.integer(std::int64_t{arrow.flow} + 1);
    out_.put(",\"pid\":");
    out_.integer(rows_.rows[row].rank + 1);
    out_.put(",\"tid\":");
    out_.integer(tids_[row]);
    out_.put(",\"ts\":");
    out_.micros((start ? arrow.ends.from_ns : arrow.ends.to_ns) + shift_);
    out_.put("}");
  }

  void put_flow(const Arrow& arrow) {
    // The start goes first: at equal times readers keep the order of the file.
    put_end(arrow, true);
    put_end(arrow, false);
  }

  void put_counter(const TraceCounter& counter) {
    const bool shown =
        std::any_of(rows_.rows.begin(), rows_.rows.end(), [&](const Row& row) { return row.rank == counter.rank; });
    if (!shown) return;
    const std::string head =
        "{\"ph\":\"C\",\"name\":" + quoted(counter.name) + ",\"pid\":" + std::to_string(counter.rank + 1) + ",\"ts\":";
    auto points = counter.points;
    const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (!std::is_sorted(points.begin(), points.end(), earlier)) std::stable_sort(points.begin(), points.end(), earlier);
    for (const auto& [time, value] : points) {
      separate();
      out_.put(head);
      out_.micros(std::max<std::int64_t>(0, time.time_since_epoch().count() + shift_));
      out_.put(",\"args\":{\"value\":");
      out_.integer(value);
      out_.put("}}");
    }
  }

  const Trace& trace_;
  const ChromeOptions& options_;
  Rows rows_;
  std::vector<int> tids_;
  std::vector<Arrow> arrows_;
  SliceHeads heads_{trace_, options_.args};
  std::int64_t shift_ = 0, dropped_flows_ = 0;
  bool first_ = true;
  TextOut out_;
};

}  // namespace

std::string Trace::plan_hash() const {
  const Json* hash = metadata.find("plan_hash");
  return hash != nullptr && hash->is_string() ? hash->as_string() : std::string();
}

const char* slice_category(OpKind kind) {
  if (is_compute(kind)) return "compute";
  if (is_send(kind)) return "send";
  if (is_wire(kind)) return "wire";
  if (is_recv(kind)) return "receive";
  if (is_collective(kind)) return "comm";
  return kind == OpKind::CCopy ? "copy" : "other";
}

std::string slice_name(const Trace& trace, const TraceOp& op) {
  if (op.kind == OpKind::Other && op.name < trace.names.size() && !trace.names[op.name].empty())
    return trace.names[op.name];
  std::string name(op_name(op.kind));
  const std::string digits = std::to_string(std::max<int>(op.ubatch, 0));
  std::string subscript;
  for (const char c : digits) subscript += kSubscripts[c - '0'];
  // "D.send" of ubatch 1 is written D₁.send, as the notation has it.
  const auto dot = name.find('.');
  return name.insert(dot == std::string::npos ? name.size() : dot, subscript);
}

FlowEnds flow_ends(const TraceOp& from, const TraceOp& to) {
  const std::int64_t from_start = from.start.time_since_epoch().count(), from_end = from.end.time_since_epoch().count();
  const std::int64_t to_start = to.start.time_since_epoch().count(), to_end = to.end.time_since_epoch().count();
  FlowEnds ends;
  if (from_end <= from_start || to_end <= to_start) return ends;
  // A slice is half-open: its last nanosecond is the last place where an arrow finds it.
  ends.from_ns = std::min(from_end - 1, std::max(from_start, to_end - 1));
  ends.to_ns = std::max(to_start, ends.from_ns);
  ends.valid = ends.to_ns < to_end;
  return ends;
}

std::string chrome_trace_text(const Trace& trace, const ChromeOptions& options) {
  std::string text;
  Writer(trace, options, [&](std::string_view piece) { text += piece; }).write();
  return text;
}

void write_chrome_trace(const std::string& path, const Trace& trace, const ChromeOptions& options) {
  OutputFile file(path);
  Writer(trace, options, [&](std::string_view piece) { file.write(piece); }).write();
  file.commit();
}

void write_chrome_trace(FileSet& files, const std::string& path, const Trace& trace, const ChromeOptions& options) {
  OutputFile file(path);
  Writer(trace, options, [&](std::string_view piece) { file.write(piece); }).write();
  file.commit_to(files);
}

}  // namespace dbo
