// A lower bound of the steady period that no order of the same ops on the same lanes and transport can beat.
#pragma once

#include <cstdint>

#include "sim/cost/cost_table.h"

namespace dbo {

/// Which of the three limits holds.
enum class BoundKind : std::uint8_t { Compute, Communication, Chain };

struct PeriodBound {
  std::int64_t bound_ns = 0;  ///< of one layer, rounded up; 0 when the plan repeats no MoE layer
  BoundKind kind = BoundKind::Compute;
};

/// The largest, over ranks, of: the work of the compute lane; the work of the comm lane, or of the wires, which one
/// port carries one after the other, and of whole calls (send, wire, receive) when at most `in_flight` of them may be
/// un-received; and the chain of any one ubatch through a layer (A0 A1 D MLP C, or A0 A1 S). `plan` gives the lanes and
/// ops; costs are those of the MoE layers, averaged where layers differ. With pairwise flows a rank's wire is no part
/// of its own chain and calls (flow_bound.h says what takes its place).
PeriodBound period_bound(const Plan& plan, const CostTable& costs, int in_flight = 1);

}  // namespace dbo
