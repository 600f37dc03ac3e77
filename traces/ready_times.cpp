#include "traces/ready_times.h"

#include <algorithm>

namespace dbo {

RankOps::RankOps(const Trace& trace, std::int32_t rank, std::size_t ops) : ops_(ops, nullptr) {
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank && !is_wire(op.kind) && op.plan_op < ops) ops_[op.plan_op] = &op;
}

bool starts_are_lanes(const Trace& trace) {
  const Json* starts = trace.metadata.find("op_starts");
  return starts != nullptr && starts->is_string() && starts->as_string() == "lanes";
}

std::vector<SimTime> ready_times(const Plan& plan, const Linear& linear, const RankOps& ops) {
  std::vector<SimTime> ready(linear.ops.size(), SimTime::min()), lanes(plan.lanes.size(), SimTime::min());
  std::vector<SimTime> records(linear.records.size(), SimTime::min());
  for (const HostStep& step : linear.host) {
    if (step.verb == Verb::Record) {
      records[step.index] = lanes[linear.records[step.index].lane];
    } else if (step.verb == Verb::Wait) {
      const LinearWait& wait = linear.waits[step.index];
      if (wait.record != kNone) lanes[wait.lane] = std::max(lanes[wait.lane], records[wait.record]);
    } else if (step.verb == Verb::Launch) {
      const LinearOp& op = linear.ops[step.index];
      ready[step.index] = lanes[op.lane];
      if (const TraceOp* seen = ops[step.index]) lanes[op.lane] = std::max(lanes[op.lane], seen->end);
    }
  }
  return ready;
}

}  // namespace dbo
