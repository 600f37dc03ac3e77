#include "sim/batch/workload.h"

#include <algorithm>
#include <cmath>

#include "sim/base/hash.h"

namespace dbo {
namespace {

/// Streams of random numbers that must not repeat each other.
enum Stream : std::uint64_t { kDecodeTokens, kPrefillTokens, kDecodeContext, kPromptLength };

/// A whole number in [value - d, value + d], d = value * spread, every one equally likely.
std::int64_t spread_around(std::int64_t value, double spread, std::uint64_t seed, std::uint64_t counter) {
  const std::int64_t reach = std::llround(static_cast<double>(value) * spread);
  if (reach == 0) return value;
  return value - reach + static_cast<std::int64_t>(mix_below(seed, counter, static_cast<std::uint64_t>(2 * reach + 1)));
}

class RankMaker {
 public:
  RankMaker(const UniformWorkload& workload, std::uint64_t rank) : w_(workload), rank_(rank) {}

  RankBatch make() const {
    RankBatch batch;
    add_decodes(batch);
    add_prompts(batch);
    return batch;
  }

 private:
  std::uint64_t stream(Stream stream) const { return mix(w_.seed, rank_ * 4 + stream); }

  void add_decodes(RankBatch& batch) const {
    const std::int64_t tokens = spread_around(w_.decode_tokens, w_.token_spread, stream(kDecodeTokens), 0);
    // A request is whole or not there.
    const std::int64_t requests = (tokens + w_.query_tokens / 2) / w_.query_tokens;
    batch.requests.edit().reserve(static_cast<std::size_t>(requests));
    for (std::int64_t i = 0; i < requests; ++i) {
      const std::int64_t context =
          spread_around(w_.context_tokens, w_.context_spread, stream(kDecodeContext), static_cast<std::uint64_t>(i));
      batch.requests.edit().push_back(
          {.query = w_.query_tokens, .seq = std::max(context, w_.query_tokens), .blocks = {}});
    }
  }

  void add_prompts(RankBatch& batch) const {
    std::int64_t left = spread_around(w_.prefill_tokens, w_.token_spread, stream(kPrefillTokens), 0);
    for (std::uint64_t i = 0; left > 0; ++i) {
      const std::int64_t length =
          std::max<std::int64_t>(1, spread_around(w_.context_tokens, w_.context_spread, stream(kPromptLength), i));
      const std::int64_t tokens = std::min(length, left);
      batch.requests.edit().push_back({.query = tokens, .seq = tokens, .blocks = {}});
      left -= tokens;
    }
  }

  const UniformWorkload& w_;
  std::uint64_t rank_;
};

}  // namespace

std::vector<std::string_view> phase_names() {
  return {"decode", "prefill", "mixed"};
}

StepBatch expand(const UniformWorkload& workload, int ranks) {
  StepBatch step;
  step.draft_tokens = workload.query_tokens - 1;
  step.ranks.reserve(static_cast<std::size_t>(ranks));
  const bool alike = workload.context_spread == 0 && workload.token_spread == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (alike && rank > 0)
      step.ranks.push_back(step.ranks.front());
    else
      step.ranks.push_back(RankMaker(workload, static_cast<std::uint64_t>(rank)).make());
  }
  return step;
}

}  // namespace dbo
