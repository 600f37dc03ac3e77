#include "sim/engine/period.h"

#include <algorithm>

#include "sim/engine/engine.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

constexpr int kFirstTry = 32;
constexpr int kLimit = 2048;  ///< iterations; patterns of real costs repeat after one or two

/// The mean over the later half of the iterations that were simulated.
Period mean_period(const std::vector<std::int64_t>& mark_ns, int stride) {
  if (mark_ns.size() < 8) return {};
  const std::size_t middle = mark_ns.size() / 2;
  const std::int64_t cycle = mark_ns.back() - mark_ns[middle];
  const int layers = static_cast<int>(mark_ns.size() - 1 - middle) * stride;
  return {ceil_div(cycle, layers), cycle, layers, false};
}

}  // namespace

Period steady_period_time(const Plan& plan, const CostTable& costs) {
  Period period;
  if (plan.classes.empty() || moe_iterations(plan, 0) == 0) return period;
  const int stride = moe_stride(plan, 0);
  EngineOptions options;
  options.stop_at_repeat = true;
  // Every pair of ranks in every layer: what does not repeat soon is not worth the wait.
  const int limit = costs.flows.on() && costs.groups() > 1 ? kFirstTry : kLimit;
  for (int iterations = kFirstTry; iterations <= limit; iterations *= 8) {
    const EngineResult run = run_engine(with_moe_iterations(plan, iterations), costs, options);
    if (run.repeat) {
      const int layers = run.repeat->iterations * stride;
      return {ceil_div(run.repeat->cycle_ns, layers), run.repeat->cycle_ns, layers, true};
    }
    period = mean_period(run.mark_ns, stride);
  }
  return period;
}

}  // namespace dbo
