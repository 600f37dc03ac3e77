#include "traces/overlap.h"

#include <algorithm>

namespace dbo {
namespace {

std::int64_t ns(SimTime time) {
  return time.time_since_epoch().count();
}

}  // namespace

Intervals unite(std::vector<Interval> any) {
  const auto before = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(any.begin(), any.end(), before)) std::sort(any.begin(), any.end(), before);
  std::size_t used = 0;
  for (const Interval& one : any) {
    if (one.end <= one.begin) continue;
    if (used > 0 && one.begin <= any[used - 1].end)
      any[used - 1].end = std::max(any[used - 1].end, one.end);
    else
      any[used++] = one;
  }
  any.resize(used);
  return any;
}

std::int64_t total(const Intervals& set) {
  std::int64_t sum = 0;
  for (const Interval& one : set) sum += one.end - one.begin;
  return sum;
}

Intervals intersect(const Intervals& a, const Intervals& b) {
  Intervals out;
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const Interval both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.end > both.begin) out.push_back(both);
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return out;
}

Intervals subtract(const Intervals& a, const Intervals& b) {
  Intervals out;
  std::size_t j = 0;
  for (Interval one : a) {
    while (j < b.size() && b[j].end <= one.begin) ++j;
    for (std::size_t k = j; k < b.size() && b[k].begin < one.end; ++k) {
      if (b[k].begin > one.begin) out.push_back({one.begin, b[k].begin});
      one.begin = std::max(one.begin, b[k].end);
    }
    if (one.end > one.begin) out.push_back(one);
  }
  return out;
}

std::int64_t covered(const Intervals& set, const Interval& one) {
  std::int64_t sum = 0;
  auto at = std::upper_bound(set.begin(), set.end(), one.begin,
                             [](std::int64_t time, const Interval& part) { return time < part.end; });
  for (; at != set.end() && at->begin < one.end; ++at)
    sum += std::min(at->end, one.end) - std::max(at->begin, one.begin);
  return sum;
}

Intervals intervals_of(const Trace& trace, std::int32_t rank, const std::function<bool(const TraceOp&)>& wanted) {
  std::vector<Interval> any;
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank && wanted(op)) any.push_back({ns(op.start), ns(op.end)});
  return unite(std::move(any));
}

/// Ops of no known kind (plans made from foreign traces) are what their lane is for.
bool other_on(const Trace& trace, const TraceOp& op, std::string_view lane) {
  return op.kind == OpKind::Other && op.lane < trace.lanes.size() && trace.lanes[op.lane].starts_with(lane);
}

Intervals compute_intervals(const Trace& trace, std::int32_t rank) {
  return intervals_of(trace, rank,
                      [&](const TraceOp& op) { return is_compute(op.kind) || other_on(trace, op, "compute"); });
}

Intervals communication_intervals(const Trace& trace, std::int32_t rank) {
  std::vector<Interval> any;
  for (const TraceOp& op : trace.ops) {
    if (op.rank != rank) continue;
    if (is_wire(op.kind) || is_collective(op.kind) || other_on(trace, op, "comm"))
      any.push_back({ns(op.start), ns(op.end)});
    if (is_recv(op.kind)) any.push_back({ns(op.start), std::min(ns(op.end), ns(op.start) + op.waited.count())});
  }
  return unite(std::move(any));
}

Ns exposed_communication(const Trace& trace, std::int32_t rank) {
  return Ns{total(subtract(communication_intervals(trace, rank), compute_intervals(trace, rank)))};
}

std::vector<std::int32_t> ranks_of(const Trace& trace) {
  std::vector<std::int32_t> ranks;
  for (const TraceOp& op : trace.ops)
    if (ranks.empty() || ranks.back() != op.rank) ranks.push_back(op.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace dbo
