#include "sim/engine/bound.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "sim/base/units.h"
#include "sim/engine/flow_bound.h"
#include "sim/engine/fold.h"
#include "sim/plan/linearise.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

struct Sums {
  std::vector<std::int64_t> lanes;
  std::int64_t wires = 0, calls = 0;
  std::vector<std::array<std::int64_t, kOpKinds>> by_ubatch;  ///< time of each kind, wires in DWire and CWire
};

/// Work of the middle MoE iterations of one class on one cost group, over `layers` layers.
Sums add_up(const Plan& plan, const CostTable& costs, const Linear& linear, int cost_group, std::int32_t first,
            std::int32_t end) {
  Sums sums;
  sums.lanes.assign(plan.lanes.size(), 0);
  sums.by_ubatch.resize(static_cast<std::size_t>(costs.ubatches()));
  for (const LinearOp& op : linear.ops) {
    if (op.layer < first || op.layer >= end) continue;
    const OpKind kind = plan.ops[op.op].kind;
    const OpCost& cost = costs.at(cost_group, costs.layer_class(op.layer), op.ubatch, op.op);
    auto& own = sums.by_ubatch[op.ubatch];
    sums.lanes[op.lane] += cost.occupied().count();
    own[static_cast<std::size_t>(kind)] += cost.occupied().count();
    if (is_send(kind) || is_recv(kind)) sums.calls += cost.time.count();
    if (is_recv(kind)) {
      // With flows the data may have come before the rank's own send was done: all but its latency.
      const std::int64_t wire = (costs.flows.on() ? cost.data_floor : cost.wire).count();
      sums.wires += costs.flows.on() ? 0 : wire;
      sums.calls += wire;
      own[static_cast<std::size_t>(kind == OpKind::DRecv ? OpKind::DWire : OpKind::CWire)] += wire;
    }
  }
  return sums;
}

std::int64_t chain(const std::array<std::int64_t, kOpKinds>& own) {
  const auto at = [&](OpKind kind) { return own[static_cast<std::size_t>(kind)]; };
  using enum OpKind;
  const std::int64_t attention = at(A0) + at(A1) + at(FFN);
  const std::int64_t experts =
      at(D) + at(DSend) + at(DWire) + at(DRecv) + at(MLP) + at(C) + at(CSend) + at(CWire) + at(CRecv) + at(CCopy);
  return attention + std::max(experts, at(S));
}

}  // namespace

PeriodBound period_bound(const Plan& plan, const CostTable& costs, int in_flight) {
  PeriodBound best;
  if (plan.classes.empty() || moe_iterations(plan, 0) == 0) return best;
  const int stride = moe_stride(plan, 0);
  // As many layers as it takes until their costs repeat, each of them once.
  const int iterations = std::lcm(stride, costs.repeat_layers()) / stride;
  const Plan whole = with_moe_iterations(plan, iterations);
  const Folding folding = fold_ranks(plan, costs);
  const std::int32_t layers = iterations * stride;
  const auto consider = [&](std::int64_t work, BoundKind kind) {
    const std::int64_t per_layer = ceil_div(work, layers);
    if (per_layer > best.bound_ns) best = {per_layer, kind};
  };
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const Linear linear = linearise(whole, static_cast<int>(c));
    std::int32_t first = INT32_MAX;
    for (const LayerMark& mark : linear.marks)
      if (mark.block == moe_block(plan, static_cast<int>(c))) first = std::min(first, mark.layer);
    for (int g = folding.of_class[c].first; g < folding.of_class[c].second; ++g) {
      const Sums sums =
          add_up(whole, costs, linear, folding.groups[static_cast<std::size_t>(g)].cost_group, first, first + layers);
      for (std::size_t lane = 0; lane < sums.lanes.size(); ++lane)
        consider(sums.lanes[lane], lane == kComputeLane ? BoundKind::Compute : BoundKind::Communication);
      consider(in_flight == 1 ? sums.calls : sums.wires, BoundKind::Communication);
      for (const auto& own : sums.by_ubatch) consider(chain(own), BoundKind::Chain);
    }
    if (!costs.flows.on() || c > 0) continue;
    const FlowBounds flows = flow_bounds(whole, costs, linear, first, first + layers);
    consider(flows.ports, BoundKind::Communication);
    if (in_flight == 1) consider(flows.calls, BoundKind::Communication);
    for (const std::int64_t chain : flows.chains) consider(chain, BoundKind::Chain);
  }
  return best;
}

}  // namespace dbo
