// What a split of the SMs makes of one layer's communication and compute, for every number of communication SMs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/cost/analytical.h"

namespace dbo {

struct SmSplitPoint {
  int comm_sms = 0;
  std::int64_t comm_ns = 0, compute_ns = 0;  ///< work of one MoE layer, all ubatches, on rank 0; each alone
};

struct SmSplit {
  std::vector<SmSplitPoint> points;  ///< by number of SMs

  /// Least number from which more SMs gain less than 5 % of the communication.
  std::optional<int> knee() const;
  /// Least number from which communication takes no longer than compute on the SMs that are left: where it can hide.
  std::optional<int> crossover() const;
};

/// Watches a cost table being made. Meaningful for plans whose comm kernels have SMs of their own.
class SmSplitProbe {
 public:
  SmSplitProbe(const Plan& plan, const MachineSpec& machine);

  CostHook hook();
  SmSplit take() const;

 private:
  void add(const CostCell& cell);

  const MachineSpec& machine_;
  int ubatches_ = 1;
  std::int64_t dispatches_ = 0;  ///< seen; each layer class has one an ubatch
  SmSplit sums_;
};

/// Whether the plan sets SMs aside for comm kernels.
bool has_sm_split(const Plan& plan);

}  // namespace dbo
