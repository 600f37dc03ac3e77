// Interval arithmetic over a trace: what is busy, what overlaps, what is exposed. Everything is defined on unions of
// half-open intervals, never by subtracting totals.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "traces/trace.h"

namespace dbo {

struct Interval {
  std::int64_t begin = 0, end = 0;  ///< nanoseconds, half-open

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Disjoint, not touching, ascending.
using Intervals = std::vector<Interval>;

/// Sorts, drops empty ones and merges those that overlap or touch.
Intervals unite(std::vector<Interval> any);
std::int64_t total(const Intervals& set);
Intervals intersect(const Intervals& a, const Intervals& b);
Intervals subtract(const Intervals& a, const Intervals& b);
/// Length of `one` that `set` covers. Cost: logarithmic plus the intervals touched.
std::int64_t covered(const Intervals& set, const Interval& one);

/// The union of a rank's ops that `wanted` picks.
Intervals intervals_of(const Trace& trace, std::int32_t rank, const std::function<bool(const TraceOp&)>& wanted);

/// A0 A1 MLP S FFN EMB HEAD of a rank, and ops of no known kind on lanes named compute, compute 2, ...
Intervals compute_intervals(const Trace& trace, std::int32_t rank);
/// Wires, comm kernels and the waiting parts of receives (the first `waited` of each), and ops of no known kind on
/// lanes named comm, comm 2, ...
Intervals communication_intervals(const Trace& trace, std::int32_t rank);
/// Length of communication_intervals minus compute_intervals.
Ns exposed_communication(const Trace& trace, std::int32_t rank);

/// The ranks of a trace, ascending.
std::vector<std::int32_t> ranks_of(const Trace& trace);

}  // namespace dbo
