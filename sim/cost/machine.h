// The machine a plan is priced for.
#pragma once

#include <vector>

#include "sim/base/settings.h"
#include "sim/cost/cost_table.h"
#include "sim/cost/factors.h"
#include "sim/model/hardware.h"

namespace dbo {

struct MachineSpec {
  GpuSpec gpu;
  FabricSpec fabric;
  HostCosts host;
  bool flows = false;                      ///< exchanges as pairwise flows that share ports, not as loads of ports
  std::vector<Straggler> stragglers = {};  ///< ranks that are slower than all this says
  const CostFactors* factors = nullptr;    ///< null: the ones that ship

  const CostFactors& rates() const { return factors != nullptr ? *factors : default_factors(); }
  /// What the ops of one rank share.
  MachineRates shared_rates() const;
  /// Ranks that share scale-up links, of a world's: nodes join into one domain where the fabric or a rack says so.
  int link_domain(const World& world) const;
  double nic_bytes_per_s() const;
};

/// Blocks of a comm kernel when the plan sets no SMs aside for it (an un-split server): what DeepEP starts with.
inline constexpr int kDefaultCommSms = 20;

/// The SMs an op may use: those of its pool.
int pool_sms(const Plan& plan, const OpDef& op, const GpuSpec& gpu);

}  // namespace dbo
