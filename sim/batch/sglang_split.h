// Where SGLang cuts a batch in two.
#pragma once

#include <cstdint>
#include <span>

#include "sim/batch/batch.h"

namespace dbo {

/// Decode: the token at which the second half of the sequences begins.
std::int64_t sglang_decode_cut(std::int64_t tokens, std::int64_t tokens_per_sequence);

/// Extend: between two requests so that the halves differ least (the later place on ties; the search stops when the
/// difference grows). When the first half would hold less than `threshold` of the tokens or more than the rest, the cut
/// goes through a request at half the tokens.
std::int64_t sglang_extend_cut(std::span<const Request> requests, double threshold);

}  // namespace dbo
