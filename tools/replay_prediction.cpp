#include "tools/replay_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dbo {
namespace {

/// What a stand-in does besides lasting (stamps, flags, looking for arrivals) takes less than this.
constexpr Ns kOwnWork{5'000};

/// An op's place on its lane, predicted or measured.
struct Place {
  std::int64_t begin = 0, ready = 0, end = 0;
};

Place place_of(const OpTimes& t, OpKind kind) {
  const bool waits = is_recv(kind);
  const std::int64_t together = is_collective(kind) ? t.sent : t.start;
  return {t.start, std::max(t.start, waits ? t.arrived : together), t.end};
}

Place place_of(const MeasuredOp& m) {
  return {m.begin, std::max(m.begin, m.ready), m.end};
}

std::string us(std::int64_t ns) {
  return us_text(ns);
}

/// The op before each on its lane; kNone: the first.
std::vector<std::uint32_t> ops_before(const Linear& linear) {
  std::vector<std::uint32_t> before(linear.ops.size(), kNone);
  for (const auto& queue : linear.queues) {
    std::uint32_t last = kNone;
    for (const QueueItem& item : queue) {
      if (item.kind != QueueItem::Kind::Op) continue;
      before[item.index] = last;
      last = item.index;
    }
  }
  return before;
}

}  // namespace

void OpMedians::add(const runtime::RankTimes& times) {
  std::int64_t zero = INT64_MAX;
  for (const runtime::OpTime& op : times.ops)
    if (op.ran) zero = std::min(zero, op.begin_ns);
  for (std::size_t i = 0; i < times.ops.size() && i < begin_.size(); ++i) {
    const runtime::OpTime& op = times.ops[i];
    if (!op.ran) continue;
    const std::int64_t ready = std::max(op.begin_ns, op.ready_ns);
    begin_[i].push_back(Ns{op.begin_ns - zero});
    ready_[i].push_back(Ns{ready - zero});
    end_[i].push_back(Ns{op.end_ns - zero});
    length_[i].push_back(Ns{op.end_ns - ready});
  }
}

std::vector<MeasuredOp> OpMedians::medians() const {
  const auto median = [](const std::vector<Ns>& values) { return runtime::spread_of(values).median.count(); };
  std::vector<MeasuredOp> ops;
  for (std::size_t i = 0; i < begin_.size(); ++i)
    ops.push_back({!begin_[i].empty(), median(begin_[i]), median(ready_[i]), median(end_[i])});
  return ops;
}

PredictedStep predict_step(const Plan& plan, CostTable costs, int rank, bool graph, const runtime::LaneGaps& gaps,
                           Ns launch, const Linear& linear, const std::vector<std::vector<Ns>>& lengths) {
  const Ns node = std::max(runtime::spread_of(gaps.same_lane).median, Ns{});
  const Ns cross = std::max(runtime::spread_of(gaps.cross_lane).median - node, Ns{});
  Plan run = plan;
  run.execution = graph ? Execution::Graph : Execution::Eager;
  costs.host = HostCosts{};
  costs.host.launch = launch;
  costs.host.node_gap = costs.host.eager_node_gap = node;
  costs.host.lane_gap = costs.host.eager_lane_gap = cross;
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    std::vector<Ns> measured;
    for (std::size_t i = 0; i < linear.ops.size(); ++i)
      if (linear.ops[i].op == op) measured.insert(measured.end(), lengths[i].begin(), lengths[i].end());
    if (measured.empty()) continue;
    const Ns least = runtime::spread_of(measured).median;
    for (int group = 0; group < costs.groups(); ++group)
      for (int layers = 0; layers < costs.layer_classes(); ++layers)
        for (int ubatch = 0; ubatch < costs.ubatches(); ++ubatch) {
          Ns& time = costs.at(group, layers, ubatch, op).time;
          if (time < kOwnWork) time = std::max(time, least);
        }
  }
  EngineOptions options;
  options.record = {fold_ranks(run, costs).group_of_rank[static_cast<std::size_t>(rank)]};
  const EngineResult result = run_engine(run, costs, options);
  const std::vector<OpTimes>& times = result.times.at(0);
  // As it is measured: from the first op's begin, which eagerly comes a launch after the host's, to the last one's end.
  std::int64_t begin = INT64_MAX, end = 0;
  for (const OpTimes& op : times) {
    begin = std::min(begin, op.start);
    end = std::max(end, op.end);
  }
  return {Ns{times.empty() ? 0 : end - begin}, times};
}

void print_layer(const Plan& plan, const Linear& linear, const PredictedStep& predicted,
                 const std::vector<MeasuredOp>& measured) {
  const std::int32_t layer = (plan.shape.dense_layers + plan.shape.layers) / 2;
  std::vector<std::uint32_t> ops;
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i)
    if (linear.ops[i].layer == layer && measured[i].ran) ops.push_back(i);
  if (ops.empty() || predicted.ops.size() != measured.size()) return;
  std::stable_sort(ops.begin(), ops.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return predicted.ops[a].start < predicted.ops[b].start; });
  const std::vector<std::uint32_t> before = ops_before(linear);
  const std::int64_t zero_predicted = predicted.ops[ops[0]].start, zero_measured = measured[ops[0]].begin;
  fmt::print("  layer {}, us from the begin of its first op: gap before, begin, wait, length; predicted | measured\n",
             layer);
  // Measured minus predicted, by lane: lengths, waits, gaps.
  std::vector<std::array<std::int64_t, 3>> sums(plan.lanes.size(), {0, 0, 0});
  for (const std::uint32_t i : ops) {
    const LinearOp& op = linear.ops[i];
    const OpDef& def = plan.op(op.op);
    const Place p = place_of(predicted.ops[i], def.kind), m = place_of(measured[i]);
    std::int64_t gap_p = 0, gap_m = 0;
    if (before[i] != kNone && measured[before[i]].ran) {
      gap_p = p.begin - predicted.ops[before[i]].end;
      gap_m = m.begin - measured[before[i]].end;
    }
    sums[op.lane][0] += (m.end - m.ready) - (p.end - p.ready);
    sums[op.lane][1] += (m.ready - m.begin) - (p.ready - p.begin);
    sums[op.lane][2] += gap_m - gap_p;
    fmt::print("    {:<8} u{} {:<8} {:>8} {:>9} {:>8} {:>8} | {:>8} {:>9} {:>8} {:>8}  late {:>7}\n", def.name,
               op.ubatch, plan.lanes[op.lane], us(gap_p), us(p.begin - zero_predicted), us(p.ready - p.begin),
               us(p.end - p.ready), us(gap_m), us(m.begin - zero_measured), us(m.ready - m.begin), us(m.end - m.ready),
               us((m.begin - zero_measured) - (p.begin - zero_predicted)));
  }
  for (std::size_t lane = 0; lane < sums.size(); ++lane)
    fmt::print("    {:<8} measured minus predicted: lengths {}, waits {}, gaps {}\n", plan.lanes[lane],
               us(sums[lane][0]), us(sums[lane][1]), us(sums[lane][2]));
}

}  // namespace dbo
