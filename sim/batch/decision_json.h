// The decision as other programs read it.
#pragma once

#include "sim/base/json.h"
#include "sim/batch/decide.h"

namespace dbo {

/// Keys: split, reason, reason_text, votes, vote_rows (by name), padded_tokens, graph {mode, size, why,
/// unsplit_sizes, ubatched_sizes}, comm_sms,
/// compute_sms, idle_sms, ubatches, ranks[] with ubatches[]: requests, tokens, padded_tokens, padded_requests (all
/// half-open), query_start_loc, seq_lens, empty, block_table_rows, slot_mapping {slots, unused}.
Json decision_to_json(const Decision& decision);

}  // namespace dbo
