// A plan and its costs to everything that is said of a step: times, period and bound, windows, bubbles, trace.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/engine/bound.h"
#include "sim/engine/bubbles.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"
#include "traces/windows.h"

namespace dbo {

/// A plan with its costs: what the engine takes.
struct CostedPlan {
  Plan plan;
  CostTable costs;
};

/// What one simulated step came to. Times of the rank group that ends last, unless said otherwise.
struct StepResult {
  std::int64_t step_ns = 0;
  std::int64_t exposed_comm_ns = 0;
  std::vector<std::int64_t> lane_busy_ns;  ///< by lane of the plan: with its idle time, the step; 0: it never works
  std::vector<WindowShare> windows;
  std::vector<Bubble> bubbles;
  std::vector<Bubble> waiting;  ///< of the rank asked for with `waiting_rank`
  std::vector<Loss> losses;
  Period period;
  PeriodBound bound;
  int slowest_rank = 0;
  Trace trace;  ///< of the ranks asked for, when asked for
};

struct StepOptions {
  bool details = true;  ///< period, bound, windows, bubbles, exposed communication
  bool trace = false;
  bool extrapolate = true;             ///< false: every layer is simulated; all that is said comes out the same
  std::vector<int> trace_ranks = {};   ///< ranks to trace; empty: one of each group, up to kTracedGroups
  std::vector<int> trace_layers = {};  ///< layers to trace; empty: all, and what is in none
  int waiting_rank = -1;  ///< a rank whose idle time is told too: with stragglers, the last one to end waits for nobody
};

inline constexpr int kTracedGroups = 8;

/// Simulates a plan with its costs. Throws FindingError for a plan that cannot run.
StepResult simulate_plan(const CostedPlan& costed, const StepOptions& options);

}  // namespace dbo
