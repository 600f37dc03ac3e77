// Ranks that are slower than the machine says: how many times as long what they do takes.
#pragma once

#include <string>
#include <vector>

#include "sim/base/op_kind.h"
#include "sim/base/settings.h"
#include "sim/base/units.h"

namespace dbo {

class Pace {
 public:
  /// Every rank at the machine's pace.
  Pace() = default;
  /// Consecutive ranks of `tensor_parallel` compute attention and dense layers together, so there the slowest of them
  /// counts. Straggling ranks lie within [0, ranks).
  Pace(const std::vector<Straggler>& stragglers, int ranks, int tensor_parallel);

  bool even() const { return of_rank_.empty(); }
  /// Ranks with the same number keep the same pace; at most the number of ranks.
  int kind(int rank) const { return even() ? 0 : of_rank_[static_cast<std::size_t>(rank)].kind; }
  /// Factor of a compute op's time.
  double compute(OpKind kind, int rank) const;
  /// Factor of what the rank's ports take.
  double wire(int rank) const { return even() ? 1 : of_rank_[static_cast<std::size_t>(rank)].wire; }
  /// The largest `wire` of all ranks.
  double slowest_wire() const;

 private:
  struct Factors {
    double own = 1, together = 1, wire = 1;
    int kind = 0;
  };
  std::vector<Factors> of_rank_;
};

/// `time` at `factor`, rounded to the nearest ns.
Ns slower(Ns time, double factor);

/// What is assumed of each, for summary.json.
std::vector<std::string> straggler_sentences(const std::vector<Straggler>& stragglers);

}  // namespace dbo
