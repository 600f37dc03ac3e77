#include "sim/batch/sglang_split.h"

#include <cstdlib>
#include <limits>

namespace dbo {
namespace {

std::int64_t balanced_cut(std::span<const Request> requests, std::int64_t total) {
  std::int64_t best = 0, best_difference = std::numeric_limits<std::int64_t>::max(), left = 0;
  for (std::size_t i = 1; i < requests.size(); ++i) {
    left += requests[i - 1].query;
    const std::int64_t difference = std::abs(left - (total - left));
    if (difference > best_difference) break;
    best_difference = difference;
    best = left;
  }
  return best;
}

/// Sequences of the first half when a request is cut at `cut`: those that begin before it.
std::int64_t sequences_before(std::span<const Request> requests, std::int64_t cut) {
  std::int64_t sequences = 0, start = 0;
  for (const Request& request : requests) {
    if (start >= cut) break;
    start += request.query;
    ++sequences;
  }
  return sequences;
}

}  // namespace

std::int64_t sglang_decode_cut(std::int64_t tokens, std::int64_t tokens_per_sequence) {
  return tokens / tokens_per_sequence / 2 * tokens_per_sequence;
}

std::int64_t sglang_extend_cut(std::span<const Request> requests, double threshold) {
  std::int64_t total = 0;
  for (const Request& request : requests) total += request.query;
  const std::int64_t between = balanced_cut(requests, total);
  const auto left = static_cast<double>(between), all = static_cast<double>(total);
  const bool uneven = left < all * threshold || left > all * (1 - threshold);
  const std::int64_t half = total / 2;
  // A half with more sequences than tokens cannot be described.
  return uneven && sequences_before(requests, half) <= half ? half : between;
}

}  // namespace dbo
