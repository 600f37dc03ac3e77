// vLLM's first model runner refuses to split a batch in which a request reads KV-cache blocks that another one writes
// in the same step: the ubatches run interleaved, so the reader could come first.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/batch/batch.h"

namespace dbo {

struct PrefixConflict {
  std::int64_t reader = 0, writer = 0;  ///< requests of one rank
  std::int64_t block = 0;
};

/// The first conflict in the rank's batch, by reader, then by column of its block table. A reader has a query of more
/// than `decode_query` tokens and computed ones; its whole computed blocks are what it reads. A request writes the
/// blocks from its first new token to its last. Requests without a block table take no part.
std::optional<PrefixConflict> find_prefix_conflict(const RankBatch& rank, std::int64_t block_size,
                                                   std::int64_t decode_query);

}  // namespace dbo
