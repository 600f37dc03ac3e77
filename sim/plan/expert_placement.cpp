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

/// Part of the machine that is filled on its own: all of it, or a node.
struct Part {
  std::vector<int> experts;  ///< logical, in the order in which ties are broken
  int redundant;
  int first_rank, ranks;
};

std::vector<Copy> copies_of(const Part& part, const ExpertWeights& weights) {
  std::vector<std::uint64_t> counts(part.experts.size(), 1);
  const auto weight = [&](std::size_t i) {
    return std::uint64_t{weights.weights[static_cast<std::size_t>(part.experts[i])]};
  };
  for (int extra = 0; extra < part.redundant; ++extra) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      // More copies than ranks help nobody, so a full expert loses to any other.
      const bool full = counts[i] >= static_cast<std::uint64_t>(part.ranks);
      const bool best_full = counts[best] >= static_cast<std::uint64_t>(part.ranks);
      const std::uint64_t here = weight(i) * counts[best], there = weight(best) * counts[i];
      if (full != best_full ? best_full : here > there || (here == there && counts[i] < counts[best])) best = i;
    }
    ++counts[best];
  }
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (std::uint64_t c = 0; c < counts[i]; ++c)
      copies.push_back({weights.equal_copies ? 1 : (weight(i) << 20) / counts[i], part.experts[i]});
  std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.load > b.load; });
  return copies;
}

/// Fills the slots of the part's ranks in `logical`.
void fill(const Part& part, const ExpertWeights& weights, int slots, std::vector<int>& logical) {
  const auto ranks = static_cast<std::size_t>(part.ranks);
  std::vector<std::uint64_t> load(ranks, 0);
  std::vector<std::vector<int>> held(ranks);
  for (const Copy& copy : copies_of(part, weights)) {
    std::size_t best = ranks;
    bool best_has = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (held[rank].size() >= static_cast<std::size_t>(slots)) continue;
      const bool has = std::find(held[rank].begin(), held[rank].end(), copy.logical) != held[rank].end();
      if (best == ranks || (has != best_has ? best_has : load[rank] < load[best])) {
        best = rank;
        best_has = has;
      }
    }
    DBO_CHECK(best < ranks, "there are as many slots as copies");
    held[best].push_back(copy.logical);
    load[best] += copy.load;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::sort(held[rank].begin(), held[rank].end());
    for (int slot = 0; slot < slots; ++slot)
      logical[(static_cast<std::size_t>(part.first_rank) + rank) * static_cast<std::size_t>(slots) +
              static_cast<std::size_t>(slot)] = held[rank][static_cast<std::size_t>(slot)];
  }
}

/// The node each group goes to, as many groups a node: in order when all are equally loaded, else the most loaded
/// group first to the least loaded node.
std::vector<int> nodes_of_groups(int groups, int nodes, const std::vector<std::uint32_t>& weights) {
  const auto group_size = static_cast<int>(weights.size()) / groups;
  std::vector<std::uint64_t> load(static_cast<std::size_t>(groups), 0);
  for (std::size_t e = 0; e < weights.size(); ++e) load[e / static_cast<std::size_t>(group_size)] += weights[e];
  std::vector<int> order(static_cast<std::size_t>(groups));
  for (int g = 0; g < groups; ++g) order[static_cast<std::size_t>(g)] = g;
  std::vector<int> node_of(static_cast<std::size_t>(groups));
  if (std::all_of(load.begin(), load.end(), [&](std::uint64_t l) { return l == load[0]; })) {
    for (int g = 0; g < groups; ++g) node_of[static_cast<std::size_t>(g)] = g / (groups / nodes);
    return node_of;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return load[static_cast<std::size_t>(a)] > load[static_cast<std::size_t>(b)]; });
  std::vector<std::uint64_t> node_load(static_cast<std::size_t>(nodes), 0);
  std::vector<int> filled(static_cast<std::size_t>(nodes), 0);
  for (const int g : order) {
    std::size_t best = static_cast<std::size_t>(nodes);
    for (std::size_t n = 0; n < node_load.size(); ++n)
      if (filled[n] < groups / nodes && (best == node_load.size() || node_load[n] < node_load[best])) best = n;
    node_of[static_cast<std::size_t>(g)] = static_cast<int>(best);
    node_load[best] += load[static_cast<std::size_t>(g)];
    ++filled[best];
  }
  return node_of;
}

std::vector<Part> parts_of(const World& world, int groups, const std::vector<std::uint32_t>& weights, int redundant) {
  const int experts = static_cast<int>(weights.size()), nodes = world.nodes();
  const int group_size = experts / groups;
  const bool by_node =
      nodes > 1 && groups % nodes == 0 && redundant % nodes == 0 && nodes * world.ranks_per_node == world.ranks;
  std::vector<Part> parts(by_node ? static_cast<std::size_t>(nodes) : 1);
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const int ranks = world.ranks / static_cast<int>(parts.size());
    parts[n] = {{}, redundant / static_cast<int>(parts.size()), static_cast<int>(n) * ranks, ranks};
  }
  const std::vector<int> node_of = by_node ? nodes_of_groups(groups, nodes, weights) : std::vector<int>{};
  // First experts of all groups before second ones, so that ties spread replicas over the groups.
  for (int i = 0; i < group_size; ++i)
    for (int g = 0; g < groups; ++g)
      parts[by_node ? static_cast<std::size_t>(node_of[static_cast<std::size_t>(g)]) : 0].experts.push_back(
          g * group_size + i);
  return parts;
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
    for (const Part& part : parts_of(world, groups, weights.weights, redundant))
      fill(part, weights, placement.slots, placement.logical);
  }
  placement.replicas.resize(static_cast<std::size_t>(experts));
  for (int p = 0; p < placement.physical(); ++p)
    placement.replicas[static_cast<std::size_t>(placement.logical[static_cast<std::size_t>(p)])].push_back(p);
  return placement;
}

}  // namespace dbo
