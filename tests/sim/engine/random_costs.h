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
  bool loaded = false;  ///< comm kernels that wait for memory instead of losing what overlap costs
  bool flows = false;   ///< data moves from rank to rank, at any sizes
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
    d.blocks_per_sm = 1 + static_cast<int>(d.link_bytes % 4);
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

/// Flows from each rank to most others, some large, some none.
inline void add_random_flows(const Plan& plan, CostTable& costs, int most_ns, Draw& draw) {
  FlowCosts& flows = costs.flows;
  const int groups = costs.groups();
  for (int port = 0; port < 2 * groups; ++port) flows.ports.push_back((1 + draw.below(4)) << 20);
  flows.meet = draw.one_in(2);
  for (int call = 0; call < costs.layer_classes() * costs.ubatches() * 2; ++call) {
    flows.of_call.push_back(call);
    std::vector<PairFlow>& list = flows.exchanges.emplace_back();
    for (std::int32_t from = 0; from < groups; ++from)
      for (std::int32_t to = 0; to < groups; ++to)
        if (from != to && !draw.one_in(6))
          list.push_back(
              {from, to, from, groups + to, draw.below(most_ns) << 20, static_cast<std::int32_t>(draw.below(1 << 28))});
  }
  for (int g = 0; g < groups; ++g)
    for (int c = 0; c < costs.layer_classes(); ++c)
      for (int u = 0; u < costs.ubatches(); ++u)
        for (OpId op = 0; op < plan.ops.size(); ++op) {
          OpCost& cost = costs.at(g, c, u, op);
          if (is_comm(plan.ops[op].kind)) cost.data_after = Ns{draw.below(cost.time.count() + 1)};
          if (draw.one_in(2)) cost.data_floor = Ns{draw.below(500)};
        }
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
          if (options.loaded && is_collective(out.plan.ops[op].kind))
            cost.demand.loaded = static_cast<int>(draw.below(1025));
          if (draw.one_in(2)) cost.beside = cost.time * (100 + draw.below(40)) / 100;
          const std::int64_t wire = cost.wire.count();
          cost.wire_traffic = {wire * draw.below(300), wire * draw.below(60), wire * draw.below(40)};
        }
  if (options.demands) out.costs.machine = small_machine();
  if (options.flows) add_random_flows(out.plan, out.costs, options.most_ns, draw);
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
