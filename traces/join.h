// Joining two traces op by op.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "sim/plan/linearise.h"
#include "traces/trace.h"

namespace dbo {

/// What ops of two traces of one rank have in common: kind, layer, ubatch; foreign ops by their number in the plan.
struct JoinKey {
  OpKind kind = OpKind::Other;
  std::int32_t layer = -1;
  std::int16_t ubatch = 0;
  std::uint32_t plan_op = kNoPlanOp;  ///< of OTHER ops only

  auto operator<=>(const JoinKey&) const = default;
};
JoinKey join_key(const TraceOp& op);

/// Ops of one rank by key; of several with one key the first.
std::map<JoinKey, const TraceOp*> ops_by_key(const Trace& trace, std::int32_t rank);

/// "A1 of ubatch 0, layer 3".
std::string describe_op(const Trace& trace, const TraceOp& op);

/// Gives the ops of a profiler's trace the numbers they have in the plan, by kind, layer and ubatch, and the plan's
/// lanes by name. An op in several pieces becomes one from the first start to the last end. Ops the plan does not have
/// become OTHER. `linear` of each class of the plan.
Trace adopt_plan(const Trace& foreign, const Plan& plan, const std::vector<Linear>& linear);

}  // namespace dbo
