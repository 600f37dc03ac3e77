// The tokens of one ubatch as the attention kernels want them: rows in kernel order, positions, pages of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo::runtime {

inline constexpr int kCachePageTokens = 64;
/// Requests with more new tokens than this prefill, however long their context.
inline constexpr int kMostDecodeQuery = 8;

/// The requests of a rank's whole batch and the pages of the cache each has: the same for every part of the batch, so
/// that the ubatches of a split step read and write the cache where the un-split one does. A request cut in two stays
/// one: its later part sees what its earlier part wrote.
class RequestPages {
 public:
  /// `parts`: loads that together cover the batch in order, each request in one of them. Padded requests (no new
  /// tokens) have no pages. Throws InputError when a load's arrays contradict each other.
  explicit RequestPages(const std::vector<UbatchLoad>& parts);

  struct Request {
    std::int64_t token_begin = 0, token_end = 0;  ///< of the rank's batch
    std::int32_t seq = 0;                         ///< context after the step
    int first_page = 0;
  };
  /// The request of token `token` of the rank's batch; throws InputError when there is none.
  const Request& of_token(std::int64_t token) const;
  /// Pages of the cache of one layer; page 0 is nobody's.
  int pages() const { return pages_; }

 private:
  std::vector<Request> requests_;
  int pages_ = 1;
};

/// Rows of requests that decode come first, then those of requests that prefill, then padding.
struct MoeBatch {
  int tokens = 0;                          ///< rows, padding included
  std::vector<std::int64_t> token_of_row;  ///< [tokens] token of the rank's whole batch, -1 for padding
  std::vector<std::int32_t> positions;     ///< [tokens]
  std::vector<std::int32_t> slot_mapping;  ///< [tokens] row of the cache, -1 for padding
  std::vector<std::int32_t> seq_lens;      ///< by request, in row order
  std::vector<std::int32_t> block_table;   ///< [requests][max_pages]
  int max_pages = 1;
  int decode_requests = 0, query_tokens = 1;
  int prefill_requests = 0, prefill_tokens = 0;
  std::int64_t prefill_keys = 0;          ///< sum of the prefill contexts
  int prefill_query_blocks = 0;           ///< sum of ceil(query length / 128)
  std::vector<std::int32_t> query_start;  ///< [prefill requests + 1]
  std::vector<std::int32_t> kv_start;     ///< [prefill requests + 1]

  int requests() const { return decode_requests + prefill_requests; }
};

/// A request decodes when its query is as long as the first request's, at most kMostDecodeQuery, and shorter than its
/// context. Padded requests have no rows. Throws InputError when the load's arrays contradict each other or `pages`.
MoeBatch make_moe_batch(const UbatchLoad& load, const RequestPages& pages);

}  // namespace dbo::runtime
