#include "traces/join.h"

#include <algorithm>

namespace dbo {

JoinKey join_key(const TraceOp& op) {
  if (op.kind == OpKind::Other) return {op.kind, -1, 0, op.plan_op};
  return {op.kind, op.layer, op.ubatch, kNoPlanOp};
}

std::map<JoinKey, const TraceOp*> ops_by_key(const Trace& trace, std::int32_t rank) {
  std::map<JoinKey, const TraceOp*> ops;
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank && (op.kind != OpKind::Other || op.plan_op != kNoPlanOp)) ops.emplace(join_key(op), &op);
  return ops;
}

std::string describe_op(const Trace& trace, const TraceOp& op) {
  std::string text =
      op.kind == OpKind::Other && op.name < trace.names.size() ? trace.names[op.name] : std::string(op_name(op.kind));
  if (op.kind != OpKind::Other) text += " of ubatch " + std::to_string(op.ubatch);
  if (op.layer >= 0) text += ", layer " + std::to_string(op.layer);
  return text;
}

Trace adopt_plan(const Trace& foreign, const Plan& plan, const std::vector<Linear>& linear) {
  std::vector<std::map<JoinKey, std::uint32_t>> numbers(linear.size());
  for (std::size_t c = 0; c < linear.size(); ++c)
    for (std::uint32_t i = 0; i < linear[c].ops.size(); ++i) {
      const LinearOp& op = linear[c].ops[i];
      numbers[c].emplace(JoinKey{plan.ops[op.op].kind, op.layer, op.ubatch, kNoPlanOp}, i);
    }
  Trace out = foreign;
  // "comm (stream 27)" is the plan's lane "comm"; lanes the plan does not have keep their names.
  for (std::string& lane : out.lanes)
    for (const std::string& planned : plan.lanes)
      if (lane == planned || lane.rfind(planned + " (", 0) == 0) lane = planned;
  out.ops.clear();
  std::map<std::pair<std::int32_t, JoinKey>, std::size_t> merged;
  for (TraceOp op : foreign.ops) {
    if (op.rank < 0 || op.rank >= plan.world.ranks) continue;
    if (op.kind != OpKind::Other) {
      const auto& known = numbers[static_cast<std::size_t>(plan.class_of(op.rank))];
      const auto number = known.find(join_key(op));
      if (number == known.end()) {
        op.kind = OpKind::Other;
      } else {
        op.plan_op = number->second;
        const auto [at, fresh] = merged.emplace(std::pair(op.rank, join_key(op)), out.ops.size());
        if (!fresh) {
          TraceOp& first = out.ops[at->second];
          first.start = std::min(first.start, op.start);
          first.end = std::max(first.end, op.end);
          continue;
        }
      }
    }
    out.ops.push_back(op);
  }
  std::stable_sort(out.ops.begin(), out.ops.end(), [](const TraceOp& a, const TraceOp& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    return a.lane != b.lane ? a.lane < b.lane : a.start < b.start;
  });
  return out;
}

}  // namespace dbo
