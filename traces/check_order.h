// Whether a trace kept the order its plan fixes: the one judge of the engine, the virtual device, GPU runs and compare.
#pragma once

#include <string>
#include <vector>

#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo {

struct OrderFinding {
  enum class Kind : std::uint8_t {
    Unknown,    ///< an op the plan does not have, or with another kind, ubatch or layer than it says
    Twice,      ///< an op that ran more than once
    Missing,    ///< an op of the plan that did not run
    WrongLane,  ///< an op on another lane than planned (F4)
    LaneOrder,  ///< an op began before the one ahead of it on its lane had ended
    Wait,       ///< an op began before what its lane waits for had ended (F5)
    Arrival     ///< a receive or comm kernel ended before every rank had sent or started
  };
  Kind kind = Kind::Unknown;
  int rank = 0;
  std::uint32_t plan_op = kNoPlanOp;
  std::string text;  ///< which op, after which, by how much
};

struct OrderOptions {
  /// Measured traces: how far a start may lie before an end on the same GPU (timestamp granularity), and across GPUs
  /// (residual of the clock alignment).
  Ns lane_slack{0}, rank_slack{0};
  /// Ops without a slice had no length. False: each is a finding.
  bool absent_is_zero_length = true;
  std::size_t limit = 100;  ///< at most so many findings
};

/// Findings in the order of rank and host order; empty when the trace kept the order. Wires and ops without `plan_op`
/// of foreign kinds are not judged. Throws InputError when the trace holds ranks the plan does not have.
std::vector<OrderFinding> check_order(const Plan& plan, const Trace& trace, const OrderOptions& options = {});

std::string_view finding_name(OrderFinding::Kind kind);

}  // namespace dbo
