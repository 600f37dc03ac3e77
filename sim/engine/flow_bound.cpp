#include "sim/engine/flow_bound.h"

#include <algorithm>
#include <array>

#include "sim/base/units.h"

namespace dbo {
namespace {

/// Of one ubatch in one layer on one rank, alone.
struct Stage {
  std::int64_t attention = 0, experts = 0;
  struct Half {
    std::int64_t send = 0, after = 0;  ///< the send kernel, and from its start to that of its flows
    std::int64_t take = 0;             ///< from the last byte there to the end of the receive
  };
  std::array<Half, 2> halves{};  ///< combine, dispatch
};

class Bounds {
 public:
  Bounds(const Plan& plan, const CostTable& costs, std::int32_t first, std::int32_t end)
      : plan_(plan),
        costs_(costs),
        first_(first),
        layers_(static_cast<std::size_t>(end - first)),
        groups_(static_cast<std::size_t>(costs.groups())),
        ubatches_(static_cast<std::size_t>(costs.ubatches())),
        stages_(layers_ * ubatches_ * groups_),
        used_(layers_ * ubatches_, std::array<bool, 2>{}),
        halves_(used_) {}

  FlowBounds find(const Linear& linear) {
    for (const LinearOp& op : linear.ops)
      if (op.layer >= first_ && op.layer < first_ + static_cast<std::int32_t>(layers_)) add(op);
    FlowBounds out;
    out.chains.assign(ubatches_, 0);
    std::vector<std::int64_t> ports(costs_.flows.ports.size(), 0);
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t u = 0; u < ubatches_; ++u)
        for (const bool dispatch : {true, false}) {
          if (!used_[layer * ubatches_ + u][dispatch]) continue;
          const std::vector<PairFlow>& flows = costs_.call_flows(
              costs_.layer_class(first_ + static_cast<std::int32_t>(layer)), static_cast<int>(u), dispatch);
          for (const PairFlow& flow : flows)
            for (const std::int32_t port : {flow.out, flow.in}) ports[static_cast<std::size_t>(port)] += flow.work;
          if (!halves_[layer * ubatches_ + u][dispatch]) continue;
          std::vector<std::int64_t> next(groups_, 0);
          out.calls += call(layer, u, dispatch, flows, next);
          for (std::size_t g = 0; g < groups_; ++g)
            next[g] = dispatch ? at(layer, u, g).experts : at((layer + 1) % layers_, u, g).attention;
          out.chains[u] += call(layer, u, dispatch, flows, next);
        }
    for (std::size_t p = 0; p < ports.size(); ++p)
      out.ports = std::max(out.ports, ceil_div(ports[p], costs_.flows.ports[p]));
    return out;
  }

 private:
  Stage& at(std::size_t layer, std::size_t ubatch, std::size_t group) {
    return stages_[(layer * ubatches_ + ubatch) * groups_ + group];
  }

  void add(const LinearOp& op) {
    const OpKind kind = plan_.ops[op.op].kind;
    const std::size_t layer = static_cast<std::size_t>(op.layer - first_), call = layer * ubatches_ + op.ubatch;
    const auto dispatch = static_cast<std::size_t>(is_dispatch(kind));
    used_[call][dispatch] = used_[call][dispatch] || is_send(kind) || is_collective(kind);
    halves_[call][dispatch] = halves_[call][dispatch] || is_send(kind);
    for (std::size_t g = 0; g < groups_; ++g) {
      const OpCost& cost = costs_.at(static_cast<int>(g), costs_.layer_class(op.layer), op.ubatch, op.op);
      Stage& stage = at(layer, op.ubatch, g);
      if (kind == OpKind::A0 || kind == OpKind::A1 || kind == OpKind::FFN) stage.attention += cost.time.count();
      if (kind == OpKind::MLP) stage.experts += cost.time.count();
      Stage::Half& half = stage.halves[dispatch];
      if (is_send(kind)) {
        half.send += cost.time.count();
        half.after += std::min(cost.data_after, cost.time).count();
      }
      if (is_recv(kind)) half.take += cost.data_floor.count() + cost.time.count();
    }
  }

  /// From the start of the last send to the end of the last receive with what follows it on its rank. Whoever sends
  /// last: each rank waits for its send, its flow to that rank, and all its flows leave by the ports they have.
  std::int64_t call(std::size_t layer, std::size_t u, bool dispatch, const std::vector<PairFlow>& flows,
                    const std::vector<std::int64_t>& next) {
    const auto rest = [&](std::size_t g) { return at(layer, u, g).halves[dispatch].take + next[g]; };
    std::int64_t longest_rest = 0;
    for (std::size_t g = 0; g < groups_; ++g) longest_rest = std::max(longest_rest, rest(g));
    std::int64_t least = INT64_MAX;
    auto flow = flows.begin();
    for (std::size_t sender = 0; sender < groups_; ++sender) {
      const Stage::Half& half = at(layer, u, sender).halves[dispatch];
      std::int64_t longest = half.send + longest_rest, shortest_rest = INT64_MAX;
      std::array<std::pair<std::int32_t, std::int64_t>, 2> out{{{-1, 0}, {-1, 0}}};  // port, work
      for (; flow != flows.end() && flow->from == static_cast<std::int32_t>(sender); ++flow) {
        const auto to = static_cast<std::size_t>(flow->to);
        longest = std::max(longest, half.after + alone(*flow) + rest(to));
        shortest_rest = std::min(shortest_rest, rest(to));
        auto& port = out[0].first == flow->out || out[0].first < 0 ? out[0] : out[1];
        port = {flow->out, port.second + flow->work};
      }
      for (const auto& [port, work] : out)
        if (work > 0) longest = std::max(longest, half.after + ceil_div(work, rate(port)) + shortest_rest);
      least = std::min(least, longest);
    }
    return least;
  }

  std::int64_t rate(std::int32_t port) const { return costs_.flows.ports[static_cast<std::size_t>(port)]; }
  std::int64_t alone(const PairFlow& flow) const {
    return ceil_div(flow.work, std::min(rate(flow.out), rate(flow.in)));
  }

  const Plan& plan_;
  const CostTable& costs_;
  std::int32_t first_;
  std::size_t layers_, groups_, ubatches_;
  std::vector<Stage> stages_;                       ///< by layer, ubatch, group
  std::vector<std::array<bool, 2>> used_, halves_;  ///< by layer, ubatch: the call is made; by a send and a receive
};

}  // namespace

FlowBounds flow_bounds(const Plan& plan, const CostTable& costs, const Linear& linear, std::int32_t first,
                       std::int32_t end) {
  return Bounds(plan, costs, first, end).find(linear);
}

}  // namespace dbo
