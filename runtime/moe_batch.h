// The tokens of one ubatch as the attention kernels want them: rows in kernel order, positions, pages of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo::runtime {

inline constexpr int kCachePageTokens = 64;
/// Requests with more new tokens than this prefill, however long their context.
inline constexpr int kMostDecodeQuery = 8;

/// Rows of requests that decode come first, then those of requests that prefill, then padding.
struct MoeBatch {
  int tokens = 0;                          ///< rows, padding included
  std::vector<std::int64_t> token_of_row;  ///< [tokens] token of the rank's whole batch, -1 for padding
  std::vector<std::int32_t> positions;     ///< [tokens]
  std::vector<std::int32_t> slot_mapping;  ///< [tokens] row of the cache, -1 for padding
  std::vector<std::int32_t> seq_lens;      ///< by request, in row order
  std::vector<std::int32_t> block_table;   ///< [requests][max_pages]
  int max_pages = 1;
  int pages = 1;  ///< of the cache of one layer
  int decode_requests = 0, query_tokens = 1;
  int prefill_requests = 0, prefill_tokens = 0;
  std::int64_t prefill_keys = 0;          ///< sum of the prefill contexts
  int prefill_query_blocks = 0;           ///< sum of ceil(query length / 128)
  std::vector<std::int32_t> query_start;  ///< [prefill requests + 1]
  std::vector<std::int32_t> kv_start;     ///< [prefill requests + 1]

  int requests() const { return decode_requests + prefill_requests; }
};

/// A request decodes when its query is as long as the first request's, at most kMostDecodeQuery, and shorter than its
/// context. Padded requests (no new tokens) have no rows. Throws InputError when the load's arrays contradict each
/// other.
MoeBatch make_moe_batch(const UbatchLoad& load);

}  // namespace dbo::runtime
