#include "sim/cost/fixed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/cost/host_costs.h"
#include "sim/cost/pace.h"
#include "sim/plan/linearise.h"

namespace dbo {
namespace {

/// How much longer things take on a rank, and a wire on the slowest one.
struct Slowness {
  double compute = 1, wire = 1, slowest_wire = 1;
  int slowest = -1;  ///< the rank, of several the first
};

/// A wire that waits for the slowest port of all.
void set_wire(OpCost& cost, Ns OpCost::*field, Ns stated, const Slowness& slow) {
  cost.*field += slower(stated, slow.slowest_wire);
  cost.for_peers = slower(stated, slow.slowest_wire) - slower(stated, slow.wire);
  if (cost.for_peers > Ns{0}) cost.slowest = slow.slowest;
}

/// One op's stated cost.
OpCost stated_cost(OpKind kind, const FixedCosts& c, const Slowness& slow) {
  OpCost cost;
  const auto set_whole = [&](const FixedCosts::Exchange& e) {
    cost.time = e.send + e.recv;
    cost.data_after = e.send;
    cost.data_floor = e.recv;
    set_wire(cost, &OpCost::time, e.wire, slow);
  };
  switch (kind) {
    case OpKind::A0:
      cost.time = c.a0;
      break;
    case OpKind::A1:
      cost.time = c.a1;
      break;
    case OpKind::MLP:
      cost.time = c.mlp;
      break;
    case OpKind::S:
      cost.time = c.s;
      break;
    case OpKind::FFN:
      cost.time = c.ffn;
      break;
    case OpKind::D:
      set_whole(c.dispatch);
      break;
    case OpKind::C:
      set_whole(c.combine);
      break;
    case OpKind::DSend:
      cost.time = cost.data_after = c.dispatch.send;
      break;
    case OpKind::CSend:
      cost.time = cost.data_after = c.combine.send;
      break;
    case OpKind::DRecv:
      cost.time = c.dispatch.recv;
      set_wire(cost, &OpCost::wire, c.dispatch.wire, slow);
      break;
    case OpKind::CRecv:
      cost.time = c.combine.recv;
      set_wire(cost, &OpCost::wire, c.combine.wire, slow);
      break;
    case OpKind::DWire:
      cost.time = c.dispatch.wire;
      break;
    case OpKind::CWire:
      cost.time = c.combine.wire;
      break;
    case OpKind::CCopy:
      cost.time = c.combine.copy;
      break;
    case OpKind::EMB:
    case OpKind::HEAD:
    case OpKind::Other:
      break;
  }
  if (is_compute(kind)) cost.time = slower(cost.time, slow.compute);
  return cost;
}

/// A table in which ranks of equal pace share a group, or none do.
CostTable paced_table(const Plan& plan, const Pace& pace, bool apart) {
  std::vector<int> groups;
  for (int rank = 0; rank < plan.world.ranks; ++rank) groups.push_back(apart ? rank : pace.kind(rank));
  return CostTable(plan, groups, std::vector<int>(static_cast<std::size_t>(std::max(plan.shape.layers, 1)), 0));
}

/// Stated wires as flows: at full rate a port carries all its flows in the stated time. `apart`: one to each other
/// rank.
void add_flows(const Plan& plan, const FixedCosts& costs, const Pace& pace, bool apart, int ubatches_in_one,
               CostTable& table) {
  FlowCosts& flows = table.flows;
  flows.meet = plan.transport == Transport::Ht || plan.transport == Transport::Nccl;
  const int groups = table.groups(), peers = apart ? groups - 1 : 1;
  for (int port = 0; port < 2 * groups; ++port)
    flows.ports.push_back(std::max<std::int64_t>(
        1, std::llround(static_cast<double>(peers) * 0x1p20 / (apart ? pace.wire(port % groups) : 1))));
  for (const FixedCosts::Exchange* e : {&costs.combine, &costs.dispatch}) {
    std::vector<PairFlow>& list = flows.exchanges.emplace_back();
    // Beyond that it is refused for its time.
    const std::int64_t work = std::min(e->wire.count() * ubatches_in_one, std::int64_t{1} << 42) << 20;
    if (work == 0) continue;
    for (int from = 0; from < groups; ++from)
      for (int to = 0; to < groups; ++to)
        if (!apart || from != to) list.push_back({from, to, from, groups + to, work});
  }
  for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch)
    for (const int direction : {0, 1}) flows.of_call.push_back(direction);
}

Ns read_us(const JsonRef& ref) {
  return ns_from_us(ref.number(0, 1e9));
}

OpCost read_op_cost(const JsonRef& ref) {
  OpCost cost;
  if (ref.value().is_number()) {
    cost.time = read_us(ref);
    return cost;
  }
  ObjectReader reader(ref, "a time in us or an object of times");
  if (const auto value = reader.find("time_us")) cost.time = read_us(*value);
  if (const auto value = reader.find("wire_us")) cost.wire = read_us(*value);
  if (const auto value = reader.find("peers_us")) cost.peers = read_us(*value);
  if (const auto value = reader.find("notify_us")) cost.notify = read_us(*value);
  reader.done();
  return cost;
}

void read_ops(const JsonRef& ref, const Plan& plan, CostTable& table) {
  ObjectReader reader(ref, "an object with a cost for each op");
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    const auto value = reader.find(plan.ops[op].name);
    if (!value) continue;
    const OpCost cost = read_op_cost(*value);
    for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch) table.at(0, 0, ubatch, op) = cost;
  }
  reader.done();
}

CostTable read_op_table(ObjectReader& reader, const Plan& plan) {
  CostTable table = uniform_table(plan);
  bool any = false;
  if (const auto ops = reader.find("ops")) {
    read_ops(*ops, plan, table);
    any = true;
  }
  if (const auto launches = reader.find("launches_us")) {
    const auto items = launches->items();
    std::size_t longest = 0;
    for (std::size_t c = 0; c < plan.classes.size(); ++c)
      longest = std::max(longest, linearise(plan, static_cast<int>(c)).ops.size());
    if (items.size() != longest)
      launches->fail("must have one time for each of the plan's " + std::to_string(longest) + " launches, has " +
                     std::to_string(items.size()));
    for (const JsonRef& launch : items) table.by_plan_op.push_back(launch.value().is_null() ? Ns{-1} : read_us(launch));
    any = true;
  }
  if (const auto host = reader.find("host")) table.host = read_host_costs(*host);
  if (!any) reader.ref().fail("needs \"ops\" or \"launches_us\"");
  return table;
}

}  // namespace

CostTable fixed_costs(const Plan& plan, const FixedCosts& costs, const FixedSettings& settings) {
  const Pace pace(settings.stragglers, plan.world.ranks, plan.tensor_parallel);
  const bool alike = pace.even() && plan.classes.size() == 1, apart = settings.flows && !alike;
  if (apart) check_flow_ranks(plan);
  CostTable table = paced_table(plan, pace, apart);
  Slowness slow;
  for (int rank = plan.world.ranks; rank-- > 0;)
    if (pace.wire(rank) == pace.slowest_wire()) slow.slowest = rank;
  const auto& groups = table.group_of_rank();
  for (int rank = 0; rank < (table.groups() == 1 ? 1 : plan.world.ranks); ++rank) {
    for (OpId op = 0; op < plan.ops.size(); ++op) {
      slow.compute = pace.compute(plan.ops[op].kind, rank);
      slow.wire = pace.wire(rank);
      slow.slowest_wire = settings.flows ? slow.wire : pace.slowest_wire();
      OpCost cost = stated_cost(plan.ops[op].kind, costs, slow);
      for (Ns* time : {&cost.time, &cost.wire, &cost.for_peers, &cost.data_after, &cost.data_floor})
        *time *= settings.ubatches_in_one;
      for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch)
        table.at(groups[static_cast<std::size_t>(rank)], 0, ubatch, op) = cost;
    }
  }
  if (settings.flows) add_flows(plan, costs, pace, apart, settings.ubatches_in_one, table);
  table.host.launch = costs.host;
  table.host_blocks = false;
  table.assumptions.emplace_back("Durations are stated, not worked out: the same on every rank and layer.");
  for (std::string& sentence : straggler_sentences(settings.stragglers))
    table.assumptions.push_back(std::move(sentence));
  if (settings.ubatches_in_one > 1)
    table.assumptions.emplace_back("The un-split batch takes as long as its " +
                                   std::to_string(settings.ubatches_in_one) + " ubatches together.");
  return table;
}

CostTable costs_from_file(const Plan& plan, const std::string& path) {
  ObjectReader reader(JsonRef(load_json(path, {.comments = true})), "an object of costs");
  const bool by_kind = reader.require("source").one_of({"fixed", "ops"}, "source of costs") == 0;
  CostTable table = by_kind ? fixed_costs(plan, read_fixed_costs(reader)) : read_op_table(reader, plan);
  reader.done();
  return table;
}

}  // namespace dbo
