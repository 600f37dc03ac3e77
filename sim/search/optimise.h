// Finds an order of launches and waits with the smallest steady period for a config's costs, and says what no order can
// beat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/config/config.h"
#include "sim/plan/plan.h"
#include "sim/sched/notation.h"

namespace dbo {

struct SchedulePeriod {
  std::string schedule;
  std::int64_t period_ns = 0;
};

struct OptimiseProgress {
  std::int64_t best_ns = 0;         ///< period of the best order so far
  std::int64_t lower_bound_ns = 0;  ///< no order has a shorter one
  std::int64_t states = 0;          ///< partial orders looked at
  std::int64_t timed = 0;           ///< orders simulated
};

struct OptimiseOptions {
  int in_flight = 1;  ///< low latency: calls that may be un-received
  /// Called often; returning false ends the search with the best so far. Empty: no limit.
  std::function<bool(const OptimiseProgress&)> keep_going;
};

struct OptimiseResult {
  std::int64_t period_ns = 0;       ///< of one MoE layer, as the engine times `plan`
  std::int64_t bound_ns = 0;        ///< the contract's bound: lanes, port, chain
  std::int64_t lower_bound_ns = 0;  ///< the largest proved: `bound_ns` or more
  bool proved = false;              ///< no order is faster
  Notation notation;
  Plan plan;                             ///< of `notation`
  std::vector<SchedulePeriod> builtins;  ///< of the same class, fastest first
  std::int64_t unsplit_period_ns = 0;    ///< the server with DBO off
  std::int64_t states = 0, timed = 0;
  bool complete = true;  ///< false: `keep_going` ended the search

  std::int64_t gap_ns() const { return proved ? 0 : period_ns - lower_bound_ns; }
};

/// Optimises the first step of the config. Ops stay on their lanes, the transport keeps its class, and its combine
/// writes where the next layer reads (no C.copy). With host costs, unequal ranks or shared bandwidth the exact search
/// is of the lanes alone: the orders it finds are timed by the engine, improved by moving single launches, and its
/// bound stays one. Never slower than a built-in schedule's order. Throws InputError when the step is not split, or the
/// transport has fewer buffers than calls in flight.
OptimiseResult optimise(const Config& config, const OptimiseOptions& options);

}  // namespace dbo
