// Which ranks are simulated together: ranks with equal programs and costs once, ranks with equal programs side by side.
#pragma once

#include <utility>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/plan/linearise.h"

namespace dbo {

/// Ranks that are simulated once: same class, same costs.
struct FoldGroup {
  int class_index = 0;
  int cost_group = 0;
  int first_rank = 0;  ///< the lowest rank of the group
  int ranks = 0;
};

/// The fold groups of a plan and the group of every rank. Classes that run the same threads share a program; groups
/// stand program by program, in each class by class, so that both have consecutive ones.
struct Folding {
  std::vector<FoldGroup> groups;
  std::vector<int> group_of_rank;
  std::vector<std::pair<int, int>> of_class;    ///< half-open range of groups
  std::vector<std::pair<int, int>> of_program;  ///< the same
  std::vector<int> program_of_class;
  std::vector<int> class_of_program;  ///< the first of its classes
};

/// Cost: proportional to the ranks.
Folding fold_ranks(const Plan& plan, const CostTable& costs);

/// The linear order of every program, looked up by class.
class Linears {
 public:
  Linears() = default;
  /// Throws FindingError when a program's order does not run to its end.
  Linears(const Plan& plan, const Folding& folding);

  const Linear& operator[](std::size_t class_index) const {
    return orders_[static_cast<std::size_t>(program_of_class_[class_index])];
  }
  const Linear& of_program(std::size_t program) const { return orders_[program]; }
  std::size_t programs() const { return orders_.size(); }

 private:
  std::vector<Linear> orders_;  ///< by program
  std::vector<int> program_of_class_;
};

}  // namespace dbo
