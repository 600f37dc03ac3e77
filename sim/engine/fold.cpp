#include "sim/engine/fold.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

/// Sets the programs of the classes: equal thread lists share one.
void find_programs(const Plan& plan, Folding& folding) {
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const std::vector<int>& threads = plan.classes[c].threads;
    std::size_t p = 0;
    while (p < folding.class_of_program.size() &&
           plan.classes[static_cast<std::size_t>(folding.class_of_program[p])].threads != threads)
      ++p;
    if (p == folding.class_of_program.size()) folding.class_of_program.push_back(static_cast<int>(c));
    folding.program_of_class.push_back(static_cast<int>(p));
  }
}

/// The groups of one class, in order of their lowest rank. `group_of_cost` [cost groups] is scratch, -1 throughout.
void add_class(const RankClass& rank_class, int class_index, const std::vector<int>& cost_of_rank,
               std::vector<int>& group_of_cost, Folding& folding) {
  const std::size_t begin = folding.groups.size();
  for (const auto& [first, last] : rank_class.ranks) {
    for (int rank = first; rank < last; ++rank) {
      const int cost = cost_of_rank[static_cast<std::size_t>(rank)];
      int& group = group_of_cost[static_cast<std::size_t>(cost)];
      if (group < 0) {
        group = static_cast<int>(folding.groups.size());
        folding.groups.push_back({class_index, cost, rank, 0});
      }
      FoldGroup& fold = folding.groups[static_cast<std::size_t>(group)];
      fold.first_rank = std::min(fold.first_rank, rank);
      ++fold.ranks;
      folding.group_of_rank[static_cast<std::size_t>(rank)] = group;
    }
  }
  for (std::size_t g = begin; g < folding.groups.size(); ++g)
    group_of_cost[static_cast<std::size_t>(folding.groups[g].cost_group)] = -1;
}

}  // namespace

Folding fold_ranks(const Plan& plan, const CostTable& costs) {
  Folding folding;
  folding.group_of_rank.assign(static_cast<std::size_t>(plan.world.ranks), -1);
  folding.of_class.resize(plan.classes.size());
  find_programs(plan, folding);
  std::vector<int> group_of_cost(static_cast<std::size_t>(costs.groups()), -1);
  for (std::size_t p = 0; p < folding.class_of_program.size(); ++p) {
    const auto begin = static_cast<int>(folding.groups.size());
    for (std::size_t c = 0; c < plan.classes.size(); ++c) {
      if (folding.program_of_class[c] != static_cast<int>(p)) continue;
      const auto first = static_cast<int>(folding.groups.size());
      add_class(plan.classes[c], static_cast<int>(c), costs.group_of_rank(), group_of_cost, folding);
      folding.of_class[c] = {first, static_cast<int>(folding.groups.size())};
    }
    folding.of_program.emplace_back(begin, static_cast<int>(folding.groups.size()));
  }
  return folding;
}

Linears::Linears(const Plan& plan, const Folding& folding) : program_of_class_(folding.program_of_class) {
  for (const int c : folding.class_of_program) {
    orders_.push_back(linearise(plan, c));
    for (const OrderProblem& problem : orders_.back().problems) throw FindingError(problem.code + ": " + problem.text);
  }
}

}  // namespace dbo
