// Which ops of a rank the plan orders before which: lane order, event waits and host waits, nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::runtime {

/// Answers "is a over before b begins, whatever the durations?" for two ops of one rank in constant time, from a clock
/// per op that says how far each lane must have come.
class Ordering {
 public:
  Ordering(const Plan& plan, const Linear& linear);

  /// Whether op `a` has ended before op `b` begins in every execution of the plan.
  bool before(std::uint32_t a, std::uint32_t b) const;

 private:
  std::size_t lanes_;
  std::vector<std::uint32_t> position_;  ///< by op: place in its lane's queue
  std::vector<LaneId> lane_;             ///< by op
  std::vector<std::uint32_t> clocks_;    ///< by op, then lane: queue items that are over before the op begins
};

}  // namespace dbo::runtime
