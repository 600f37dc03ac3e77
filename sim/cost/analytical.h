// Costs from first principles: the work of each op's kernels and each exchange, at the rates a GPU and fabric reach.
#pragma once

#include <string>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/cost/exchange.h"
#include "sim/cost/kernel_time.h"
#include "sim/plan/routing.h"

namespace dbo {

/// The machine a plan runs on.
struct MachineSpec {
  GpuSpec gpu;
  FabricSpec fabric;
  HostCosts host;
  const CostFactors* factors = nullptr;  ///< null: the ones that ship
  /// Prices the ops of a split step with SMs set aside for communication as running beside each other throughout: for
  /// an engine that does not work contention out itself.
  bool always_beside = false;

  /// Ranks that share scale-up links, of a world's.
  int link_domain(const World& world) const;
  double nic_bytes_per_s() const;
};

/// The table of every op of the plan. Ranks with equal loads share a group when routing is balanced, otherwise each is
/// its own. Throws InputError when the shape has no dimensions (fixed costs are for those) or routing does not fit.
CostTable analytical_costs(const Plan& plan, const MachineSpec& machine);

/// Blocks of a comm kernel when the plan sets no SMs aside for it (an un-split server): what DeepEP starts with.
inline constexpr int kDefaultCommSms = 20;

/// The SMs an op may use: those of its pool.
int pool_sms(const Plan& plan, const OpDef& op, const GpuSpec& gpu);

/// A compute op's kernels with their times: what tables of accuracy show.
struct TimedKernel {
  KernelWork work;
  KernelTime time;
};
std::vector<TimedKernel> timed_kernels(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms);

}  // namespace dbo
