// What pairwise flows add to the lower bound of the steady period: there a rank's data may be on its way before the
// last sender comes, so that its own wire is no part of a chain of its own ops.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/plan/linearise.h"

namespace dbo {

struct FlowBounds {
  std::int64_t ports = 0;            ///< the fullest port carries all its flows
  std::int64_t calls = 0;            ///< calls of send and receive halves, each received before the next is sent
  std::vector<std::int64_t> chains;  ///< by ubatch: from the last rank's dispatch to the last rank's next
};

/// Of the layers [first, end), which repeat; `plan` has them once and every group's ops are those of `linear`, the
/// order of class 0. Times are lower bounds: every rank, port and flow alone, the last sender the one that suits best.
FlowBounds flow_bounds(const Plan& plan, const CostTable& costs, const Linear& linear, std::int32_t first,
                       std::int32_t end);

}  // namespace dbo
