// Windows: the overlaps a plan intends, and how much of each a trace achieved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo {

/// One transfer of a plan and the compute ops that may run while it is under way.
struct PlannedWindow {
  std::uint32_t name = 0;      ///< index into PlannedWindows::names
  std::uint32_t transfer = 0;  ///< index into Linear::ops: the send, or the comm kernel
  std::int32_t layer = -1;     ///< of the transfer
  std::uint8_t ubatch = 0;     ///< of the transfer
  bool dispatch = false;
  std::uint32_t first = 0, last = 0;  ///< range of PlannedWindows::compute
};

struct PlannedWindows {
  std::vector<std::string> names;  ///< in order of first occurrence
  std::vector<PlannedWindow> windows;
  std::vector<std::uint32_t> compute;  ///< indices into Linear::ops, in launch order within a window
};

/// For each dispatch and combine, the compute ops that are neither before nor after it in the plan's happens-before:
/// lane order, event waits, and hosts that block. A send is under way from its end to the start of its receive, a comm
/// kernel while it runs. Transfers with no such op have no window.
///
/// Names: `C[0]|S[0]+MLP[1]`, the transfer and its ops in launch order. The number is the ubatch, A stands for A0 and
/// A1 of one ubatch and layer, a `'` for each layer past the earliest one named. Embedding, head and leading dense
/// layers meet a transfer once a step; they are named only when a window has nothing else. Cost: ops times lanes.
PlannedWindows planned_windows(const Plan& plan, const Linear& linear);

/// One row of the windows table. hidden + exposed is the time transfers of that name were under way.
struct WindowShare {
  std::string name;
  int planned = 0;   ///< occurrences in the plan
  int measured = 0;  ///< occurrences whose transfer the trace shows; zero-length transfers have no slice
  Ns hidden{};       ///< covered by compute ops of the rank, whichever they are
  Ns exposed{};
};

/// How much of the planned windows a trace achieved on one rank, in the order of PlannedWindows::names. The transfer is
/// the wire's slice if the trace has it, the comm kernel's slice, or else from the end of the send to the arrival at
/// the receive (its start plus the time it waited).
/// `by_waits`: what is exposed of a wire is what its receive waited, not what no compute op covered. For traces whose
/// gaps are not those of a step: events between ops stretch them.
std::vector<WindowShare> window_shares(const PlannedWindows& planned, const Trace& trace, std::int32_t rank,
                                       bool by_waits = false);

}  // namespace dbo
