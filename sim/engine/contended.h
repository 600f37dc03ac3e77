// The executor for plans whose ops share SMs, memory bandwidth or ports.
#pragma once

#include "sim/engine/engine.h"

namespace dbo {

/// Discrete events on each rank. Ranks run ahead on their own until they need to know when others have sent, started or
/// finished a call; then all meet, at a cost proportional to the ranks.
EngineResult run_contended(const Plan& plan, const CostTable& costs, const EngineOptions& options);

}  // namespace dbo
