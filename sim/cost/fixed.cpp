#include "sim/cost/fixed.h"

#include <algorithm>

#include "sim/cost/host_costs.h"
#include "sim/plan/linearise.h"

namespace dbo {
namespace {

/// One op's stated cost.
OpCost stated_cost(OpKind kind, const FixedCosts& c) {
  const auto whole = [](const FixedCosts::Exchange& e) { return e.send + e.wire + e.recv; };
  OpCost cost;
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
      cost.time = whole(c.dispatch);
      break;
    case OpKind::C:
      cost.time = whole(c.combine);
      break;
    case OpKind::DSend:
      cost.time = c.dispatch.send;
      break;
    case OpKind::CSend:
      cost.time = c.combine.send;
      break;
    case OpKind::DRecv:
      cost.time = c.dispatch.recv;
      cost.wire = c.dispatch.wire;
      break;
    case OpKind::CRecv:
      cost.time = c.combine.recv;
      cost.wire = c.combine.wire;
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
  return cost;
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

CostTable fixed_costs(const Plan& plan, const FixedCosts& costs, int ubatches_in_one) {
  CostTable table = uniform_table(plan);
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    OpCost cost = stated_cost(plan.ops[op].kind, costs);
    cost.time *= ubatches_in_one;
    cost.wire *= ubatches_in_one;
    for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch) table.at(0, 0, ubatch, op) = cost;
  }
  table.host.launch = costs.host;
  table.host_blocks = false;
  table.assumptions.emplace_back("Durations are stated, not worked out: the same on every rank and layer.");
  if (ubatches_in_one > 1)
    table.assumptions.emplace_back("The un-split batch takes as long as its " + std::to_string(ubatches_in_one) +
                                   " ubatches together.");
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
