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
  bool contention = false;          ///< ops share SMs, memory or ports, which the period counts and `bound_ns` does not
  Notation notation;
  std::string schedule;                  ///< the built-in whose own plan is faster than any order tried; empty: none
  Plan plan;                             ///< of `schedule`, or of `notation`
  std::vector<SchedulePeriod> builtins;  ///< of the same class, fastest first
  std::int64_t unsplit_period_ns = 0;    ///< the server with DBO off
  std::int64_t states = 0, timed = 0;
  bool complete = true;  ///< false: `keep_going` ended the search

  std::int64_t gap_ns() const { return proved ? 0 : period_ns - lower_bound_ns; }
};

/// Optimises the first step of the config. Ops stay on their lanes, the transport keeps its class, and its combine
/// writes where the next layer reads (no C.copy). The exact search is of lanes alone. Where the engine sees more (host
/// costs, unequal ranks, shared SMs, memory and ports) it times the orders found and those a move away, and of two
/// ubatches then every order that lanes alone do not rule out, so that its timing is what is proved; ops beside each
/// other only get slower, so bounds stay bounds. Never slower than a built-in schedule, which may gain by its own waits
/// where ops share: then its plan is the result. Throws InputError when the step is not split, or the transport has
/// fewer buffers than calls in flight.
OptimiseResult optimise(const Config& config, const OptimiseOptions& options);

}  // namespace dbo
