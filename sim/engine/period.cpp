#include "sim/engine/period.h"

#include <algorithm>
#include <vector>

#include "sim/engine/engine.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

struct Snapshot {
  std::vector<std::int64_t> host, state;
  std::int64_t reference = 0;  ///< the latest time in the state
};

/// Whether the run goes on from `b` as it did from `a`, only later. Lanes, events, arrivals and ports must lie equally
/// behind the latest time. A host clock may differ when it is so far behind in both that it cannot matter within a
/// cycle and does not catch up: `span` is more than all the work of the cycle.
bool repeats(const Snapshot& a, const Snapshot& b, std::int64_t span) {
  if (a.state.size() != b.state.size()) return false;
  const std::int64_t shift = b.reference - a.reference;
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    if (b.state[i] - a.state[i] == shift) continue;
    // A lane that is used no more, or was never used, stays where it was.
    if (a.state[i] == b.state[i] && a.reference - a.state[i] > span) continue;
    return false;
  }
  for (std::size_t g = 0; g < a.host.size(); ++g) {
    const std::int64_t moved = b.host[g] - a.host[g];
    if (moved == shift) continue;
    if (moved < shift && a.reference - a.host[g] > span) continue;
    return false;
  }
  return true;
}

constexpr int kFirstTry = 32;
constexpr int kLimit = 2048;  ///< iterations; patterns of real costs repeat after one or two

}  // namespace

Period steady_period_time(const Plan& plan, const CostTable& costs) {
  Period period;
  if (plan.classes.empty() || moe_iterations(plan, 0) == 0) return period;
  const int stride = moe_stride(plan, 0);
  // Layers with costs of their own must line up for a state to repeat.
  const int layer_step = costs.repeat_layers();
  for (int iterations = kFirstTry; iterations <= kLimit; iterations *= 8) {
    std::vector<Snapshot> seen;
    bool found = false;
    EngineOptions options;
    options.on_mark = [&](int, const std::vector<std::int64_t>& host, const std::vector<std::int64_t>& state) {
      Snapshot now{host, state, state.empty() ? 0 : *std::max_element(state.begin(), state.end())};
      // The host may lead; then it is the latest.
      for (const std::int64_t h : host) now.reference = std::max(now.reference, h);
      for (std::size_t back = 1; back <= seen.size() && !found; ++back) {
        const Snapshot& before = seen[seen.size() - back];
        const int layers = static_cast<int>(back) * stride;
        if (layer_step > 1 && layers % layer_step != 0) continue;
        const std::int64_t cycle = now.reference - before.reference;
        if (!repeats(before, now, 2 * cycle)) continue;
        period = {ceil_div(cycle, layers), cycle, layers, true};
        found = true;
      }
      seen.push_back(std::move(now));
      return !found;
    };
    const Plan longer = with_moe_iterations(plan, iterations);
    run_engine(longer, costs, options);
    if (found) return period;
    if (seen.size() >= 8) {
      const Snapshot& middle = seen[seen.size() / 2];
      const std::int64_t cycle = seen.back().reference - middle.reference;
      const int layers = static_cast<int>(seen.size() - 1 - seen.size() / 2) * stride;
      period = {ceil_div(cycle, layers), cycle, layers, false};
    }
  }
  return period;
}

}  // namespace dbo
