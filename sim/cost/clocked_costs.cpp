#include "sim/cost/clocked_costs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/cost/pace.h"

namespace dbo {
namespace {

double count(Ns time) {
  return static_cast<double>(time.count());
}

Ns to_ns(double ns) {
  return ns_from_us(ns / 1000);
}

}  // namespace

double ClockedCost::mhz(const PowerState& power, double relaxed_duty) const {
  if (power.sm_mhz > 0) return power.sm_mhz;
  if (dense_mhz <= 0 || relaxed_mhz <= 0) return 0;
  return dense_mhz + (relaxed_mhz - dense_mhz) * std::min((1 - power.duty) / (1 - relaxed_duty), 1.0);
}

Ns ClockedCost::time_at(double mhz) const {
  return to_ns(mhz > 0 && curve.known() ? curve.at(mhz) : curve.dense.ns);
}

Ns ClockedCost::beside_at(double mhz, Ns time_then) const {
  if (!in_company) return time > Ns{0} ? to_ns(count(beside) * count(time_then) / count(time)) : beside;
  // What company costs, at one clock.
  if (mhz > 0 && curve.known() && company.mhz > 0 && curve.at(company.mhz) > 0)
    return to_ns(company.ns * (count(time_then) / curve.at(company.mhz)));
  return to_ns(company.ns);
}

ClockedCosts::ClockedCosts(CostTable table, std::vector<ClockedCost> costs, int relaxed_duty, double loss_share,
                           std::vector<bool> computes)
    : table_(std::move(table)),
      costs_(std::move(costs)),
      relaxed_duty_(relaxed_duty),
      loss_share_(loss_share),
      computes_(std::move(computes)) {
  each_computation([this](OpCost& cost) {
    if (cost.curve < 0) cost.beside = with_loss(cost.time, cost.beside);
  });
}

template <typename Change>
void ClockedCosts::each_computation(const Change& change) {
  for (int group = 0; group < table_.groups(); ++group)
    for (int layers = 0; layers < table_.layer_classes(); ++layers)
      for (int ubatch = 0; ubatch < table_.ubatches(); ++ubatch)
        for (OpId op = 0; op < computes_.size(); ++op)
          if (computes_[op]) change(table_.at(group, layers, ubatch, op));
}

Ns ClockedCosts::with_loss(Ns time, Ns beside) const {
  return loss_share_ < 1 && beside > time ? time + to_ns(count(beside - time) * loss_share_) : beside;
}

void ClockedCosts::set(const PowerState& power) {
  if (costs_.empty()) return;
  std::vector<std::pair<Ns, Ns>> prices;
  prices.reserve(costs_.size());
  double slowest = 0;
  for (const ClockedCost& c : costs_) {
    const double mhz = has_clocks() ? c.mhz(power, relaxed_duty_ / 100.0) : 0;
    if (mhz > 0) slowest = slowest > 0 ? std::min(slowest, mhz) : mhz;
    Ns time = c.time_at(mhz), beside = c.beside_at(mhz, time);
    if (time > Ns{0}) {
      time += c.gaps;
      if (beside > Ns{0}) beside += c.gaps;
    }
    time = slower(time, c.pace);
    prices.emplace_back(time, with_loss(time, slower(beside, c.pace)));
  }
  each_computation([&](OpCost& cost) {
    if (cost.curve >= 0) std::tie(cost.time, cost.beside) = prices[static_cast<std::size_t>(cost.curve)];
  });
  table_.sm_mhz = static_cast<int>(slowest + 0.5);
}

}  // namespace dbo
