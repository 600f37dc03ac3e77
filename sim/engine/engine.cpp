#include "sim/engine/engine.h"

#include <algorithm>

#include "sim/engine/plain.h"

namespace dbo {
std::int64_t EngineResult::step() const {
  return step_ns.empty() ? 0 : *std::max_element(step_ns.begin(), step_ns.end());
}

int EngineResult::slowest() const {
  return static_cast<int>(std::max_element(step_ns.begin(), step_ns.end()) - step_ns.begin());
}

EngineResult run_engine(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  return run_plain(plan, costs, options);
}

}  // namespace dbo
