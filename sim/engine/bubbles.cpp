#include "sim/engine/bubbles.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "sim/base/error.h"
#include "sim/engine/sharing.h"
#include "sim/engine/tape.h"

namespace dbo {
namespace {

class Finder {
 public:
  Finder(const Plan& plan, const Linear& linear, const std::vector<OpTimes>& times, std::int64_t step)
      : plan_(plan),
        linear_(linear),
        times_(times),
        step_(step),
        before_(linear.ops.size(), kNone),
        idle_(plan.lanes.size()) {
    find_predecessors();
  }

  std::vector<Bubble> run() {
    std::vector<std::int64_t> free(plan_.lanes.size(), 0);
    std::vector<char> used(plan_.lanes.size(), 0);
    for (const HostStep& h : linear_.host) {
      if (h.verb != Verb::Launch) continue;
      const LinearOp& op = linear_.ops[h.index];
      const OpTimes& t = times_[h.index];
      lane_ = op.lane;
      used[lane_] = 1;
      explain_start(h.index, free[lane_], t.start, 0);
      if (is_recv(kind(h.index))) explain_arrival(t, t.start, std::min(t.arrived, t.end));
      if (is_collective(kind(h.index))) {
        add(BubbleCause::Peer, t.start, std::min(t.sent, t.end));
        add(BubbleCause::Peer, t.moved, t.end);
      }
      free[lane_] = t.end;
    }
    std::vector<Bubble> out;
    for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      if (!used[lane]) continue;
      lane_ = static_cast<LaneId>(lane);
      add(BubbleCause::Drain, free[lane], step_);
      for (int c = 0; c < kBubbleCauses; ++c)
        if (idle_[lane][static_cast<std::size_t>(c)] > 0)
          out.push_back({lane_, static_cast<BubbleCause>(c), idle_[lane][static_cast<std::size_t>(c)]});
    }
    return out;
  }

 private:
  OpKind kind(std::uint32_t op) const { return plan_.ops[linear_.ops[op].op].kind; }

  void add(BubbleCause cause, std::int64_t from, std::int64_t to) {
    if (to > from) idle_[lane_][static_cast<std::size_t>(cause)] += to - from;
  }

  /// For every op, the op that ended last among those its lane was behind when it was launched.
  void find_predecessors() {
    struct Front {
      std::int64_t end = -1;
      std::uint32_t op = kNone;
    };
    std::vector<Front> lanes(plan_.lanes.size()), records(linear_.records.size());
    for (const HostStep& h : linear_.host) {
      if (h.verb == Verb::Record) {
        records[h.index] = lanes[linear_.records[h.index].lane];
      } else if (h.verb == Verb::Wait) {
        const LinearWait& wait = linear_.waits[h.index];
        if (wait.record != kNone && records[wait.record].end > lanes[wait.lane].end)
          lanes[wait.lane] = records[wait.record];
      } else if (h.verb == Verb::Launch) {
        Front& lane = lanes[linear_.ops[h.index].lane];
        before_[h.index] = lane.op;
        lane = {times_[h.index].end, h.index};
      }
    }
  }

  /// Why the op could not start within [from, to), to being its start. Follows what it waited for back in time.
  void explain_start(std::uint32_t op, std::int64_t from, std::int64_t to, int depth) {
    if (to <= from) return;
    const OpTimes& t = times_[op];
    add(BubbleCause::Sms, std::max(from, t.ready), to);
    to = std::min(to, t.ready);
    if (to <= from) return;
    const std::uint32_t before = before_[op];
    const std::int64_t ready = before == kNone ? 0 : times_[before].end;
    const bool host = t.bound == Bound::Host || (t.bound == Bound::Sms && t.issued == t.ready);
    if (host || before == kNone) {
      // Until what it needs was done the host was not the cause.
      add(BubbleCause::Host, std::max(from, ready), to);
      to = std::max(from, std::min(to, ready));
    } else {
      add(BubbleCause::Gap, std::max(from, ready), to);
      to = std::min(to, ready);
    }
    if (to <= from || before == kNone) return;
    explain_running(before, from, to, depth);
  }

  /// What `op`, which ended at or after `to`, was doing in [from, to).
  void explain_running(std::uint32_t op, std::int64_t from, std::int64_t to, int depth) {
    const OpTimes& t = times_[op];
    const std::int64_t begin = std::clamp(t.start, from, to);
    if (is_recv(kind(op))) {
      const std::int64_t arrived = std::clamp(t.arrived, begin, to);
      explain_arrival(t, begin, arrived);
      add(BubbleCause::Wire, arrived, to);
    } else if (is_collective(kind(op))) {
      const std::int64_t together = std::clamp(t.sent, begin, to), moved = std::clamp(t.moved, together, to);
      add(BubbleCause::Peer, begin, together);
      add(BubbleCause::Wire, together, moved);
      add(BubbleCause::Peer, moved, to);
    } else if (is_comm(kind(op))) {
      add(BubbleCause::Wire, begin, to);
    } else {
      add(BubbleCause::Order, begin, to);
    }
    // A chain longer than this is a lane that was busy all the while: its own order.
    constexpr int kDeepest = 64;
    if (depth >= kDeepest) return add(BubbleCause::Order, from, begin);
    explain_start(op, from, begin, depth + 1);
  }

  /// A receive waiting in [from, to): for the slowest sender first, then for the wire.
  void explain_arrival(const OpTimes& t, std::int64_t from, std::int64_t to) {
    const std::int64_t sent = std::clamp(t.sent, from, std::max(from, to));
    add(BubbleCause::Peer, from, sent);
    add(BubbleCause::Wire, sent, to);
  }

  const Plan& plan_;
  const Linear& linear_;
  const std::vector<OpTimes>& times_;
  std::int64_t step_;
  std::vector<std::uint32_t> before_;
  LaneId lane_ = 0;
  std::vector<std::array<std::int64_t, kBubbleCauses>> idle_;
};

}  // namespace

std::string_view cause_name(BubbleCause cause) {
  switch (cause) {
    case BubbleCause::Host:
      return "host";
    case BubbleCause::Wire:
      return "wire";
    case BubbleCause::Peer:
      return "peer";
    case BubbleCause::Order:
      return "order";
    case BubbleCause::Gap:
      return "gap";
    case BubbleCause::Drain:
      return "drain";
    case BubbleCause::Sms:
      return "sms";
  }
  return "";
}

std::string_view cause_name(LossCause cause) {
  switch (cause) {
    case LossCause::FewSms:
      return "few-sms";
    case LossCause::Hbm:
      return "hbm";
    case LossCause::Link:
      return "link";
    case LossCause::Nic:
      return "nic";
    case LossCause::Beside:
      return "beside";
    case LossCause::WaveTail:
      return "wave-tail";
    case LossCause::WeightRead:
      return "weight-read";
  }
  return "";
}

namespace {

const std::vector<OpTimes>& times_of(const EngineResult& result, const std::vector<int>& recorded, int group) {
  const auto at = std::find(recorded.begin(), recorded.end(), group);
  DBO_CHECK(at != recorded.end(), "bubbles and losses need a recorded group");
  return result.times[static_cast<std::size_t>(at - recorded.begin())];
}

const Linear& linear_of(const EngineResult& result, int group) {
  const FoldGroup& fold = result.folding.groups[static_cast<std::size_t>(group)];
  return result.linear[static_cast<std::size_t>(fold.class_index)];
}

constexpr std::int64_t scaled(std::int64_t ns, std::int64_t part) {
  return (ns * (part >> (kSpeedBits - 10))) >> 10;
}

static_assert(static_cast<int>(LossCause::FewSms) == static_cast<int>(SlowCause::Sms) &&
              static_cast<int>(LossCause::Beside) == static_cast<int>(SlowCause::Beside));

/// Time in which the last wave leaves SMs idle.
std::int64_t wave_tail(const OpCost& cost) {
  const OpDemand& d = cost.demand;
  if (d.tiles <= 0 || d.sms <= 0) return 0;
  const std::int64_t slots = ceil_div(d.tiles, d.sms) * d.sms;
  return cost.time.count() * d.sm_share / 1024 * (slots - d.tiles) / slots;
}

/// Time that reading the weights takes beyond what arithmetic takes anyway.
std::int64_t weight_read(const Share& share, const OpCost& cost) {
  if (cost.demand.hbm_bytes <= 0 || share.hbm == 0) return 0;
  const std::int64_t by_sms = kFullSpeed * share.sm_share / 1024, by_memory = share.hbm;
  const std::int64_t weights = std::min(cost.demand.weight_bytes, cost.demand.hbm_bytes);
  const std::int64_t without = by_memory - by_memory * weights / cost.demand.hbm_bytes;
  return scaled(cost.time.count(), std::max(by_sms, by_memory) - std::max(by_sms, without));
}

}  // namespace

std::vector<Bubble> find_bubbles(const Plan& plan, const EngineResult& result, const std::vector<int>& recorded,
                                 int group) {
  return Finder(plan, linear_of(result, group), times_of(result, recorded, group), result.step()).run();
}

std::vector<Loss> find_losses(const Plan& plan, const CostTable& costs, const EngineResult& result,
                              const std::vector<int>& recorded, int group) {
  const Linear& linear = linear_of(result, group);
  const std::vector<OpTimes>& times = times_of(result, recorded, group);
  const int cost_group = result.folding.groups[static_cast<std::size_t>(group)].cost_group;
  std::vector<std::array<std::int64_t, kLossCauses>> sums(plan.lanes.size());
  std::set<std::pair<OpId, std::int32_t>> launched;  // the op and layer whose weights have been read
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    const OpCost& cost = costs.at(cost_group, costs.layer_class(op.layer), op.ubatch, op.op);
    auto& lane = sums[op.lane];
    for (std::size_t c = 0; c < kSlowCauses; ++c) lane[c] += times[i].lost[c];
    lane[static_cast<std::size_t>(LossCause::WaveTail)] += wave_tail(cost);
    if (cost.demand.weight_bytes <= 0 || launched.emplace(op.op, op.layer).second) continue;
    lane[static_cast<std::size_t>(LossCause::WeightRead)] +=
        weight_read(op_share(plan, plan.ops[op.op], cost, costs.machine), cost);
  }
  std::vector<Loss> out;
  for (std::size_t lane = 0; lane < sums.size(); ++lane)
    for (std::size_t c = 0; c < kLossCauses; ++c)
      if (sums[lane][c] > 0) out.push_back({static_cast<LaneId>(lane), static_cast<LossCause>(c), sums[lane][c]});
  return out;
}

}  // namespace dbo
