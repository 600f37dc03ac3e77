#include "sim/search/order_task.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

using enum OpKind;

LaneId lane_of(OpKind kind) {
  return is_collective(kind) ? kCommLane : kComputeLane;
}

/// An edge from the end of one node to the end of another: it ends at least `weight` later, counted from the iteration
/// `periods` before.
struct Arc {
  std::size_t from = 0, to = 0;
  std::int64_t weight = 0;
  int periods = 0;
};

class ArcMaker {
 public:
  ArcMaker(const OrderTask& task, const LaunchOrder& order) : task_(task), order_(order) {}

  std::vector<Arc> make() {
    nodes_ = order_.size();
    add_lane(kComputeLane);
    add_lane(kCommLane);
    for (int u = 0; u < task_.ubatches; ++u) add_data(u);
    add_wires();
    return arcs_;
  }
  std::size_t nodes() const { return nodes_; }

 private:
  std::size_t at(OpKind kind, int ubatch) const {
    const auto found = std::find(order_.begin(), order_.end(), OrderOp{kind, ubatch});
    DBO_CHECK(found != order_.end(), "the order lacks an op");
    return static_cast<std::size_t>(found - order_.begin());
  }
  std::int64_t time(std::size_t node) const { return task_.time(order_[node].kind, order_[node].ubatch); }

  void add_lane(LaneId lane) {
    std::vector<std::size_t> queue;
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (lane_of(order_[i].kind) == lane) queue.push_back(i);
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::size_t next = (i + 1) % queue.size();
      arcs_.push_back({queue[i], queue[next], task_.node_gap + time(queue[next]), next == 0 ? 1 : 0});
    }
  }

  /// `to` needs the latest `from` launched before it.
  void need(OpKind from, OpKind to, int ubatch) {
    const std::size_t a = at(from, ubatch), b = at(to, ubatch);
    const std::int64_t gap = lane_of(from) == lane_of(to) ? 0 : task_.lane_gap;
    arcs_.push_back({a, b, gap + task_.node_gap + time(b), a < b ? 0 : 1});
  }

  void add_data(int ubatch) {
    if (!task_.low_latency)  // on one lane data never waits longer than the lane
      for (const auto& [from, to] : {std::pair{A1, D}, std::pair{D, MLP}, std::pair{MLP, C}, std::pair{C, A0}})
        need(from, to, ubatch);
  }

  /// A wire begins when its send has ended and the wire before it has; its receive ends no earlier than wire and
  /// receive kernel after that.
  void add_wires() {
    std::vector<std::size_t> sends;
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (is_send(order_[i].kind)) sends.push_back(i);
    for (std::size_t s = 0; s < sends.size(); ++s) {
      const OrderOp& op = order_[sends[s]];
      const bool dispatch = is_dispatch(op.kind);
      const std::int64_t wire = task_.time(dispatch ? DWire : CWire, op.ubatch);
      const std::size_t recv = at(dispatch ? DRecv : CRecv, op.ubatch), node = nodes_ + s;
      arcs_.push_back({sends[s], node, wire, 0});
      arcs_.push_back({node, recv, time(recv), sends[s] < recv ? 0 : 1});
      const OrderOp& next = order_[sends[(s + 1) % sends.size()]];
      arcs_.push_back({node, nodes_ + (s + 1) % sends.size(),
                       task_.time(is_dispatch(next.kind) ? DWire : CWire, next.ubatch), s + 1 == sends.size() ? 1 : 0});
    }
    nodes_ += sends.size();
  }

  const OrderTask& task_;
  const LaunchOrder& order_;
  std::size_t nodes_ = 0;
  std::vector<Arc> arcs_;
};

/// A circle whose time exceeds `time` / `periods` a period: its own (time, periods). Longest paths by relaxation, all
/// in integers.
struct Circle {
  std::int64_t time = 0, periods = 0;
};

Circle slower_circle(const std::vector<Arc>& arcs, std::size_t nodes, Circle than) {
  std::vector<std::int64_t> length(nodes, 0);
  std::vector<std::size_t> by(nodes, SIZE_MAX);
  std::size_t changed = SIZE_MAX;
  for (std::size_t round = 0; round <= nodes; ++round) {
    changed = SIZE_MAX;
    for (std::size_t a = 0; a < arcs.size(); ++a) {
      const Arc& arc = arcs[a];
      const std::int64_t longer = length[arc.from] + arc.weight * than.periods - than.time * arc.periods;
      if (longer <= length[arc.to]) continue;
      length[arc.to] = longer;
      by[arc.to] = a;
      changed = arc.to;
    }
    if (changed == SIZE_MAX) return {};
  }
  // The node changed in the last round is behind a circle: walk back into it, then once around.
  for (std::size_t i = 0; i < nodes; ++i) changed = arcs[by[changed]].from;
  Circle circle;
  for (std::size_t node = changed;;) {
    const Arc& arc = arcs[by[node]];
    circle.time += arc.weight;
    circle.periods += arc.periods;
    node = arc.from;
    if (node == changed) break;
  }
  return circle;
}

/// Adds the times of the MoE iterations that begin at `first` to `task`.
void add_times(const Plan& plan, const CostTable& costs, int group, std::int32_t first, int iterations,
               OrderTask& task) {
  for (int u = 0; u < task.ubatches; ++u) {
    std::array<std::int64_t, kOpKinds>& times = task.times[static_cast<std::size_t>(u)];
    const auto cost = [&](OpKind kind, std::int32_t layer) -> OpCost {
      const auto op = plan.find_op(op_name(kind));
      return op ? costs.at(group, costs.layer_class(layer), u, *op) : OpCost{};
    };
    for (int i = 0; i < iterations; ++i) {
      const std::int32_t moe = first + (i + 1) * task.stride - 1;
      for (const OpKind kind : {A0, A1, D, DSend, DRecv, MLP, S, C, CSend, CRecv}) {
        times[static_cast<std::size_t>(kind)] += cost(kind, moe).occupied().count();
        if (kind == DRecv) times[static_cast<std::size_t>(DWire)] += cost(kind, moe).wire.count();
        if (kind == CRecv) times[static_cast<std::size_t>(CWire)] += cost(kind, moe).wire.count();
      }
      // Dense layers in an iteration run right before its A0.
      for (std::int32_t layer = moe - task.stride + 1; layer < moe; ++layer)
        for (const OpKind kind : {A0, A1, FFN})
          times[static_cast<std::size_t>(A0)] += cost(kind, layer).time.count() + task.node_gap / task.layers;
    }
  }
}

std::int64_t lane_work(const OrderTask& task, LaneId lane) {
  std::int64_t work = 0;
  for (int u = 0; u < task.ubatches; ++u)
    for (const OpKind kind : task.chain())
      if (lane_of(kind) == lane) work += task.time(kind, u) + task.node_gap;
  return work;
}

}  // namespace

std::vector<OpKind> OrderTask::chain() const {
  std::vector<OpKind> ops = low_latency ? std::vector<OpKind>{A0, A1, DSend, DRecv, MLP, CSend, CRecv}
                                        : std::vector<OpKind>{A0, A1, D, MLP, C};
  if (shared) ops.push_back(S);
  return ops;
}

std::int64_t OrderTask::period(std::int64_t cycle) const {
  return ceil_div(cycle, std::int64_t{layers} * stride);
}

bool is_order(const OrderTask& task, const LaunchOrder& order) {
  std::vector<OpKind> chain = task.chain();
  if (order.size() != chain.size() * static_cast<std::size_t>(task.ubatches)) return false;
  if (task.shared) chain.pop_back();
  for (int u = 0; u < task.ubatches; ++u) {
    std::vector<OpKind> own;
    for (const OrderOp& op : order)
      if (op.ubatch == u) own.push_back(op.kind);
    const auto begin = std::find(own.begin(), own.end(), A0);
    if (begin == own.end()) return false;
    std::rotate(own.begin(), begin, own.end());
    if (task.shared && (own.size() < 3 || own[1] == S || std::erase(own, S) != 1)) return false;
    if (own != chain) return false;
  }
  // Three times around: the calls of the middle period are where they always are.
  std::vector<std::pair<OrderOp, bool>> calls;  // sent; whether received
  const auto slots = static_cast<std::size_t>(task.in_flight);
  for (int period = 0; period < 3; ++period) {
    for (const OrderOp& op : order) {
      if (is_send(op.kind)) {
        if (calls.size() >= slots && !calls[calls.size() - slots].second) return false;
        calls.emplace_back(op, false);
      } else if (is_recv(op.kind)) {
        const OrderOp send{op.kind == DRecv ? DSend : CSend, op.ubatch};
        const auto open = std::find(calls.begin(), calls.end(), std::pair(send, false));
        if (open != calls.end()) open->second = true;
      }
    }
  }
  return true;
}

OrderTask make_order_task(const Plan& plan, const CostTable& costs, int in_flight) {
  OrderTask task;
  task.ubatches = costs.ubatches();
  task.low_latency = plan.find_op(op_name(DSend)).has_value();
  task.shared = plan.shape.has_shared();
  task.stride = plan.shape.moe_period;
  task.in_flight = in_flight;
  task.layers = costs.layer_classes() > 1 ? std::max(1, plan.shape.moe_layers()) : 1;
  task.node_gap = costs.host.node_gap_in(plan.execution).count() * task.layers;
  task.lane_gap = costs.host.lane_gap_in(plan.execution).count() * task.layers;
  std::int64_t most = -1;
  OrderTask slowest = task;
  for (int group = 0; group < costs.groups(); ++group) {
    OrderTask candidate = task;
    candidate.times.assign(static_cast<std::size_t>(task.ubatches), {});
    add_times(plan, costs, group, plan.shape.dense_layers, task.layers, candidate);
    const std::int64_t bound = cycle_bound(candidate);
    if (bound <= most) continue;
    most = bound;
    slowest = std::move(candidate);
  }
  return slowest;
}

std::int64_t cycle_bound(const OrderTask& task) {
  std::int64_t bound = std::max(lane_work(task, kComputeLane), lane_work(task, kCommLane));
  std::int64_t calls = 0;
  for (int u = 0; u < task.ubatches; ++u) {
    const auto at = [&](OpKind kind) { return task.time(kind, u); };
    const auto kernel = [&](OpKind kind) { return at(kind) + task.node_gap; };
    std::int64_t exchange = 0;
    if (task.low_latency) {
      // A receive right behind its wire starts without a gap.
      const std::int64_t own = at(DWire) + at(CWire);
      calls += task.in_flight == 1 ? own + kernel(DSend) + kernel(CSend) + at(DRecv) + at(CRecv) : own;
      exchange = own + kernel(DSend) + kernel(CSend) + at(DRecv) + at(CRecv);
    } else {
      exchange = kernel(D) + kernel(C) + 4 * task.lane_gap;
    }
    const std::int64_t experts = exchange + kernel(MLP);
    const std::int64_t shared = task.shared ? kernel(S) : 0;
    bound = std::max(bound, kernel(A0) + kernel(A1) + std::max(experts, shared));
  }
  return std::max(bound, calls);
}

std::int64_t cycle_time(const OrderTask& task, const LaunchOrder& order) {
  ArcMaker maker(task, order);
  const std::vector<Arc> arcs = maker.make();
  // Every circle found is slower than the last, and there are finitely many.
  Circle slowest{0, 1};
  for (;;) {
    const Circle circle = slower_circle(arcs, maker.nodes(), slowest);
    if (circle.periods == 0) {
      DBO_CHECK(circle.time == 0, "an order in which an op waits for itself");
      return ceil_div(slowest.time, slowest.periods);
    }
    slowest = circle;
  }
}

bool cycle_exceeds(const OrderTask& task, const LaunchOrder& order, std::int64_t limit) {
  ArcMaker maker(task, order);
  const std::vector<Arc> arcs = maker.make();
  return slower_circle(arcs, maker.nodes(), {limit, 1}).periods > 0;
}

Notation notation_of_order(const OrderTask& task, const LaunchOrder& order) {
  Notation out;
  for (const OrderOp& op : order) {
    const std::string name = noted_name({op.kind, op.ubatch, 0});
    out.order += (out.order.empty() ? "" : " ") + name;
    if (task.low_latency && (is_send(op.kind) || is_recv(op.kind))) continue;
    std::string& row = lane_of(op.kind) == kCommLane ? out.comm : out.compute;
    row += (row.empty() ? "" : " ") + name;
  }
  return out;
}

}  // namespace dbo
