#include "sim/engine/predicted_trace.h"

#include <algorithm>
#include <map>
#include <set>

#include "sim/plan/plan_json.h"

namespace dbo {
namespace {

class Builder {
 public:
  Builder(const Plan& plan, const CostTable& costs, const EngineResult& result, const std::vector<int>& layers)
      : plan_(plan), costs_(costs), result_(result), layers_(layers.begin(), layers.end()) {
    trace_.lanes = plan.lanes;
    for (const OpDef& op : plan.ops) trace_.names.push_back(op.name);
  }

  void add_group(const FoldGroup& group, const std::vector<OpTimes>& times) {
    const Linear& linear = result_.linear[static_cast<std::size_t>(group.class_index)];
    std::vector<std::uint32_t> slice(times.size(), kNone);
    std::vector<TraceOp> ops;
    for (std::uint32_t i = 0; i < times.size(); ++i)
      if (layers_.empty() || layers_.count(linear.ops[i].layer) > 0) add_op(group, linear, times, i, ops);
    std::stable_sort(ops.begin(), ops.end(), [](const TraceOp& a, const TraceOp& b) {
      if (a.lane != b.lane) return a.lane < b.lane;
      return a.start < b.start;
    });
    const auto base = static_cast<std::uint32_t>(trace_.ops.size());
    for (std::uint32_t i = 0; i < ops.size(); ++i)
      if (!is_wire(ops[i].kind)) slice[ops[i].plan_op] = base + i;
    trace_.ops.insert(trace_.ops.end(), ops.begin(), ops.end());
    add_event_flows(linear, slice);
    for (std::uint32_t i = 0; i < times.size(); ++i) {
      const std::uint32_t pair = linear.ops[i].pair;
      if (pair == kNone || pair <= i || slice[i] == kNone || slice[pair] == kNone) continue;
      trace_.flows.push_back({TraceFlow::Kind::Data, slice[i], slice[pair]});
    }
    add_counters(group, ops);
  }

  Trace take() { return std::move(trace_); }

 private:
  void add_op(const FoldGroup& group, const Linear& linear, const std::vector<OpTimes>& times, std::uint32_t i,
              std::vector<TraceOp>& ops) {
    const LinearOp& linear_op = linear.ops[i];
    const OpKind kind = plan_.ops[linear_op.op].kind;
    const OpTimes& t = times[i];
    const OpCost& cost =
        costs_.at(group.cost_group, costs_.layer_class(linear_op.layer), linear_op.ubatch, linear_op.op);
    TraceOp op;
    op.rank = group.first_rank;
    op.layer = linear_op.layer;
    op.ubatch = linear_op.ubatch;
    op.kind = kind;
    op.lane = linear_op.lane;
    op.name = linear_op.op;
    op.plan_op = i;
    op.start = at(t.start);
    op.end = at(t.end);
    if (is_recv(kind)) op.waited = Ns{std::max<std::int64_t>(0, t.arrived - t.start)};
    op.tokens = tokens(group, linear_op.ubatch);
    op.bytes = is_comm(kind) ? cost.demand.port_bytes : cost.demand.hbm_bytes;
    op.sms = cost.demand.sms;
    if (t.end > t.start) ops.push_back(op);
    if (!is_send(kind) || t.arrived <= t.end) return;
    TraceOp wire = op;
    wire.kind = kind == OpKind::DSend ? OpKind::DWire : OpKind::CWire;
    wire.lane = wire_lane();
    wire.name = name(wire.kind);
    wire.start = at(t.end);
    wire.end = at(t.arrived);
    wire.sms = 0;
    ops.push_back(wire);
  }

  std::int64_t tokens(const FoldGroup& group, int ubatch) const {
    const int load = plan_.classes[static_cast<std::size_t>(group.class_index)].load;
    const std::vector<UbatchLoad>& ubatches = plan_.loads[static_cast<std::size_t>(load)].ubatches;
    return static_cast<std::size_t>(ubatch) < ubatches.size() ? ubatches[static_cast<std::size_t>(ubatch)].padded : 0;
  }

  std::uint8_t wire_lane() {
    if (wire_lane_ < 0) {
      wire_lane_ = static_cast<int>(trace_.lanes.size());
      trace_.lanes.emplace_back("wire");
    }
    return static_cast<std::uint8_t>(wire_lane_);
  }

  std::uint32_t name(OpKind kind) {
    const std::string text(op_name(kind));
    const auto found = std::find(trace_.names.begin(), trace_.names.end(), text);
    if (found == trace_.names.end()) {
      trace_.names.push_back(text);
      return static_cast<std::uint32_t>(trace_.names.size() - 1);
    }
    return static_cast<std::uint32_t>(found - trace_.names.begin());
  }

  /// From the last op a record covers to the first op behind the wait.
  void add_event_flows(const Linear& linear, const std::vector<std::uint32_t>& slice) {
    for (const LinearWait& wait : linear.waits) {
      if (wait.record == kNone) continue;
      const LinearRecord& record = linear.records[wait.record];
      if (record.lane == wait.lane) continue;
      std::uint32_t from = kNone, to = kNone;
      const std::vector<QueueItem>& before = linear.queues[record.lane];
      for (std::uint32_t p = record.position; p-- > 0 && from == kNone;)
        if (before[p].kind == QueueItem::Kind::Op) from = slice[before[p].index];
      const std::vector<QueueItem>& after = linear.queues[wait.lane];
      for (std::uint32_t p = wait.position + 1; p < after.size(); ++p) {
        if (after[p].kind == QueueItem::Kind::Wait && p > wait.position + 1) break;
        if (after[p].kind != QueueItem::Kind::Op) continue;
        to = slice[after[p].index];
        break;
      }
      if (from != kNone && to != kNone) trace_.flows.push_back({TraceFlow::Kind::Event, from, to});
    }
  }

  void add_counters(const FoldGroup& group, const std::vector<TraceOp>& ops) {
    std::map<std::int64_t, std::int64_t> sms, links;
    for (const TraceOp& op : ops) {
      const std::int64_t begin = op.start.time_since_epoch().count(), end = op.end.time_since_epoch().count();
      std::map<std::int64_t, std::int64_t>& changes = is_wire(op.kind) || is_collective(op.kind) ? links : sms;
      const std::int64_t amount = is_wire(op.kind) || is_collective(op.kind) ? 1 : op.sms;
      changes[begin] += amount;
      changes[end] -= amount;
      if (is_collective(op.kind) && op.sms > 0) {
        sms[begin] += op.sms;
        sms[end] -= op.sms;
      }
    }
    const auto emit = [&](const char* title, const std::map<std::int64_t, std::int64_t>& changes) {
      TraceCounter counter{title, group.first_rank, {}};
      std::int64_t value = 0;
      for (const auto& [time, change] : changes) {
        if (change == 0) continue;
        value += change;
        counter.points.emplace_back(at(time), value);
      }
      if (!counter.points.empty()) trace_.counters.push_back(std::move(counter));
    };
    emit("SMs in use", sms);
    emit("links in use", links);
  }

  const Plan& plan_;
  const CostTable& costs_;
  const EngineResult& result_;
  std::set<std::int32_t> layers_;  ///< empty: all
  Trace trace_;
  int wire_lane_ = -1;
};

}  // namespace

Trace predicted_trace(const Plan& plan, const CostTable& costs, const EngineResult& result,
                      const std::vector<int>& recorded, const std::vector<int>& ranks, const std::vector<int>& layers) {
  struct Traced {
    FoldGroup group;
    std::size_t times = 0;  // index into the recorded ones
  };
  std::map<int, Traced> traced;  // by rank
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const FoldGroup& group = result.folding.groups[static_cast<std::size_t>(recorded[i])];
    if (ranks.empty()) traced[group.first_rank] = {group, i};
    for (const int rank : ranks) {
      if (result.folding.group_of_rank[static_cast<std::size_t>(rank)] != recorded[i]) continue;
      Traced& one = traced[rank] = {group, i};
      one.group.first_rank = rank;
      one.group.ranks = 1;
    }
  }
  Builder builder(plan, costs, result, layers);
  Json stands_for = Json::object();
  for (const auto& [rank, one] : traced) {
    builder.add_group(one.group, result.times[one.times]);
    stands_for.set(std::to_string(rank), one.group.ranks);
  }
  Trace trace = builder.take();
  trace.metadata = Json::object();
  trace.metadata.set("plan_hash", plan_hash(plan));
  trace.metadata.set("ranks", std::move(stands_for));
  if (!layers.empty()) {
    Json& chosen = trace.metadata.set("layers", Json::array());
    for (const int layer : std::set<int>(layers.begin(), layers.end())) chosen.push(layer);
  }
  return trace;
}

}  // namespace dbo
