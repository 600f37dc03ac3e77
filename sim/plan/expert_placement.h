// Which rank holds which expert. Logical experts are the model's; physical ones are its copies on the ranks, replicas
// included: physical expert p lives on rank p / slots.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo {

struct ExpertPlacement {
  int slots = 0;                           ///< physical experts a rank holds
  std::vector<int> logical;                ///< [ranks * slots] the logical expert each physical one is a copy of
  std::vector<std::vector<int>> replicas;  ///< [logical experts] its physical copies, ascending

  int physical() const { return static_cast<int>(logical.size()); }
  int rank_of(int expert) const { return expert / slots; }
};

/// How loaded the experts are, as far as placement cares.
struct ExpertWeights {
  std::vector<std::uint32_t> weights;  ///< [logical experts], below 2^24
  /// Every physical expert will get the same rows, however many copies its logical one has (balanced routing).
  bool equal_copies = false;
};

/// Without redundant experts, expert e lives on rank e / (experts / ranks). With them, replicas go one by one to the
/// expert with the most load a copy (ties in turn over the groups), then the copies, most loaded first, each to the
/// least loaded rank with a free slot, one without a copy of it if there is any.
/// Throws InputError when experts and replicas do not divide over the ranks.
ExpertPlacement place_experts(const World& world, int groups, const ExpertWeights& weights, int redundant);

}  // namespace dbo
