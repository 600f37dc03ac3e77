// The steady period of a plan: the time one more MoE layer takes once the pattern repeats.
#pragma once

#include <cstdint>

#include "sim/cost/cost_table.h"

namespace dbo {

struct Period {
  std::int64_t period_ns = 0;  ///< cycle over layers, rounded up; 0 when the plan repeats no MoE layer
  std::int64_t cycle_ns = 0;   ///< time after which the state repeats
  int layers = 0;              ///< layers of a cycle: the smallest number after which the state repeats
  bool exact = true;           ///< false: no repeat was found within the limit, and the period is a mean
};

/// As if the MoE layers went on without end, ranks waiting for each other as in the step. Layers must cost the same;
/// where they do not, the costs repeat as the model's layers do.
Period steady_period_time(const Plan& plan, const CostTable& costs);

}  // namespace dbo
