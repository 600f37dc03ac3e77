#include "sim/engine/lane_program.h"

#include <algorithm>

namespace dbo {
namespace {

bool is_op(TapeStep::Kind kind) {
  return kind <= TapeStep::Kind::Collective;
}

LaneItem make_item(const Plan& plan, const Linear& linear, const TapeStep& step) {
  LaneItem item;
  item.kind = step.kind;
  item.value = step.value;
  if (!is_op(step.kind)) return item;
  const OpKind kind = plan.ops[linear.ops[step.op].op].kind;
  item.comm = is_comm(kind);
  item.moves = item.comm && kind != OpKind::CCopy;
  item.op = step.op;
  item.tag = step.tag;
  item.cost = step.cost;
  item.wire = step.wire;
  return item;
}

/// Most steps from where a value is defined to where it is used.
std::uint32_t longest_span(const Tape& tape) {
  std::vector<std::uint32_t> defined(tape.values, 0);
  std::uint32_t span = 0;
  for (std::uint32_t s = 0; s < tape.steps.size(); ++s) {
    const TapeStep& step = tape.steps[s];
    if (step.value == kNone) continue;
    if (step.kind <= TapeStep::Kind::Record) {
      defined[step.value] = s;
    } else {
      span = std::max(span, s - defined[step.value]);
    }
  }
  return span;
}

/// Shares of every cost on the tape, by the op and group it was taken from.
void fill_shares(const Plan& plan, const CostTable& costs, const Folding& folding, std::size_t program,
                 const Linear& linear, const Tape& tape, LaneProgram& out) {
  const int begin = folding.of_program[program].first, end = folding.of_program[program].second;
  out.shares.resize(tape.times.size());
  out.wire_shares.resize(tape.times.size());
  std::vector<char> filled(tape.times.size(), 0);
  const auto fill = [&](const LinearOp& op, OpId id, std::uint32_t at) {
    if (at == kNone || filled[at]) return;
    filled[at] = 1;
    const int layer_class = costs.layer_class(op.layer);
    for (int g = begin; g < end; ++g) {
      const std::size_t i = at + static_cast<std::size_t>(g - begin);
      OpCost cost = costs.at(folding.groups[static_cast<std::size_t>(g)].cost_group, layer_class, op.ubatch, id);
      cost.time = Ns{tape.times[i]};
      out.shares[i] = op_share(plan, plan.ops[id], cost, costs.machine);
      out.wire_shares[i] = wire_share(cost, costs.machine);
    }
  };
  for (const TapeStep& step : tape.steps) {
    if (!is_op(step.kind)) continue;
    const LinearOp& op = linear.ops[step.op];
    fill(op, op.op, step.cost);
    if (step.wire != kNone) fill(op, *plan.ops[op.op].pairs, step.wire);
  }
}

}  // namespace

LaneProgram make_lanes(const Plan& plan, const CostTable& costs, const Folding& folding, std::size_t program,
                       const Linear& linear, const Tape& tape) {
  LaneProgram out;
  out.lanes.resize(plan.lanes.size());
  out.ops.resize(plan.lanes.size());
  const bool graph = plan.execution == Execution::Graph;
  const std::int64_t lane_gap = costs.host.lane_gap_in(plan.execution).count();
  std::int64_t since_point = 0, host = graph ? costs.host.graph_launch.count() : 0;
  std::size_t next_mark = 0;
  for (std::uint32_t s = 0; s < tape.steps.size(); ++s) {
    for (; next_mark < tape.marks.size() && tape.marks[next_mark].step == s; ++next_mark) {
      LaneMark mark;
      for (const auto& lane : out.lanes) mark.items.push_back(static_cast<std::uint32_t>(lane.size()));
      mark.segment = static_cast<std::uint32_t>(out.points.size());
      mark.host = host;
      out.marks.push_back(std::move(mark));
    }
    const TapeStep& step = tape.steps[s];
    since_point += step.host.count();
    host += step.host.count();
    if (step.kind == TapeStep::Kind::HostOnly) continue;
    if (step.kind == TapeStep::Kind::HostWait) {
      out.points.push_back({s, step.tag, step.value, step.cost, since_point});
      since_point = 0;
      continue;
    }
    // Nobody waits for the event of a Record or Wait without a value.
    if (!is_op(step.kind) && step.value == kNone) continue;
    LaneItem item = make_item(plan, linear, step);
    item.step = s;
    item.segment = static_cast<std::uint32_t>(out.points.size());
    item.issued = since_point;
    if (step.kind == TapeStep::Kind::Wait && step.crosses) item.gap = lane_gap;
    if (is_op(step.kind)) {
      item.first = out.ops[step.lane].empty();
      out.ops[step.lane].push_back(step.op);
    }
    out.lanes[step.lane].push_back(item);
  }
  out.span = longest_span(tape);
  fill_shares(plan, costs, folding, program, linear, tape, out);
  return out;
}

}  // namespace dbo
