#include "traces/own_trace.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace dbo {
namespace {

/// The slice of a row that holds a time, or kNoOp. Slices of a row do not overlap.
class RowIndex {
 public:
  static constexpr std::uint32_t kNoOp = UINT32_MAX;

  RowIndex(const Trace& trace, const std::vector<std::uint32_t>& row_of_op) : trace_(trace) {
    for (std::uint32_t i = 0; i < trace.ops.size(); ++i) rows_[row_of_op[i]].push_back(i);
    for (auto& [row, ops] : rows_)
      std::sort(ops.begin(), ops.end(), [&](std::uint32_t a, std::uint32_t b) {
        return trace_.ops[a].start != trace_.ops[b].start ? trace_.ops[a].start < trace_.ops[b].start : a < b;
      });
  }

  std::uint32_t find(std::uint32_t row, std::int64_t time_ns) const {
    const auto ops = rows_.find(row);
    if (ops == rows_.end()) return kNoOp;
    const SimTime time = at(time_ns);
    auto after = std::upper_bound(ops->second.begin(), ops->second.end(), time,
                                  [&](SimTime t, std::uint32_t op) { return t < trace_.ops[op].start; });
    if (after == ops->second.begin()) return kNoOp;
    --after;
    return time < trace_.ops[*after].end ? *after : kNoOp;
  }

 private:
  const Trace& trace_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> rows_;
};

void join_arrows(const RawTrace& raw, const RowIndex& index, Trace& trace) {
  struct Ends {
    std::uint32_t from = RowIndex::kNoOp, to = RowIndex::kNoOp;
    bool data = false;
  };
  std::map<std::int64_t, Ends> arrows;
  for (const RawArrowEnd& end : raw.arrows) {
    Ends& ends = arrows[end.id];
    (end.start ? ends.from : ends.to) = index.find(end.row, end.time_ns);
    ends.data = end.data;
  }
  for (const auto& [id, ends] : arrows)
    if (ends.from != RowIndex::kNoOp && ends.to != RowIndex::kNoOp)
      trace.flows.push_back({ends.data ? TraceFlow::Kind::Data : TraceFlow::Kind::Event, ends.from, ends.to});
}

}  // namespace

Trace own_trace(const RawTrace& raw) {
  Trace trace;
  trace.lanes = raw.lanes;
  trace.names = raw.names.texts();
  trace.counters = raw.counters;
  trace.metadata = raw.metadata.is_object() ? raw.metadata : Json::object();
  std::vector<std::uint32_t> order(raw.ops.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const TraceOp &x = raw.ops[a], &y = raw.ops[b];
    if (x.rank != y.rank) return x.rank < y.rank;
    return x.lane != y.lane ? x.lane < y.lane : x.start < y.start;
  });
  std::vector<std::uint32_t> row_of_op;
  trace.ops.reserve(order.size());
  for (const std::uint32_t i : order) {
    trace.ops.push_back(raw.ops[i]);
    row_of_op.push_back(raw.op_rows[i]);
  }
  join_arrows(raw, RowIndex(trace, row_of_op), trace);
  return trace;
}

}  // namespace dbo
