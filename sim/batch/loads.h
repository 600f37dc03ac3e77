// The work of each rank's ubatches, as plans carry it, with ranks of equal work found.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/batch/decide.h"

namespace dbo {

/// What one ubatch computes.
struct UbatchWork {
  std::int64_t token_begin = 0, token_end = 0;  ///< real tokens, half-open, in the rank's batch
  std::int64_t padded = 0;                      ///< tokens computed, padding included
  std::vector<std::int32_t> query_start_loc;    ///< one more than requests; starts at 0
  std::vector<std::int32_t> seq_lens;           ///< context length of each request after the step

  friend bool operator==(const UbatchWork&, const UbatchWork&) = default;
};

/// The distinct loads of a step and who has them.
struct StepLoads {
  std::vector<std::vector<UbatchWork>> loads;  ///< by load, by ubatch; in order of the first rank that has it
  std::vector<int> load_of_rank;               ///< by data-parallel rank

  /// Half-open ranges of the data-parallel ranks that have the load.
  std::vector<std::pair<int, int>> ranks_of(int load) const;
};

/// Every rank's ubatches as the decision cut them.
StepLoads make_loads(const Decision& decision);

}  // namespace dbo
