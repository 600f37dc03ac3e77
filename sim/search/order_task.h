// The question the optimiser answers, without plans: what the ops of one steady MoE layer take, and how long a period a
// given order of them has when only lanes, transfers and data count.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/sched/notation.h"

namespace dbo {

/// Times in ns, added up over `layers` layers (1 when all MoE layers cost the same). They are those of one rank group:
/// every other rank only adds waiting.
struct OrderTask {
  int ubatches = 2;
  bool low_latency = true;
  bool shared = true;
  int layers = 1;                                         ///< MoE layers the times are sums over
  int stride = 1;                                         ///< layers of the model an iteration covers
  int in_flight = 1;                                      ///< low latency: calls that may be un-received
  std::vector<std::array<std::int64_t, kOpKinds>> times;  ///< by ubatch, then kind; a call's wire as DWire or CWire
  std::int64_t node_gap = 0;                              ///< from an op to the next on its lane
  std::int64_t lane_gap = 0;                              ///< added when the op before is on the other lane

  std::int64_t time(OpKind kind, int ubatch) const {
    return times[static_cast<std::size_t>(ubatch)][static_cast<std::size_t>(kind)];
  }
  /// The ops of one ubatch and layer in the order of their data; the shared expert last, as it may come anywhere behind
  /// A1 and before the next A0.
  std::vector<OpKind> chain() const;
  /// The period of a model layer from the cycle of `layers` iterations, rounded up.
  std::int64_t period(std::int64_t cycle) const;
};

/// One launch of a period.
struct OrderOp {
  OpKind kind = OpKind::A0;
  int ubatch = 0;

  friend bool operator==(const OrderOp&, const OrderOp&) = default;
};
using LaunchOrder = std::vector<OrderOp>;

/// Whether the order is one the searches may give: each op once, those of an ubatch in the cyclic order of their data,
/// and no more calls under way than the task allows.
bool is_order(const OrderTask& task, const LaunchOrder& order);

/// The task of a plan without C.copy and its costs: of the rank group whose lanes have most to do.
OrderTask make_order_task(const Plan& plan, const CostTable& costs, int in_flight);

/// What no order can beat: the busier lane, the port's calls or wires, or the chain of one ubatch. In the task's units.
std::int64_t cycle_bound(const OrderTask& task);

/// The cycle of an order: the largest ratio of time to periods over all circles of lanes, data and wires, rounded up.
/// Exact; every op starts as soon as these let it. The order must list each op of each ubatch once, those of a ubatch
/// in the cyclic order of their data.
std::int64_t cycle_time(const OrderTask& task, const LaunchOrder& order);

/// Whether it is more than `limit`: far cheaper than how much.
bool cycle_exceeds(const OrderTask& task, const LaunchOrder& order, std::int64_t limit);

/// The period as notation, lanes included.
Notation notation_of_order(const OrderTask& task, const LaunchOrder& order);

}  // namespace dbo
