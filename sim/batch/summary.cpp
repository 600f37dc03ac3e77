#include "sim/batch/summary.h"

#include <algorithm>

namespace dbo {
namespace {

RankSummary summarise_rank(const RankBatch& rank, std::int64_t query) {
  RankSummary out;
  for (const Request& request : rank.requests) {
    out.tokens += request.query;
    out.max_query = std::max(out.max_query, request.query);
    out.uniform = out.uniform && request.query == query;
  }
  out.requests = static_cast<std::int64_t>(rank.requests.size());
  out.allow = rank.allow;
  out.padded_tokens = rank.padded_tokens;
  return out;
}

}  // namespace

StepSummary summarise(const StepBatch& step, const DecideSettings& settings) {
  StepSummary out;
  out.query = 1 + step.draft_tokens;
  out.ranks.reserve(step.ranks.size());
  const bool veto = settings.coordination == Coordination::V1 && settings.can_split();
  const RankBatch* before = nullptr;
  for (const RankBatch& rank : step.ranks) {
    if (before != nullptr && rank.shares(*before)) {
      const RankSummary same = out.ranks.back();
      out.ranks.push_back(same);
      continue;
    }
    before = &rank;
    RankSummary summary = summarise_rank(rank, out.query);
    if (veto) summary.conflict = find_prefix_conflict(rank, step.block_size, out.query);
    out.uniform = out.uniform && summary.uniform;
    out.all_idle = out.all_idle && summary.idle();
    out.min_tokens = out.ranks.empty() ? summary.tokens : std::min(out.min_tokens, summary.tokens);
    out.ranks.push_back(summary);
  }
  return out;
}

}  // namespace dbo
