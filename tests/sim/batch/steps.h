// Steps written the way the worked examples write them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "sim/batch/decide.h"

namespace dbo {

/// Requests with these queries; contexts from `seqs`, or equal to the query where there are fewer.
inline RankBatch rank_of(const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& seqs = {}) {
  RankBatch rank;
  for (std::size_t i = 0; i < queries.size(); ++i)
    rank.requests.edit().push_back({.query = queries[i], .seq = i < seqs.size() ? seqs[i] : queries[i], .blocks = {}});
  return rank;
}

/// `count` decode requests of one token.
inline RankBatch decodes(int count, std::int64_t seq = 64) {
  RankBatch rank;
  rank.requests.edit().assign(static_cast<std::size_t>(count), {.query = 1, .seq = seq, .blocks = {}});
  return rank;
}

inline RankBatch padded(RankBatch rank, std::int64_t tokens, std::int64_t requests) {
  rank.padded_tokens = tokens;
  rank.padded_requests = requests;
  return rank;
}

inline StepBatch step_of(std::vector<RankBatch> ranks, std::int64_t draft_tokens = 0) {
  return {.ranks = std::move(ranks), .block_size = 16, .draft_tokens = draft_tokens};
}

/// Thresholds so low that every batch passes.
inline DecideSettings eager(Coordination coordination, int ubatches = 2) {
  DecideSettings settings;
  settings.coordination = coordination;
  settings.ubatches = ubatches;
  settings.decode_token_threshold = settings.prefill_token_threshold = ubatches;
  return settings;
}

/// vLLM's defaults: 32 and 512.
inline DecideSettings defaults(Coordination coordination) {
  DecideSettings settings;
  settings.coordination = coordination;
  return settings;
}

inline DecideSettings with_graphs(DecideSettings settings, std::vector<std::int64_t> sizes) {
  settings.execution = Execution::Graph;
  if (!sizes.empty()) settings.graph_sizes = std::move(sizes);
  return settings;
}

using Ints = std::vector<std::int32_t>;
using Votes = std::vector<std::int8_t>;

}  // namespace dbo
