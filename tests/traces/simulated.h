// Predicted traces of small plans, for tests that compare traces.
#pragma once

#include <vector>

#include "sim/cost/fixed.h"
#include "sim/engine/simulate.h"
#include "sim/plan/plan_json.h"
#include "sim/sched/schedule.h"
#include "tests/fakes/small_plans.h"
#include "traces/compare.h"

namespace dbo::testing {

/// The numbers of the worked schedules: A 100 (40 + 60), D 60, MLP 80, C 70, S 20 us; sends and receives 2 and 3.
inline FixedCosts worked_costs(bool halves) {
  FixedCosts costs;
  costs.a0 = Ns{40'000};
  costs.a1 = Ns{60'000};
  costs.mlp = Ns{80'000};
  costs.s = Ns{20'000};
  costs.dispatch.wire = Ns{60'000};
  costs.combine.wire = Ns{70'000};
  if (halves) {
    costs.dispatch.send = costs.combine.send = Ns{2'000};
    costs.dispatch.recv = costs.combine.recv = Ns{3'000};
  }
  return costs;
}

/// A trace of both ranks of a plan. They are alike, so the engine traces one; the other is its copy.
inline Trace simulated(const Plan& plan, const FixedCosts& costs) {
  StepOptions options;
  options.details = false;
  options.trace = true;
  Trace trace = simulate_plan({plan, fixed_costs(plan, costs)}, options).trace;
  const std::size_t ops = trace.ops.size();
  for (std::size_t i = 0; i < ops; ++i) {
    trace.ops.push_back(trace.ops[i]);
    trace.ops.back().rank = 1;
  }
  return trace;
}

/// A comparison's input with the prediction as the measurement, to be changed by a test.
inline CompareInput compare_input(const Plan& plan, const FixedCosts& costs) {
  CompareInput input;
  input.plan = plan;
  input.predicted = simulated(plan, costs);
  input.measured = input.predicted;
  input.predicted_file = "p.json";
  input.measured_file = "m.json";
  return input;
}

}  // namespace dbo::testing
