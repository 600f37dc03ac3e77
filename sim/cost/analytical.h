// Costs from first principles: the work of each op's kernels and each exchange, at the rates a GPU and fabric reach.
#pragma once

#include <functional>

#include "sim/cost/op_price.h"
#include "sim/plan/routing.h"

namespace dbo {

/// One cell of a table being made: an op of a rank group, with what it works on.
struct CostCell {
  const OpDef* op = nullptr;
  const OpContext* context = nullptr;  ///< compute ops
  const Exchange* exchange = nullptr;  ///< all ops: the exchange of the cell's layer and ubatch
  int rank = 0;                        ///< an example of the group
  int sms = 0;                         ///< of the op's pool
};

/// Called for every cell with its analytical cost, which it may change.
using CostHook = std::function<void(const CostCell&, OpCost&)>;

/// The table of every op of the plan. Ranks with equal loads share a group when routing is balanced, otherwise each is
/// its own. Throws InputError when the shape has no dimensions (fixed costs are for those) or routing does not fit.
/// `loads`: counted for plans of the same world, shape and routing; counting is most of the work where routing is
/// drawn.
CostTable analytical_costs(const Plan& plan, const MachineSpec& machine, const CostHook& hook = {},
                           RoutedLoads* loads = nullptr);

}  // namespace dbo
