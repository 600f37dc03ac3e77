#include "sim/cost/cost_range.h"

#include <algorithm>

namespace dbo {
namespace {

__extension__ using Wide = __int128;

Wide whole_time(const OpCost& cost) {
  return Wide{std::max(cost.time, cost.beside).count()} + cost.wire.count() + cost.peers.count() + cost.notify.count();
}

std::int64_t longest_time(const OpCost& cost) {
  return std::max({cost.time, cost.wire, cost.beside, cost.peers, cost.notify}).count();
}

std::string seconds_text(std::int64_t ns) {
  return std::to_string(ns / 1'000'000'000) + " s";
}

/// Instructions of the longest thread, repeats counted: an upper bound of the host steps of a rank, per thread.
Wide instructions(const Plan& plan) {
  Wide all = 0;
  for (const Thread& thread : plan.threads) {
    for (const Instruction& i : thread.body) {
      if (i.verb == Verb::Repeat || i.verb == Verb::Block) {
        const auto body = static_cast<std::int64_t>(plan.blocks[i.block].body.size());
        all += Wide{body} * (i.verb == Verb::Repeat ? i.count : 1);
      } else {
        all += 1 + static_cast<std::int64_t>(i.hook.size());
      }
    }
  }
  return all;
}

}  // namespace

std::string beyond_range(const Plan& plan, const CostTable& costs) {
  std::int64_t longest = 0;
  OpId longest_op = 0;
  Wide longest_whole = 0;
  for (int group = 0; group < costs.groups(); ++group) {
    for (int layer = 0; layer < costs.layer_classes(); ++layer) {
      for (int ubatch = 0; ubatch < costs.ubatches(); ++ubatch) {
        for (OpId op = 0; op < plan.ops.size(); ++op) {
          const OpCost& cost = costs.at(group, layer, ubatch, op);
          longest_whole = std::max(longest_whole, whole_time(cost));
          if (longest_time(cost) <= longest) continue;
          longest = longest_time(cost);
          longest_op = op;
        }
      }
    }
  }
  if ((costs.machine.any() || costs.flows.on()) && longest > kMaxSharedOpNs)
    return plan.ops[longest_op].name + " takes " + seconds_text(longest) + " on a rank, an op may take at most " +
           seconds_text(kMaxSharedOpNs);
  const HostCosts& h = costs.host;
  const Wide host =
      std::max({h.launch, h.record, h.wait, h.yield, h.node_gap, h.lane_gap, h.eager_node_gap, h.eager_lane_gap})
          .count();
  const Wide step = instructions(plan) * (longest_whole + 3 * host) + h.graph_launch.count();
  if (step > kMaxStepNs)
    return "with ops of up to " + seconds_text(longest) + " the step may take longer than " + seconds_text(kMaxStepNs) +
           ", the most there is";
  return "";
}

}  // namespace dbo
