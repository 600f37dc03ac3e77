// Small plans for tests: one class of two ranks on a model of which only the layer counts are known.
#pragma once

#include "sim/base/fixed_costs.h"
#include "sim/base/schedule_names.h"
#include "sim/sched/notation.h"
#include "sim/sched/schedule.h"

namespace dbo::fakes {

inline ScheduleSpec small_spec(int layers, int ubatches, Transport transport) {
  ScheduleSpec spec;
  spec.shape.name = "small";
  spec.shape.layers = layers;
  spec.shape.moe.routed_experts = 2;
  spec.shape.moe.top_k = 1;
  spec.shape.moe.shared_experts = 1;
  spec.world = {2, 2};
  spec.transport = transport;
  spec.ubatches = ubatches;
  spec.embed_and_head = false;
  Load load;
  for (int u = 0; u < ubatches; ++u) load.ubatches.push_back({64 * u, 64 * (u + 1), 64, {}, {}});
  spec.loads.push_back(load);
  spec.classes.push_back({{{0, 2}}, 0});
  return spec;
}

/// A plan of a built-in schedule with its default transport, and two ubatches where it splits.
inline Plan small_plan(const ScheduleName& schedule, int layers) {
  const int ubatches = schedule.name == kSequentialSchedule ? 1 : 2;
  return make_plan(schedule.name, small_spec(layers, ubatches, schedule.default_transport));
}

/// The stated durations of worked cases: each op another, and wires that fit behind the other ubatch's compute.
inline FixedCosts stated_costs() {
  FixedCosts c;
  c.a0 = Ns{40000};
  c.a1 = Ns{60000};
  c.mlp = Ns{80000};
  c.s = Ns{20000};
  c.dispatch.wire = Ns{60000};
  c.combine.wire = Ns{70000};
  return c;
}

}  // namespace dbo::fakes
