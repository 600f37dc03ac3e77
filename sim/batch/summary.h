// What the decision needs to know of a step: a few numbers a rank, so that other thresholds can be tried cheaply.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/batch/batch.h"
#include "sim/batch/settings.h"
#include "sim/batch/veto.h"

namespace dbo {

struct RankSummary {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_query = 0;
  bool uniform = true;  ///< every query is 1 + draft tokens; holds of an idle rank too
  bool allow = true;
  std::optional<std::int64_t> padded_tokens;  ///< where the batch says so
  std::optional<PrefixConflict> conflict;     ///< v1, when the server splits steps at all

  bool idle() const { return requests == 0; }
};

struct StepSummary {
  std::vector<RankSummary> ranks;
  std::int64_t query = 1;  ///< of uniform decode: 1 + draft tokens
  bool uniform = true;     ///< on every rank
  bool all_idle = true;
  std::int64_t min_tokens = 0;
};

StepSummary summarise(const StepBatch& step, const DecideSettings& settings);

}  // namespace dbo
