// When a plan let each op of a traced step start.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo {

/// The ops of one rank by their number in the plan; wires are left out. The trace must outlive it.
class RankOps {
 public:
  RankOps(const Trace& trace, std::int32_t rank, std::size_t ops);
  const TraceOp* operator[](std::uint32_t index) const { return ops_[index]; }  ///< nullptr: it has no slice

 private:
  std::vector<const TraceOp*> ops_;
};

/// By plan_op: the latest end among what its lane is behind, waits included; SimTime::min() where that is nothing.
std::vector<SimTime> ready_times(const Plan& plan, const Linear& linear, const RankOps& ops);

/// Whether the trace's starts are the moments that lanes reached the ops (events around launches; metadata `op_starts`
/// is "lanes") instead of those that kernels began to run. Such a trace has a slice of every op that was launched.
bool starts_are_lanes(const Trace& trace);

}  // namespace dbo
