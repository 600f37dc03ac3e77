// Batches made by rule instead of listed request by request.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/batch/batch.h"

namespace dbo {

enum class Phase : std::uint8_t { Decode, Prefill, Mixed };

std::vector<std::string_view> phase_names();  ///< in the order of Phase

/// The same rule on every rank.
struct UniformWorkload {
  Phase phase = Phase::Decode;
  std::int64_t decode_tokens = 0;   ///< a rank; Decode and Mixed
  std::int64_t prefill_tokens = 0;  ///< a rank; Prefill and Mixed
  std::int64_t context_tokens = 1;
  std::int64_t query_tokens = 1;  ///< of each decode request: 1 + draft tokens
  double context_spread = 0;      ///< relative, over requests: context lies within +- this share, evenly spread
  double token_spread = 0;        ///< relative, over ranks: the same for the tokens of a rank
  std::uint64_t seed = 0;

  friend bool operator==(const UniformWorkload&, const UniformWorkload&) = default;
};

/// The step on `ranks` data-parallel ranks: decode requests first (`query_tokens` now, `context_tokens` after the
/// step), then prompts of `context_tokens`, the last one shorter. With a spread, each value depends on the seed, its
/// rank and its place in the rank's batch only.
StepBatch expand(const UniformWorkload& workload, int ranks);

}  // namespace dbo
