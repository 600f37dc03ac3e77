#include "sim/plan/expert_placement.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

/// One copy of a logical expert, before it has a rank.
struct Copy {
  std::uint64_t load;  ///< of the expert's weight, in 2^-20
  int logical;
};

/// The copies of every expert, most loaded first. `order`: the experts in the order in which ties are broken.
std::vector<Copy> copies_of(const std::vector<int>& order, const ExpertWeights& weights, int redundant, int ranks) {
  std::vector<std::uint64_t> counts(order.size(), 1);
  const auto weight = [&](std::size_t i) { return std::uint64_t{weights.weights[static_cast<std::size_t>(order[i])]}; };
  for (int extra = 0; extra < redundant; ++extra) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      // More copies than ranks help nobody, so a full expert loses to any other.
      const bool full = counts[i] >= static_cast<std::uint64_t>(ranks);
      const bool best_full = counts[best] >= static_cast<std::uint64_t>(ranks);
      const std::uint64_t here = weight(i) * counts[best], there = weight(best) * counts[i];
      if (full != best_full ? best_full : here > there || (here == there && counts[i] < counts[best])) best = i;
    }
    ++counts[best];
  }
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (std::uint64_t c = 0; c < counts[i]; ++c)
      copies.push_back({weights.equal_copies ? 1 : (weight(i) << 20) / counts[i], order[i]});
  std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.load > b.load; });
  return copies;
}

/// The experts each rank holds, ascending.
std::vector<std::vector<int>> spread(const std::vector<Copy>& copies, int ranks, int slots) {
  std::vector<std::uint64_t> load(static_cast<std::size_t>(ranks), 0);
  std::vector<std::vector<int>> held(load.size());
  for (const Copy& copy : copies) {
    std::size_t best = load.size();
    bool best_has = false;
    for (std::size_t rank = 0; rank < load.size(); ++rank) {
      if (held[rank].size() >= static_cast<std::size_t>(slots)) continue;
      const bool has = std::find(held[rank].begin(), held[rank].end(), copy.logical) != held[rank].end();
      if (best == load.size() || (has != best_has ? best_has : load[rank] < load[best])) {
        best = rank;
        best_has = has;
      }
    }
    DBO_CHECK(best < load.size(), "there are as many slots as copies");
    held[best].push_back(copy.logical);
    load[best] += copy.load;
  }
  for (std::vector<int>& experts : held) std::sort(experts.begin(), experts.end());
  return held;
}

}  // namespace

ExpertPlacement place_experts(const World& world, int groups, const ExpertWeights& weights, int redundant) {
  const int experts = static_cast<int>(weights.weights.size());
  if (experts == 0 || (experts + redundant) % world.ranks != 0)
    throw InputError(std::to_string(experts) + " experts and " + std::to_string(redundant) +
                     " redundant ones do not divide evenly over " + std::to_string(world.ranks) + " ranks");
  ExpertPlacement placement;
  placement.slots = (experts + redundant) / world.ranks;
  placement.logical.resize(static_cast<std::size_t>(experts + redundant));
  if (redundant == 0) {
    for (int e = 0; e < experts; ++e) placement.logical[static_cast<std::size_t>(e)] = e;
  } else {
    // First experts of all groups before second ones, so that ties spread replicas over the groups.
    std::vector<int> order;
    for (int i = 0; i < experts / groups; ++i)
      for (int g = 0; g < groups; ++g) order.push_back(g * (experts / groups) + i);
    std::size_t p = 0;
    for (const std::vector<int>& held :
         spread(copies_of(order, weights, redundant, world.ranks), world.ranks, placement.slots))
      for (const int expert : held) placement.logical[p++] = expert;
  }
  placement.replicas.resize(static_cast<std::size_t>(experts));
  for (int p = 0; p < placement.physical(); ++p)
    placement.replicas[static_cast<std::size_t>(placement.logical[static_cast<std::size_t>(p)])].push_back(p);
  return placement;
}

}  // namespace dbo
