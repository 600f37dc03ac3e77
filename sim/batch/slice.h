// Cuts a rank's batch into ubatches and their attention metadata.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/batch/decide.h"

namespace dbo {

/// How one rank's batch is cut.
struct SliceSpec {
  /// Token positions in the padded batch, ascending, from 0 to the padded size: one more than ubatches.
  std::vector<std::int64_t> cuts;
  /// Rows of the padded batch at which ubatches begin, where padding rows are whole requests in every ubatch (SGLang's
  /// graphs); otherwise empty: padding rows belong to the last ubatch.
  std::vector<std::int64_t> row_cuts;
  std::int64_t padded_requests = 0;
  bool padded_metadata = false;  ///< a full graph is replayed: metadata covers padding rows too
};

/// vLLM's cut points, for both runners: multiples of padded / ubatches (rounded down); what remains goes to the last.
std::vector<std::int64_t> even_cuts(std::int64_t padded_tokens, int ubatches);

/// Writes the ubatches of one rank, reusing the memory of what `ubatches` held. Tokens past the real ones are padding:
/// an ubatch that has no real token is empty and stands on the last request. `starts` is scratch, reused between ranks.
void slice_rank(const RankBatch& rank, const SliceSpec& spec, std::vector<std::int64_t>& starts,
                std::vector<UbatchSlice>& ubatches);

}  // namespace dbo
