#include "traces/windows.h"

#include <algorithm>
#include <map>

#include "traces/overlap.h"
#include "traces/transfers.h"

namespace dbo {
namespace {

/// A position in every lane's queue. Going forward: how many items of each lane are known to be over. Going backward:
/// the first item of each lane that is known to start later.
using Clock = std::vector<std::uint32_t>;

void raise(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}
void lower(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::min(clock[i], other[i]);
}

/// Host order is a topological order of happens-before: a lane's items are issued in its order, and a wait binds to a
/// record issued before it. So one pass forward and one backward give every transfer its bounds.
class Bounds {
 public:
  Bounds(const Plan& plan, const Linear& linear) : linear_(linear), lanes_(plan.lanes.size()), plan_(plan) {
    before_.resize(linear.ops.size());
    after_.resize(linear.ops.size());
    forward();
    backward();
  }

  /// What is over when the transfer that begins with op `index` is under way.
  const Clock& before(std::uint32_t index) const { return before_[index]; }
  /// What cannot start before the transfer that ends with op `index` is over.
  const Clock& after(std::uint32_t index) const { return after_[index]; }

 private:
  OpKind kind(std::uint32_t index) const { return plan_.ops[linear_.ops[index].op].kind; }

  void forward() {
    std::vector<Clock> lanes(lanes_, Clock(lanes_, 0)), records(linear_.records.size());
    std::vector<Clock> ends(linear_.ops.size());  // only of ops some host waits for
    for (const HostStep& step : linear_.host)
      if (step.verb == Verb::HostWait) ends[step.index] = Clock(lanes_, 0);
    Clock host(lanes_, 0);
    for (const HostStep& step : linear_.host) {
      if (step.verb == Verb::Launch) {
        const LinearOp& op = linear_.ops[step.index];
        Clock& lane = lanes[op.lane];
        raise(lane, host);
        lane[op.lane] = std::max(lane[op.lane], op.position);
        if (is_collective(kind(step.index))) before_[step.index] = lane;
        lane[op.lane] = op.position + 1;
        if (is_send(kind(step.index))) before_[step.index] = lane;
        if (!ends[step.index].empty()) ends[step.index] = lane;
      } else if (step.verb == Verb::Record) {
        records[step.index] = lanes[linear_.records[step.index].lane];
        raise(records[step.index], host);
        Clock& lane = records[step.index];
        const LinearRecord& record = linear_.records[step.index];
        lane[record.lane] = std::max(lane[record.lane], record.position);
      } else if (step.verb == Verb::Wait) {
        const LinearWait& wait = linear_.waits[step.index];
        if (wait.record != kNone) raise(lanes[wait.lane], records[wait.record]);
      } else if (step.verb == Verb::HostWait) {
        // Counts are known once the kernel runs: what came before it is over then, the kernel itself is not.
        Clock known = ends[step.index];
        const LinearOp& op = linear_.ops[step.index];
        if (step.notify) known[op.lane] = std::min(known[op.lane], op.position);
        raise(host, known);
      }
    }
  }

  void backward() {
    std::vector<Clock> lanes(lanes_, Clock(lanes_, kNone)), records(linear_.records.size(), Clock(lanes_, kNone));
    std::map<std::uint32_t, Clock> waited;  // by op: what the host issued after it had waited for the op's end
    Clock host(lanes_, kNone);
    for (auto step = linear_.host.rbegin(); step != linear_.host.rend(); ++step) {
      if (step->verb == Verb::Launch) {
        const LinearOp& op = linear_.ops[step->index];
        Clock& lane = lanes[op.lane];
        if (const auto at = waited.find(step->index); at != waited.end()) lower(lane, at->second);
        if (is_collective(kind(step->index))) after_[step->index] = lane;
        lane[op.lane] = op.position;
        if (is_recv(kind(step->index))) after_[step->index] = lane;
        lower(host, lane);
      } else if (step->verb == Verb::Record) {
        lower(lanes[linear_.records[step->index].lane], records[step->index]);
      } else if (step->verb == Verb::Wait) {
        const LinearWait& wait = linear_.waits[step->index];
        lanes[wait.lane][wait.lane] = std::min(lanes[wait.lane][wait.lane], wait.position);
        if (wait.record != kNone) lower(records[wait.record], lanes[wait.lane]);
      } else if (step->verb == Verb::HostWait && !step->notify) {
        auto [at, fresh] = waited.emplace(step->index, host);
        if (!fresh) lower(at->second, host);
      }
    }
  }

  const Linear& linear_;
  std::size_t lanes_;
  const Plan& plan_;
  std::vector<Clock> before_, after_;
};

/// Compute ops of every lane, by position.
std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> compute_by_lane(const Plan& plan,
                                                                                  const Linear& linear) {
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> lanes(plan.lanes.size());
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i)
    if (is_compute(plan.ops[linear.ops[i].op].kind)) lanes[linear.ops[i].lane].emplace_back(linear.ops[i].position, i);
  return lanes;
}

class Namer {
 public:
  Namer(const Plan& plan, const Linear& linear) : plan_(plan), linear_(linear) {}

  std::string name(const LinearOp& transfer, bool dispatch, const std::vector<std::uint32_t>& compute) const {
    std::vector<const LinearOp*> named;
    for (const std::uint32_t i : compute)
      if (in_moe_part(linear_.ops[i])) named.push_back(&linear_.ops[i]);
    if (named.empty())
      for (const std::uint32_t i : compute) named.push_back(&linear_.ops[i]);
    std::int32_t base = transfer.layer;
    for (const LinearOp* op : named)
      if (op->layer >= 0) base = std::min(base, op->layer);
    std::string text = part(dispatch ? "D" : "C", transfer, base) + "|";
    bool first = true;
    for (const LinearOp* op : named) {
      const OpKind kind = plan_.ops[op->op].kind;
      std::string_view letter = op_name(kind);
      if (kind == OpKind::A0 || kind == OpKind::A1) {
        const bool both = has(named, kind == OpKind::A0 ? OpKind::A1 : OpKind::A0, *op);
        if (both && kind == OpKind::A1) continue;  // named where A0 stands
        if (both) letter = "A";
      }
      text += (first ? "" : "+") + part(letter, *op, base);
      first = false;
    }
    return text;
  }

 private:
  bool in_moe_part(const LinearOp& op) const { return op.layer >= plan_.shape.dense_layers; }

  bool has(const std::vector<const LinearOp*>& ops, OpKind kind, const LinearOp& like) const {
    return std::any_of(ops.begin(), ops.end(), [&](const LinearOp* op) {
      return plan_.ops[op->op].kind == kind && op->ubatch == like.ubatch && op->layer == like.layer;
    });
  }

  static std::string part(std::string_view letter, const LinearOp& op, std::int32_t base) {
    std::string text(letter);
    text += "[" + std::to_string(op.ubatch) + "]";
    if (op.layer > base) text.append(static_cast<std::size_t>(op.layer - base), '\'');
    return text;
  }

  const Plan& plan_;
  const Linear& linear_;
};

}  // namespace

PlannedWindows planned_windows(const Plan& plan, const Linear& linear) {
  const Bounds bounds(plan, linear);
  const auto compute = compute_by_lane(plan, linear);
  const Namer namer(plan, linear);
  PlannedWindows result;
  std::map<std::string, std::uint32_t> index_of_name;
  std::vector<std::uint32_t> inside;
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    const OpKind kind = plan.ops[op.op].kind;
    if ((!is_send(kind) && !is_collective(kind)) || op.pair == kNone) continue;
    const Clock &before = bounds.before(i), &after = bounds.after(op.pair);
    inside.clear();
    for (std::size_t lane = 0; lane < compute.size(); ++lane) {
      auto at = std::lower_bound(compute[lane].begin(), compute[lane].end(), std::pair(before[lane], 0U));
      for (; at != compute[lane].end() && at->first < after[lane]; ++at) inside.push_back(at->second);
    }
    if (inside.empty()) continue;
    std::sort(inside.begin(), inside.end());
    const std::string name = namer.name(op, is_dispatch(kind), inside);
    const auto [known, fresh] = index_of_name.emplace(name, static_cast<std::uint32_t>(result.names.size()));
    if (fresh) result.names.push_back(name);
    const auto first = static_cast<std::uint32_t>(result.compute.size());
    result.compute.insert(result.compute.end(), inside.begin(), inside.end());
    result.windows.push_back({known->second, i, op.layer, op.ubatch, is_dispatch(kind), first,
                              static_cast<std::uint32_t>(result.compute.size())});
  }
  return result;
}

std::vector<WindowShare> window_shares(const PlannedWindows& planned, const Trace& trace, std::int32_t rank,
                                       bool by_waits) {
  std::vector<WindowShare> shares(planned.names.size());
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i].name = planned.names[i];
  const Intervals compute = compute_intervals(trace, rank);
  const Transfers transfers(trace, rank);
  for (const PlannedWindow& window : planned.windows) {
    WindowShare& share = shares[window.name];
    ++share.planned;
    const auto transfer = transfers.find(window.dispatch, window.layer, window.ubatch);
    if (!transfer) continue;
    ++share.measured;
    const std::int64_t length = transfer->end - transfer->begin;
    const Transfers::Parts* parts = transfers.parts(window.dispatch, window.layer, window.ubatch);
    const std::int64_t hidden = by_waits && parts->arrived ? length - std::min(parts->waited, length)  // a wire
                                                           : covered(compute, *transfer);
    share.hidden += Ns{hidden};
    share.exposed += Ns{length - hidden};
  }
  return shares;
}

}  // namespace dbo
