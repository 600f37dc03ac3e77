#include "sim/engine/period.h"

#include <algorithm>
#include <numeric>

#include "sim/engine/engine.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

constexpr int kFirstTry = 32;
constexpr int kLimit = 2048;  ///< iterations; patterns of real costs repeat after one or two

/// The mean over the later half of the iterations that were simulated, in whole cycles of `repeat` of them, after which
/// their costs repeat.
Period mean_period(const std::vector<std::int64_t>& mark_ns, int stride, int repeat) {
  if (mark_ns.size() < 8) return {};
  int iterations = static_cast<int>(mark_ns.size() - 1 - mark_ns.size() / 2);
  if (iterations > repeat) iterations -= iterations % repeat;
  const std::int64_t cycle = mark_ns.back() - mark_ns[mark_ns.size() - 1 - static_cast<std::size_t>(iterations)];
  return {ceil_div(cycle, iterations * stride), cycle, iterations * stride, false};
}

}  // namespace

Period steady_period_time(const Plan& plan, const CostTable& costs) {
  Period period;
  if (plan.classes.empty() || moe_iterations(plan, 0) == 0) return period;
  const int stride = moe_stride(plan, 0);
  EngineOptions options;
  options.stop_at_repeat = true;
  const int repeat = std::lcm(stride, costs.repeat_layers()) / stride;
  const int first_try = std::max(kFirstTry, std::min(2 * repeat + 2, kLimit));
  // Every pair of ranks in every layer: what does not repeat soon is not worth the wait.
  const int limit = costs.flows.on() && costs.groups() > 1 ? first_try : kLimit;
  for (int iterations = first_try; iterations <= limit; iterations *= 8) {
    const EngineResult run = run_engine(with_moe_iterations(plan, iterations), costs, options);
    if (run.repeat) {
      const int layers = run.repeat->iterations * stride;
      return {ceil_div(run.repeat->cycle_ns, layers), run.repeat->cycle_ns, layers, true};
    }
    period = mean_period(run.mark_ns, stride, repeat);
  }
  return period;
}

}  // namespace dbo
