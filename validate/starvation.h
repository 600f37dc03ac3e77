// F17 in a replay: comm kernels whose lane was free for them and which still did not run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo::validate {

/// "F17 SM starvation: ...", when at least half of the comm kernels whose entry is known ran their first block later
/// than their lane was free for them, by more than predicted and more than it takes to launch and to read two clocks
/// (or a tenth of the predicted kernel). `entry_us` by plan_op, negative: unknown. `predicted` is a trace of the same
/// plan, `rank` the rank of it that `linear` and `entry_us` are of.
std::optional<std::string> find_starvation(const Plan& plan, const Linear& linear, const std::vector<double>& entry_us,
                                           const Trace& predicted, std::int32_t rank);

}  // namespace dbo::validate
