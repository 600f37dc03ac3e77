#include "sim/search/sm_split.h"

#include <algorithm>

namespace dbo {

std::optional<int> SmSplit::knee() const {
  constexpr double kFlat = 1.05;
  if (points.empty()) return std::nullopt;
  std::int64_t least = points.front().comm_ns;
  for (const SmSplitPoint& p : points) least = std::min(least, p.comm_ns);
  for (const SmSplitPoint& p : points)
    if (static_cast<double>(p.comm_ns) <= kFlat * static_cast<double>(least)) return p.comm_sms;
  return std::nullopt;
}

std::optional<int> SmSplit::crossover() const {
  for (const SmSplitPoint& p : points)
    if (p.comm_ns <= p.compute_ns) return p.comm_sms;
  return std::nullopt;
}

bool has_sm_split(const Plan& plan) {
  if (plan.sm.control == SmControl::None || plan.sm.comm <= 0) return false;
  return std::any_of(plan.ops.begin(), plan.ops.end(),
                     [](const OpDef& op) { return is_collective(op.kind) && op.sms == SmPool::Comm; });
}

SmSplitProbe::SmSplitProbe(const Plan& plan, const MachineSpec& machine)
    : machine_(machine), ubatches_(plan_ubatches(plan)) {
  const bool partition = plan.sm.control == SmControl::GreenContext;
  const int step = partition ? std::max(machine.gpu.green_context_granularity, 1) : 2;
  constexpr int kMost = 48;
  for (int sms = step; sms <= std::min(kMost, machine.gpu.sms - step); sms += step) sums_.points.push_back({sms, 0, 0});
}

CostHook SmSplitProbe::hook() {
  return [this](const CostCell& cell, OpCost&) { add(cell); };
}

void SmSplitProbe::add(const CostCell& cell) {
  if (cell.rank != 0 || !cell.context->moe_layer) return;
  const OpKind kind = cell.op->kind;
  if (kind == OpKind::D) ++dispatches_;
  if (kind == OpKind::EMB || kind == OpKind::HEAD || kind == OpKind::FFN) return;
  for (SmSplitPoint& point : sums_.points) {
    if (is_comm(kind)) {
      point.comm_ns += price_exchange(kind, *cell.exchange, cell.rank, machine_, point.comm_sms).occupied().count();
    } else if (is_compute(kind)) {
      // Kernels that ignore the limit run on all SMs.
      const int sms = cell.op->sms == SmPool::Compute ? machine_.gpu.sms - point.comm_sms : cell.sms;
      point.compute_ns += price_compute(kind, *cell.context, machine_, sms).time.count();
    }
  }
}

SmSplit SmSplitProbe::take() const {
  SmSplit out;
  if (dispatches_ == 0) return out;
  out = sums_;
  for (SmSplitPoint& point : out.points) {
    point.comm_ns = point.comm_ns * ubatches_ / dispatches_;
    point.compute_ns = point.compute_ns * ubatches_ / dispatches_;
  }
  return out;
}

}  // namespace dbo
