#include "sim/engine/bubbles.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "sim/base/error.h"
#include "sim/engine/sharing.h"
#include "sim/engine/tape.h"

namespace dbo {
namespace {

class Finder {
 public:
  Finder(const Plan& plan, const CostTable& costs, const Linear& linear, const EngineResult& result,
         const std::vector<OpTimes>& times, int group)
      : plan_(plan),
        costs_(costs),
        linear_(linear),
        result_(result),
        times_(times),
        group_(group),
        step_(result.step()),
        before_(linear.ops.size(), kNone),
        idle_(plan.lanes.size()),
        peers_(plan.lanes.size()) {
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
      if (is_recv(kind(h.index))) explain_arrival(h.index, t.start, std::min(t.arrived, t.end));
      if (is_collective(kind(h.index))) {
        add_peer(t.last, t.start, std::min(t.sent, t.end));
        explain_tail(h.index, t.start, t.end);
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
          out.push_back({lane_, static_cast<BubbleCause>(c), idle_[lane][static_cast<std::size_t>(c)],
                         static_cast<BubbleCause>(c) == BubbleCause::Peer ? slowest_peer() : -1});
    }
    return out;
  }

 private:
  OpKind kind(std::uint32_t op) const { return plan_.ops[linear_.ops[op].op].kind; }

  void add(BubbleCause cause, std::int64_t from, std::int64_t to) {
    if (to > from) idle_[lane_][static_cast<std::size_t>(cause)] += to - from;
  }

  /// Waiting for the ranks of group `peer`, if that is known.
  void add_peer(int peer, std::int64_t from, std::int64_t to) {
    add(BubbleCause::Peer, from, to);
    if (to > from && peer >= 0 && peer != group_) peers_[lane_][peer] += to - from;
  }

  /// The first rank of the group that the lane waited for longest.
  int slowest_peer() const {
    int slowest = -1;
    std::int64_t most = 0;
    for (const auto& [peer, ns] : peers_[lane_]) {
      if (ns <= most) continue;
      most = ns;
      slowest = result_.folding.groups[static_cast<std::size_t>(peer)].first_rank;
    }
    return slowest;
  }

  const OpCost& cost(std::uint32_t op) const {
    const LinearOp& o = linear_.ops[op];
    const int group = result_.folding.groups[static_cast<std::size_t>(group_)].cost_group;
    return costs_.at(group, costs_.layer_class(o.layer), o.ubatch, o.op);
  }

  int slowest_port(const OpCost& cost) const {
    return cost.slowest < 0 ? -1 : result_.folding.group_of_rank[static_cast<std::size_t>(cost.slowest)];
  }

  /// When this rank's own part of a comm kernel was done: what is left until its end waits for others.
  std::int64_t own_end(std::uint32_t op) const {
    const OpTimes& t = times_[op];
    return std::max(std::min(t.sent, t.end), t.moved - cost(op).for_peers.count());
  }

  /// The part of [from, to) in which a comm kernel waits for others that are slower.
  void explain_tail(std::uint32_t op, std::int64_t from, std::int64_t to) {
    const OpTimes& t = times_[op];
    const std::int64_t own = std::clamp(own_end(op), from, to), moved = std::clamp(t.moved, own, to);
    add_peer(slowest_port(cost(op)), own, moved);
    add_peer(costs_.flows.on() ? t.last : -1, moved, to);
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
      explain_arrival(op, begin, arrived);
      add(BubbleCause::Order, arrived, to);
    } else if (is_collective(kind(op))) {
      const std::int64_t together = std::clamp(t.sent, begin, to), own = std::clamp(own_end(op), together, to);
      add_peer(t.last, begin, together);
      add(BubbleCause::Wire, together, own);
      explain_tail(op, own, to);
    } else {
      add(BubbleCause::Order, begin, to);
    }
    // A chain longer than this is a lane that was busy all the while: its own order.
    constexpr int kDeepest = 64;
    if (depth >= kDeepest) return add(BubbleCause::Order, from, begin);
    explain_start(op, from, begin, depth + 1);
  }

  /// A receive waiting in [from, to): for the slowest sender first, then for its own wire, then for slower ports.
  void explain_arrival(std::uint32_t op, std::int64_t from, std::int64_t to) {
    const OpTimes& t = times_[op];
    to = std::max(from, to);
    const std::int64_t sent = std::clamp(t.sent, from, to);
    const OpCost& c = cost(op);
    const bool flows = costs_.flows.on();
    const std::int64_t own = std::clamp(flows ? t.sent + c.wire.count() : t.arrived - c.for_peers.count(), sent, to);
    add_peer(t.last, from, sent);
    add(BubbleCause::Wire, sent, own);
    add_peer(flows ? t.last : slowest_port(c), own, to);
  }

  const Plan& plan_;
  const CostTable& costs_;
  const Linear& linear_;
  const EngineResult& result_;
  const std::vector<OpTimes>& times_;
  int group_ = 0;
  std::int64_t step_ = 0;
  std::vector<std::uint32_t> before_;
  LaneId lane_ = 0;
  std::vector<std::array<std::int64_t, kBubbleCauses>> idle_;
  std::vector<std::map<int, std::int64_t>> peers_;  ///< by lane, then group: time it was waited for
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

}  // namespace

std::int64_t weight_read_ns(const Plan& plan, const OpDef& op, const OpCost& cost, const MachineRates& machine) {
  const Share share = op_share(plan, op, cost, machine);
  if (cost.demand.hbm_bytes <= 0 || share.hbm == 0) return 0;
  const std::int64_t by_sms = kFullSpeed * share.sm_share / 1024, by_memory = share.hbm;
  const std::int64_t weights = std::min(cost.demand.weight_bytes, cost.demand.hbm_bytes);
  const std::int64_t without = by_memory - by_memory * weights / cost.demand.hbm_bytes;
  return scaled(cost.time.count(), std::max(by_sms, by_memory) - std::max(by_sms, without));
}

std::vector<Bubble> find_bubbles(const Plan& plan, const CostTable& costs, const EngineResult& result,
                                 const std::vector<int>& recorded, int group) {
  return Finder(plan, costs, linear_of(result, group), result, times_of(result, recorded, group), group).run();
}

std::vector<std::int64_t> busy_lanes(const Plan& plan, const Linear& linear, const std::vector<Bubble>& bubbles,
                                     std::int64_t step_ns) {
  std::vector<std::int64_t> busy(plan.lanes.size(), 0);
  for (const LinearOp& op : linear.ops) busy[op.lane] = step_ns;
  for (const Bubble& bubble : bubbles) busy[bubble.lane] -= bubble.ns;
  return busy;
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
    lane[static_cast<std::size_t>(LossCause::WeightRead)] += weight_read_ns(plan, plan.ops[op.op], cost, costs.machine);
  }
  std::vector<Loss> out;
  for (std::size_t lane = 0; lane < sums.size(); ++lane)
    for (std::size_t c = 0; c < kLossCauses; ++c)
      if (sums[lane][c] > 0) out.push_back({static_cast<LaneId>(lane), static_cast<LossCause>(c), sums[lane][c]});
  return out;
}

}  // namespace dbo
