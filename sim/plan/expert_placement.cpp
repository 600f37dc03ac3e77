#include "sim/plan/expert_placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/error.h"

namespace dbo {
namespace {

/// One copy of a logical expert, before it has a rank.
struct Copy {
  std::uint64_t load;  ///< of the expert's weight, in 2^-20
  int logical;
};

/// An expert with the copies it has so far. Who comes first gets the next one: more weight a copy, then fewer copies,
/// then by order; more copies than ranks help nobody, so a full expert comes after any other.
struct Wanting {
  std::uint64_t weight = 0, copies = 1;
  std::size_t place = 0;
  bool full = false;

  friend bool operator<(const Wanting& a, const Wanting& b) {
    if (a.full != b.full) return b.full;
    const std::uint64_t left = a.weight * b.copies, right = b.weight * a.copies;
    if (left != right) return left > right;
    return a.copies != b.copies ? a.copies < b.copies : a.place < b.place;
  }
};

/// The copies of every expert, most loaded first. `order`: the experts in the order in which ties are broken.
std::vector<Copy> copies_of(const std::vector<int>& order, const ExpertWeights& weights, int redundant, int ranks) {
  const auto weight = [&](std::size_t i) { return std::uint64_t{weights.weights[static_cast<std::size_t>(order[i])]}; };
  std::vector<std::uint64_t> counts(order.size(), 1);
  std::set<Wanting> wanting;
  for (std::size_t i = 0; i < order.size(); ++i) wanting.insert({weight(i), 1, i, ranks <= 1});
  for (int extra = 0; extra < redundant; ++extra) {
    Wanting first = wanting.extract(wanting.begin()).value();
    counts[first.place] = ++first.copies;
    first.full = first.copies >= static_cast<std::uint64_t>(ranks);
    wanting.insert(first);
  }
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (std::uint64_t c = 0; c < counts[i]; ++c)
      copies.push_back({weights.equal_copies ? 1 : (weight(i) << 20) / counts[i], order[i]});
  std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.load > b.load; });
  return copies;
}

/// The experts each rank holds [ranks * slots], each rank's ascending: every copy goes to the least loaded rank with a
/// free slot that does not hold the expert yet, of several the first; if all hold it, to the least loaded.
std::vector<int> spread(const std::vector<Copy>& copies, int ranks, int slots) {
  const auto width = static_cast<std::size_t>(slots);
  std::vector<int> held(static_cast<std::size_t>(ranks) * width), counts(static_cast<std::size_t>(ranks), 0);
  const auto slots_of = [&](int rank) { return held.begin() + rank * slots; };
  std::set<std::pair<std::uint64_t, int>> open;  // load, rank
  for (int rank = 0; rank < ranks; ++rank) open.emplace_hint(open.end(), 0, rank);
  for (const Copy& copy : copies) {
    DBO_CHECK(!open.empty(), "there are as many slots as copies");
    const auto lacks = [&](const std::pair<std::uint64_t, int>& one) {
      const auto first = slots_of(one.second), end = first + counts[static_cast<std::size_t>(one.second)];
      return std::find(first, end, copy.logical) == end;
    };
    auto best = std::find_if(open.begin(), open.end(), lacks);
    if (best == open.end()) best = open.begin();
    auto [load, rank] = *best;
    open.erase(best);
    int& count = counts[static_cast<std::size_t>(rank)];
    *(slots_of(rank) + count) = copy.logical;
    if (++count < slots) open.emplace(load + copy.load, rank);
  }
  for (int rank = 0; rank < ranks; ++rank) std::sort(slots_of(rank), slots_of(rank) + slots);
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
    placement.logical = spread(copies_of(order, weights, redundant, world.ranks), world.ranks, placement.slots);
  }
  placement.replicas.resize(static_cast<std::size_t>(experts));
  for (int p = 0; p < placement.physical(); ++p)
    placement.replicas[static_cast<std::size_t>(placement.logical[static_cast<std::size_t>(p)])].push_back(p);
  return placement;
}

}  // namespace dbo
