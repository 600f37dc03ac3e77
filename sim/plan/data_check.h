// Who touches which buffer when, by vector clocks over the lanes of one rank.
#pragma once

#include "sim/plan/findings.h"
#include "sim/plan/linearise.h"

namespace dbo {

/// Finds F3, F5, F6, F7 (late or missing receives), F8 and F14 in the order of one class of ranks. `linear` must have
/// no problems.
void check_data(const Plan& plan, const RankClass& rank_class, const Linear& linear, Findings& findings);

}  // namespace dbo
