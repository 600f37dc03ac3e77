// A decision as a table for people.
#pragma once

#include <string>

#include "sim/batch/decide.h"
#include "sim/config/config.h"

namespace dbo {

/// What was decided and why, the votes, and who gets which tokens; ranks in the same position share a line.
std::string decision_table(const Config& config, const Decision& decision);

}  // namespace dbo
