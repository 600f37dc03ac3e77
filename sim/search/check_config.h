// Checks what a config would run: the plans of its steps, and what a plan alone cannot show.
#pragma once

#include "sim/config/config.h"
#include "sim/plan/plan_check.h"

namespace dbo {

/// Findings of every plan the config's steps run, split or not; the same finding counts once. Adds F9: a request that
/// reads a KV-cache block before the request of another ubatch that writes it in the same step has done so, layer by
/// layer. `ops` and `programs` are the largest of one step.
PlanCheck check_config(const Config& config);

}  // namespace dbo
