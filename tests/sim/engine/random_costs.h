// Random plans and cost tables for property tests: every schedule, unequal ranks, layers that alternate, host costs.
#pragma once

#include <algorithm>

#include "sim/base/hash.h"
#include "sim/cost/cost_table.h"
#include "sim/engine/engine.h"
#include "tests/fakes/small_plans.h"

namespace dbo::fakes {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(mix_below(seed_, counter_++, static_cast<std::uint64_t>(bound)));
  }
  bool one_in(int n) { return below(n) == 0; }

 private:
  std::uint64_t seed_, counter_ = 0;
};

struct RandomCase {
  Plan plan;
  CostTable costs;
};

struct RandomOptions {
  int layers = 6;
  int ranks = 3;           ///< each with costs of its own
  bool demands = false;    ///< SMs, memory, ports
  bool alternate = false;  ///< layers of two sorts in turn
  bool host = true;
  int most_ns = 5000;
};

inline OpDemand random_demand(const OpDef& op, const OpCost& cost, Draw& draw) {
  OpDemand d;
  const std::int64_t ns = std::max<std::int64_t>(cost.time.count(), 1);
  d.hbm_bytes = ns * draw.below(1000);
  d.sms = op.sms == SmPool::None ? 0 : op.sms == SmPool::Comm ? 20 : 112 + static_cast<int>(draw.below(21));
  if (is_comm(op.kind)) {
    d.link_bytes = ns * draw.below(100);
    d.nic_bytes = ns * draw.below(40);
    d.cooperative = is_collective(op.kind) && draw.one_in(3);
  } else {
    d.tiles = draw.one_in(2) ? static_cast<int>(draw.below(1000)) : 0;
    d.sm_share = static_cast<int>(draw.below(1025));
    d.block = Ns{draw.below(ns + 1)};
  }
  return d;
}

inline MachineRates small_machine() {
  return {.sms = 132,
          .hbm_bytes_per_s = 1'000'000'000'000,
          .sm_bytes_per_s = 20'000'000'000,
          .link_bytes_per_s = 100'000'000'000,
          .nic_bytes_per_s = 40'000'000'000};
}

inline RandomCase random_case(const ScheduleName& schedule, const RandomOptions& options, std::uint64_t seed) {
  Draw draw(seed);
  const int ubatches = schedule.name == kSequentialSchedule ? 1 : 2;
  ScheduleSpec spec = small_spec(options.layers, ubatches, schedule.default_transport);
  spec.world = {options.ranks, options.ranks};
  spec.classes = {{{{0, options.ranks}}, 0}};
  spec.shape.moe.routed_experts = options.ranks;
  if (draw.one_in(3)) spec.execution = Execution::Graph;
  spec.sm.control = static_cast<SmControl>(draw.below(3));
  spec.sm.comm = 20;
  spec.sm.compute = spec.sm.control == SmControl::None ? 132 : 108;
  if (options.layers > 4 && draw.one_in(3)) spec.shape.dense_layers = 1;
  RandomCase out{make_plan(schedule.name, spec), uniform_table(make_plan(schedule.name, spec))};
  std::vector<int> groups, classes;
  for (int r = 0; r < options.ranks; ++r) groups.push_back(r);
  for (int l = 0; l < options.layers; ++l) classes.push_back(options.alternate ? l % 2 : 0);
  out.costs = CostTable(out.plan, groups, classes);
  for (int g = 0; g < out.costs.groups(); ++g)
    for (int c = 0; c < out.costs.layer_classes(); ++c)
      for (int u = 0; u < out.costs.ubatches(); ++u)
        for (OpId op = 0; op < out.plan.ops.size(); ++op) {
          OpCost& cost = out.costs.at(g, c, u, op);
          const auto next = [&] { return Ns{draw.one_in(8) ? 0 : draw.below(options.most_ns)}; };
          cost.time = next();
          if (is_recv(out.plan.ops[op].kind)) cost.wire = next();
          if (is_collective(out.plan.ops[op].kind)) {
            cost.notify = cost.time / 3;
            cost.peers = cost.time * static_cast<std::int64_t>(seed % 3) / 4;
          }
          if (!options.demands) continue;
          cost.demand = random_demand(out.plan.ops[op], cost, draw);
          if (draw.one_in(2)) cost.beside = cost.time * (100 + draw.below(40)) / 100;
          const std::int64_t wire = cost.wire.count();
          cost.wire_traffic = {wire * draw.below(300), wire * draw.below(60), wire * draw.below(40)};
        }
  if (options.demands) out.costs.machine = small_machine();
  if (options.host && draw.one_in(2)) {
    out.costs.host = {Ns{draw.below(500)}, Ns{draw.below(100)}, Ns{draw.below(100)}, Ns{draw.below(300)},
                      Ns{draw.below(900)}, Ns{draw.below(80)},  Ns{draw.below(120)}};
    out.costs.host_blocks = draw.one_in(2);
  }
  return out;
}

/// Everything of all groups.
inline EngineResult run_recorded(const RandomCase& c, Executor executor, bool extrapolate) {
  EngineOptions options;
  options.executor = executor;
  options.extrapolate = extrapolate;
  for (int g = 0; g < c.costs.groups(); ++g) options.record.push_back(g);
  return run_engine(c.plan, c.costs, options);
}

}  // namespace dbo::fakes
