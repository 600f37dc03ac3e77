// Costs that the engine's integers hold.
#pragma once

#include <cstdint>
#include <string>

#include "sim/cost/cost_table.h"

namespace dbo {

/// The longest an op may take where ops share a GPU: work is counted in 2^-20 ns there, and sharing makes ops longer.
inline constexpr std::int64_t kMaxSharedOpNs = std::int64_t{1} << 40;
/// The longest a step may take, every op and host step of a rank after the other; a steady state runs many of them.
inline constexpr std::int64_t kMaxStepNs = std::int64_t{1} << 56;

/// What is too long for the engine, in words ("MLP takes 2100 s on a rank, ..."); empty: nothing.
std::string beyond_range(const Plan& plan, const CostTable& costs);

}  // namespace dbo
