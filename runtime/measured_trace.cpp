#include "runtime/measured_trace.h"

#include <algorithm>
#include <sstream>

#include "sim/base/error.h"
#include "sim/plan/plan_json.h"

namespace dbo::runtime {

Trace measured_trace(const Plan& plan, const std::vector<const Linear*>& linear, const std::vector<RankTimes>& ranks) {
  DBO_CHECK(linear.size() == ranks.size() && !ranks.empty(), "an order for each measured rank");
  std::int64_t zero = INT64_MAX;
  for (const OpTime& op : ranks[0].ops) {
    if (op.ran) zero = std::min(zero, op.begin_ns - ranks[0].clock_ns);
  }
  if (zero == INT64_MAX) zero = 0;
  Trace trace;
  trace.lanes = plan.lanes;
  for (const OpDef& op : plan.ops) trace.names.push_back(op.name);
  std::int64_t residual = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankTimes& times = ranks[r];
    residual = std::max(residual, times.residual_ns);
    const std::int64_t shift = zero + times.clock_ns;
    for (std::uint32_t i = 0; i < times.ops.size(); ++i) {
      const OpTime& op = times.ops[i];
      if (!op.ran) continue;
      const LinearOp& planned = linear[r]->ops[i];
      TraceOp traced;
      traced.rank = times.rank;
      traced.layer = planned.layer;
      traced.ubatch = static_cast<std::int16_t>(planned.ubatch);
      traced.kind = plan.op(planned.op).kind;
      traced.lane = op.lane < 0 ? planned.lane : static_cast<std::uint8_t>(op.lane);
      traced.name = planned.op;
      traced.plan_op = i;
      traced.start = at(op.begin_ns - shift);
      traced.end = at(op.end_ns - shift);
      if (is_recv(traced.kind) && op.ready_ns > op.begin_ns) traced.waited = Ns{op.ready_ns - op.begin_ns};
      traced.sms = op.sms;
      trace.ops.push_back(traced);
    }
  }
  std::stable_sort(trace.ops.begin(), trace.ops.end(), [](const TraceOp& a, const TraceOp& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.lane != b.lane) return a.lane < b.lane;
    return a.start < b.start;
  });
  trace.metadata.set("plan_hash", plan_hash(plan));
  if (ranks.size() > 1) trace.metadata.set("clock_residual_ns", residual);
  return trace;
}

std::string encode_times(const RankTimes& times) {
  std::ostringstream out;
  out << times.rank << ' ' << times.clock_ns << ' ' << times.residual_ns << ' ' << times.ops.size();
  for (const OpTime& op : times.ops) {
    out << ' ' << op.ran << ' ' << op.begin_ns << ' ' << op.ready_ns << ' ' << op.end_ns << ' ' << op.sms << ' '
        << op.lane << ' ' << op.entered_ns;
  }
  return out.str();
}

RankTimes decode_times(const std::string& text) {
  std::istringstream in(text);
  RankTimes times;
  std::size_t count = 0;
  in >> times.rank >> times.clock_ns >> times.residual_ns >> count;
  DBO_CHECK(in.good() || count == 0, "times of a rank that cannot be read");
  for (std::size_t i = 0; i < count; ++i) {
    OpTime op;
    in >> op.ran >> op.begin_ns >> op.ready_ns >> op.end_ns >> op.sms >> op.lane >> op.entered_ns;
    times.ops.push_back(op);
  }
  DBO_CHECK(!in.fail(), "times of a rank that cannot be read");
  return times;
}

Ns step_time(const RankTimes& times) {
  std::int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const OpTime& op : times.ops) {
    if (!op.ran) continue;
    begin = std::min(begin, op.begin_ns);
    end = std::max(end, op.end_ns);
  }
  return begin == INT64_MAX ? Ns{} : Ns{end - begin};
}

Spread spread_of(std::vector<Ns> values) {
  Spread spread;
  if (values.empty()) return spread;
  std::sort(values.begin(), values.end());
  const auto quantile = [&](std::size_t percent) { return values[(values.size() - 1) * percent / 100]; };
  return {quantile(50), quantile(10), quantile(90), static_cast<int>(values.size())};
}

LaneGaps lane_gaps(const Plan& plan, const Linear& linear, const RankTimes& times) {
  // What a lane (or a record of it) is behind: the latest end, and whether that came over a wait.
  struct Front {
    std::int64_t end = INT64_MIN;
    bool waited = false;
  };
  std::vector<Front> lanes(plan.lanes.size()), records(linear.records.size());
  LaneGaps gaps;
  for (const HostStep& step : linear.host) {
    if (step.verb == Verb::Record) {
      records[step.index] = lanes[linear.records[step.index].lane];
    } else if (step.verb == Verb::Wait) {
      const LinearWait& wait = linear.waits[step.index];
      if (wait.record == kNone || linear.records[wait.record].lane == wait.lane) continue;
      const Front& other = records[wait.record];
      if (other.end > lanes[wait.lane].end) lanes[wait.lane] = {other.end, true};
    } else if (step.verb == Verb::Launch) {
      const OpTime& op = times.ops[step.index];
      if (!op.ran) continue;
      Front& lane = lanes[linear.ops[step.index].lane];
      const OpKind kind = plan.op(linear.ops[step.index].op).kind;
      if (lane.end != INT64_MIN && !is_recv(kind) && !is_collective(kind)) {
        (lane.waited ? gaps.cross_lane : gaps.same_lane).push_back(Ns{op.begin_ns - lane.end});
      }
      lane = {op.end_ns, false};
    }
  }
  return gaps;
}

}  // namespace dbo::runtime
