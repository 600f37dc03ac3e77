#include "sim/cost/machine.h"

#include <algorithm>

namespace dbo {

int MachineSpec::link_domain(const World& world) const {
  // A GPU's links up to this many GPUs are those of a board inside a node; beyond, a rack's, which joins nodes.
  constexpr int kLargestBoard = 8;
  const bool joins_nodes = fabric.link_domain > 0 || gpu.link_domain > kLargestBoard;
  const int limit = fabric.link_domain > 0 ? fabric.link_domain : gpu.link_domain;
  // A node with more GPUs than a domain stays one.
  if (!joins_nodes || limit <= world.ranks_per_node) return std::min(world.ranks_per_node, world.ranks);
  return std::min(limit / world.ranks_per_node * world.ranks_per_node, world.ranks);
}

MachineRates MachineSpec::shared_rates() const {
  const auto rate = [](double bytes_per_s) { return static_cast<std::int64_t>(bytes_per_s + 0.5); };
  const ComputeFactors& f = rates().compute;
  return {.sms = gpu.sms,
          .hbm_bytes_per_s = rate(gpu.hbm_bytes_per_s * f.hbm),
          .sm_bytes_per_s = rate(f.sm_bytes_per_s),
          .link_bytes_per_s = rate(gpu.link_bytes_per_s),
          .nic_bytes_per_s = rate(nic_bytes_per_s())};
}

double MachineSpec::nic_bytes_per_s() const {
  return fabric.nic_bytes_per_s > 0 ? fabric.nic_bytes_per_s : gpu.nic_bytes_per_s;
}

int pool_sms(const Plan& plan, const OpDef& op, const GpuSpec& gpu) {
  switch (op.sms) {
    case SmPool::Compute:
      return plan.sm.compute > 0 ? std::min(plan.sm.compute, gpu.sms) : gpu.sms;
    case SmPool::Comm:
      // Nothing set aside: comm kernels still have a block count of their own.
      return std::min(plan.sm.comm > 0 ? plan.sm.comm : kDefaultCommSms, gpu.sms);
    case SmPool::All:
      return gpu.sms;
    case SmPool::None:
      return 0;
  }
  return gpu.sms;
}

}  // namespace dbo
