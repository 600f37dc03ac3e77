#include "validate/starvation.h"

#include <fmt/format.h>

#include <algorithm>

#include "traces/ready_times.h"

namespace dbo::validate {
namespace {

// A launch behind a wait takes some microseconds; events and %globaltimer are read to one each.
constexpr double kSlackUs = 12;
constexpr double kShareOfKernel = 0.1;

}  // namespace

std::optional<std::string> find_starvation(const Plan& plan, const Linear& linear, const std::vector<double>& entry_us,
                                           const Trace& predicted, std::int32_t rank) {
  const RankOps ops(predicted, rank, linear.ops.size());
  const std::vector<SimTime> ready = ready_times(plan, linear, ops);
  int known = 0, starved = 0;
  double longest = 0;
  std::uint32_t worst = 0;
  for (std::uint32_t op = 0; op < linear.ops.size() && op < entry_us.size(); ++op) {
    const TraceOp* planned = ops[op];
    if (entry_us[op] < 0 || planned == nullptr || !is_collective(planned->kind)) continue;
    ++known;
    const auto us = [](Ns time) { return static_cast<double>(time.count()) / 1000; };
    // The engine starts a kernel when it has SMs.
    const double foretold = ready[op] == SimTime::min() ? 0 : std::max(0.0, us(planned->start - ready[op]));
    const double allowed = foretold + std::max(kSlackUs, kShareOfKernel * us(planned->end - planned->start));
    if (entry_us[op] <= allowed) continue;
    ++starved;
    if (entry_us[op] <= longest) continue;
    longest = entry_us[op];
    worst = op;
  }
  if (known == 0 || 2 * starved < known) return std::nullopt;
  return fmt::format(
      "F17 SM starvation: {} of {} dispatch kernels found no SM when their turn came; {} waited {:.1f} us", starved,
      known, describe(plan, linear.ops[worst]), longest);
}

}  // namespace dbo::validate
