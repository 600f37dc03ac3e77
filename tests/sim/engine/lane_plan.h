// Plans of a few ops on named lanes, launched in order by one thread: for times worked out by hand.
#pragma once

#include <string>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/engine/engine.h"

namespace dbo::fakes {

struct LaneOp {
  std::string name;
  OpKind kind = OpKind::Other;
  LaneId lane = kComputeLane;
  int us = 0;
  OpDemand demand;
  int beside_us = 0;
};

/// Every op once, in the order given; D and C are comm kernels of all ranks.
struct LanePlan {
  Plan plan;
  CostTable costs;

  OpCost& cost(const std::string& name, int rank = 0) { return costs.at(rank, 0, 0, *plan.find_op(name)); }
};

inline Plan lane_ops(const std::vector<LaneOp>& ops, int ranks) {
  Plan plan;
  plan.world = {ranks, ranks};
  plan.transport = Transport::LsaHt;
  plan.shape.layers = 1;
  plan.lanes = {"compute", "comm", "third"};
  plan.loads.push_back({{{0, 1, 1, {}, {}}}});
  Thread thread;
  for (const LaneOp& op : ops) {
    OpDef def;
    def.name = op.name;
    def.kind = op.kind;
    def.lane = op.lane;
    def.sms = is_comm(op.kind) ? SmPool::Comm : SmPool::Compute;
    const auto id = static_cast<OpId>(plan.ops.size());
    if (is_collective(op.kind)) def.pairs = id;
    plan.ops.push_back(def);
    Instruction launch;
    launch.verb = Verb::Launch;
    launch.op = {id, 0, 0};
    thread.body.push_back(launch);
  }
  plan.threads.push_back(thread);
  plan.classes.push_back({{{0, ranks}}, {0}, 0});
  return plan;
}

inline LanePlan lane_plan(const std::vector<LaneOp>& ops, const MachineRates& machine, int ranks = 1) {
  Plan plan = lane_ops(ops, ranks);
  std::vector<int> groups;
  for (int r = 0; r < ranks; ++r) groups.push_back(r);
  CostTable costs(plan, groups, {0});
  costs.machine = machine;
  costs.host_blocks = false;
  for (int r = 0; r < ranks; ++r)
    for (OpId op = 0; op < plan.ops.size(); ++op) {
      costs.at(r, 0, 0, op).time = Ns{ops[op].us * 1000};
      costs.at(r, 0, 0, op).beside = Ns{ops[op].beside_us * 1000};
      costs.at(r, 0, 0, op).demand = ops[op].demand;
    }
  return {std::move(plan), std::move(costs)};
}

}  // namespace dbo::fakes
