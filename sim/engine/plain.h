// The executor for plans in which nothing is shared.
#pragma once

#include "sim/engine/engine.h"

namespace dbo {

/// One pass over the host order of each program, all its rank groups side by side.
EngineResult run_plain(const Plan& plan, const CostTable& costs, const EngineOptions& options);

}  // namespace dbo
