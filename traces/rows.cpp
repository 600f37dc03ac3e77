#include "traces/rows.h"

#include <algorithm>

namespace dbo {
namespace {

bool by_place(const TraceOp& a, const TraceOp& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.lane != b.lane) return a.lane < b.lane;
  return a.start < b.start;
}

/// Keeps the ops the filter lets through, in trace order.
std::vector<std::uint32_t> shown_ops(const Trace& trace, const RowFilter& filter) {
  std::vector<std::int32_t> ranks;
  if (filter.max_ranks > 0) {
    for (const TraceOp& op : trace.ops)
      if (ranks.empty() || ranks.back() != op.rank) ranks.push_back(op.rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    ranks.resize(std::min(ranks.size(), static_cast<std::size_t>(filter.max_ranks)));
  }
  std::vector<std::uint32_t> shown;
  shown.reserve(trace.ops.size());
  for (std::uint32_t i = 0; i < trace.ops.size(); ++i) {
    const TraceOp& op = trace.ops[i];
    if (op.end <= op.start) continue;
    const std::int32_t layer = std::max(op.layer, 0);
    if (layer < filter.first_layer || layer > filter.last_layer) continue;
    if (filter.max_ranks > 0 && op.rank > ranks.back()) continue;
    shown.push_back(i);
  }
  return shown;
}

}  // namespace

Rows make_rows(const Trace& trace, const RowFilter& filter) {
  Rows result;
  result.row_of_op.assign(trace.ops.size(), kNoRow);
  std::vector<std::uint32_t> shown = shown_ops(trace, filter);
  const auto limit = static_cast<std::size_t>(filter.max_slices);
  if (filter.max_slices > 0 && shown.size() > limit) {
    std::stable_sort(shown.begin(), shown.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return trace.ops[a].start < trace.ops[b].start; });
    shown.resize(limit);
  }
  result.dropped = static_cast<std::int64_t>(trace.ops.size() - shown.size());
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return by_place(trace.ops[a], trace.ops[b]); };
  if (!std::is_sorted(shown.begin(), shown.end(), before)) std::stable_sort(shown.begin(), shown.end(), before);

  std::size_t first = 0;  // first row of the lane at hand
  for (const std::uint32_t index : shown) {
    const TraceOp& op = trace.ops[index];
    if (first < result.rows.size() && (result.rows[first].rank != op.rank || result.rows[first].lane != op.lane))
      first = result.rows.size();
    std::size_t row = first;
    while (row < result.rows.size() && trace.ops[result.rows[row].ops.back()].end > op.start) ++row;
    if (row == result.rows.size()) result.rows.push_back({op.rank, op.lane, static_cast<int>(row - first) + 1, {}});
    result.rows[row].ops.push_back(index);
    result.row_of_op[index] = static_cast<std::uint32_t>(row);
  }
  return result;
}

std::string row_name(const Trace& trace, const Row& row) {
  std::string name = row.lane < trace.lanes.size() ? trace.lanes[row.lane] : "lane " + std::to_string(row.lane);
  if (row.spill > 1) name += " (" + std::to_string(row.spill) + ")";
  return name;
}

}  // namespace dbo
