#include "sim/batch/vote.h"

#include <algorithm>

namespace dbo {
namespace {

std::int64_t threshold_of(bool uniform, const DecideSettings& settings) {
  return uniform ? settings.decode_token_threshold : settings.prefill_token_threshold;
}

/// SGLang's forward mode of a rank.
enum ForwardMode : std::int8_t { kIdle = 0, kDecode = 1, kExtend = 2 };

ForwardMode forward_mode(const RankSummary& rank) {
  if (rank.idle()) return kIdle;
  return rank.uniform ? kDecode : kExtend;
}

bool votes_for(const RankSummary& rank, const DecideSettings& settings) {
  if (!settings.can_split() || !rank.allow) return false;
  switch (settings.coordination) {
    case Coordination::V1:
      return rank.tokens >= threshold_of(rank.uniform, settings) && !rank.conflict;
    case Coordination::Mrv2:
      return true;
    case Coordination::Sglang:
      return !(forward_mode(rank) == kExtend && settings.low_latency);
  }
  return false;
}

template <class Predicate>
bool any_rank(const StepSummary& step, Predicate&& predicate) {
  return std::any_of(step.ranks.begin(), step.ranks.end(), predicate);
}

/// The last ubatch of the rank with the fewest tokens would hold padding alone.
bool last_ubatch_empty(const StepSummary& step, const DecideSettings& settings) {
  std::int64_t padded = 0;
  for (const RankSummary& rank : step.ranks) padded = std::max(padded, own_padded_tokens(rank, settings));
  return padded / settings.ubatches * (settings.ubatches - 1) >= step.min_tokens;
}

Reason judge_v1(const StepSummary& step, const DecideSettings& settings) {
  if (any_rank(step, [](const RankSummary& rank) { return rank.idle(); })) return Reason::IdleRank;
  if (any_rank(step, [](const RankSummary& rank) { return rank.conflict.has_value(); })) return Reason::PrefixVeto;
  const auto below = [&](const RankSummary& rank) { return rank.tokens < threshold_of(rank.uniform, settings); };
  if (any_rank(step, below)) return Reason::BelowThreshold;
  return last_ubatch_empty(step, settings) ? Reason::EmptyLastUbatch : Reason::Split;
}

/// One check for the whole group: the smallest rank against the threshold of what the step is.
Reason judge_mrv2(const StepSummary& step, const DecideSettings& settings) {
  if (any_rank(step, [](const RankSummary& rank) { return rank.idle(); })) return Reason::IdleRank;
  return step.min_tokens < threshold_of(step.uniform, settings) ? Reason::BelowThreshold : Reason::Split;
}

Reason judge_sglang(const StepSummary& step, const DecideSettings& settings) {
  if (step.all_idle) return Reason::IdleRank;
  const auto runs = [&](ForwardMode mode) {
    return any_rank(step, [&](const RankSummary& rank) { return forward_mode(rank) == mode; });
  };
  if (runs(kDecode) && runs(kExtend)) return Reason::ModeMismatch;
  return runs(kExtend) && settings.low_latency ? Reason::ExtendLowLatency : Reason::Split;
}

Reason judge_reason(const StepSummary& step, const DecideSettings& settings) {
  if (!settings.can_split()) return Reason::Disabled;
  if (step.ranks.size() < 2) return Reason::OneRank;
  if (any_rank(step, [](const RankSummary& rank) { return !rank.allow; })) return Reason::RankNotAllowed;
  switch (settings.coordination) {
    case Coordination::V1:
      return judge_v1(step, settings);
    case Coordination::Mrv2:
      return judge_mrv2(step, settings);
    case Coordination::Sglang:
      return judge_sglang(step, settings);
  }
  return Reason::Disabled;
}

}  // namespace

Verdict judge(const StepSummary& step, const DecideSettings& settings) {
  Verdict verdict;
  verdict.reason = judge_reason(step, settings);
  verdict.votes.reserve(step.ranks.size());
  for (const RankSummary& rank : step.ranks) verdict.votes.push_back(votes_for(rank, settings) ? 1 : 0);
  verdict.graph = choose_graph(step, settings, verdict.split());
  return verdict;
}

std::vector<VoteRow> vote_rows(const StepSummary& step, const DecideSettings& settings, const Verdict& verdict) {
  std::vector<VoteRow> rows;
  const auto add = [&](std::string_view name, auto&& value) {
    VoteRow& row = rows.emplace_back(VoteRow{name, {}});
    row.values.reserve(step.ranks.size());
    for (std::size_t i = 0; i < step.ranks.size(); ++i) row.values.push_back(value(step.ranks[i], i));
  };
  const auto tokens = [](const RankSummary& rank, std::size_t) { return rank.tokens; };
  const auto padded = [&](const RankSummary& rank, std::size_t) { return own_padded_tokens(rank, settings); };
  const auto vote = [&](const RankSummary&, std::size_t i) { return std::int64_t{verdict.votes[i]}; };
  const auto mode = [&](const RankSummary& rank, std::size_t) { return own_graph_mode(rank, settings); };
  switch (settings.coordination) {
    case Coordination::V1:
      add("tokens", tokens);
      add("padded_tokens", padded);
      add("vote", vote);
      add("graph_mode", mode);
      break;
    case Coordination::Mrv2:
      add("tokens", tokens);
      add("padded_tokens", padded);
      add("graph_mode", mode);
      // 0 stands for "not uniform", -1 for "no query".
      add("uniform_query", [&](const RankSummary& rank, std::size_t) { return rank.uniform ? step.query : 0; });
      add("max_query", [](const RankSummary& rank, std::size_t) { return rank.idle() ? -1 : rank.max_query; });
      add("allow_ubatching", vote);
      add("requests", [](const RankSummary& rank, std::size_t) { return rank.requests; });
      add("allow_skip_drafts", [&](const RankSummary&, std::size_t) { return std::int64_t{step.query == 1}; });
      break;
    case Coordination::Sglang:
      add("tokens", tokens);
      add("can_run", vote);
      add("forward_mode", [](const RankSummary& rank, std::size_t) { return std::int64_t{forward_mode(rank)}; });
      break;
  }
  return rows;
}

}  // namespace dbo
