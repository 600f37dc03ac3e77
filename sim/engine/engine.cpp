#include "sim/engine/engine.h"

#include <algorithm>

#include "sim/engine/contended.h"
#include "sim/engine/plain.h"

namespace dbo {
namespace {

bool asks(const OpCost& cost, const MachineRates& machine) {
  const OpDemand& d = cost.demand;
  const WireTraffic& w = cost.wire_traffic;
  return (machine.sms > 0 && d.sms > 0) || (machine.hbm_bytes_per_s > 0 && (d.hbm_bytes > 0 || w.hbm_bytes > 0)) ||
         (machine.link_bytes_per_s > 0 && (d.link_bytes > 0 || w.link_bytes > 0)) ||
         (machine.nic_bytes_per_s > 0 && (d.nic_bytes > 0 || w.nic_bytes > 0)) || cost.beside > cost.time;
}

}  // namespace

bool is_contended(const Plan& plan, const CostTable& costs) {
  if (!costs.machine.any()) return false;
  for (int group = 0; group < costs.groups(); ++group)
    for (int layer_class = 0; layer_class < costs.layer_classes(); ++layer_class)
      for (int ubatch = 0; ubatch < costs.ubatches(); ++ubatch)
        for (OpId op = 0; op < plan.ops.size(); ++op)
          if (asks(costs.at(group, layer_class, ubatch, op), costs.machine)) return true;
  return false;
}

std::int64_t EngineResult::step() const {
  return step_ns.empty() ? 0 : *std::max_element(step_ns.begin(), step_ns.end());
}

int EngineResult::slowest() const {
  return static_cast<int>(std::max_element(step_ns.begin(), step_ns.end()) - step_ns.begin());
}

EngineResult run_engine(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  const bool contended = options.executor == Executor::Contended || costs.flows.on() ||
                         (options.executor == Executor::Auto && is_contended(plan, costs));
  return contended ? run_contended(plan, costs, options) : run_plain(plan, costs, options);
}

}  // namespace dbo
