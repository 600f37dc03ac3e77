// Reasons in words.
#include <array>

#include "sim/batch/vote.h"

namespace dbo {
namespace {

std::string number(std::int64_t value) {
  return std::to_string(value);
}

/// "rank 3", "ranks 0-3, 7 and 9", at most a handful of runs.
template <class Predicate>
std::string ranks_where(const StepSummary& step, Predicate&& predicate) {
  std::vector<std::string> runs;
  std::size_t count = 0;
  for (std::size_t i = 0; i < step.ranks.size(); ++i) {
    if (!predicate(step.ranks[i])) continue;
    std::size_t end = i + 1;
    while (end < step.ranks.size() && predicate(step.ranks[end])) ++end;
    runs.push_back(std::to_string(i) + (end == i + 1 ? "" : "-" + std::to_string(end - 1)));
    count += end - i;
    i = end;
  }
  constexpr std::size_t kMost = 6;
  std::string text = count == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < runs.size() && i < kMost; ++i) {
    const bool last = i + 1 == runs.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + runs[i];
  }
  return runs.size() > kMost ? text + " and others (" + std::to_string(count) + " in all)" : text;
}

template <class Predicate>
std::size_t first_where(const StepSummary& step, Predicate&& predicate) {
  std::size_t at = 0;
  while (!predicate(step.ranks[at])) ++at;
  return at;
}

std::string threshold_text(bool uniform, const DecideSettings& settings) {
  return uniform ? "decode_token_threshold " + number(settings.decode_token_threshold)
                 : "prefill_token_threshold " + number(settings.prefill_token_threshold);
}

std::string below_v1(const StepSummary& step, const DecideSettings& settings) {
  const auto below = [&](const RankSummary& rank) {
    return rank.tokens < (rank.uniform ? settings.decode_token_threshold : settings.prefill_token_threshold);
  };
  const std::size_t at = first_where(step, below);
  const RankSummary& rank = step.ranks[at];
  std::string text = "rank " + std::to_string(at) + " has " + number(rank.tokens) + " tokens" +
                     (rank.uniform ? " of uniform decode" : ", not uniform decode") + ", below " +
                     threshold_text(rank.uniform, settings);
  const std::string all = ranks_where(step, below);
  return all.starts_with("ranks") ? text + "; " + all + " vote against" : text;
}

std::string below_mrv2(const StepSummary& step, const DecideSettings& settings) {
  const std::size_t at = first_where(step, [&](const RankSummary& rank) { return rank.tokens == step.min_tokens; });
  return "the smallest rank, " + std::to_string(at) + ", has " + number(step.min_tokens) + " tokens, below " +
         threshold_text(step.uniform, settings) +
         (step.uniform ? "" : ", which holds as the step is not uniform decode on every rank");
}

std::string veto_text(const StepSummary& step) {
  const std::size_t at = first_where(step, [](const RankSummary& rank) { return rank.conflict.has_value(); });
  const PrefixConflict& conflict = *step.ranks[at].conflict;
  return "rank " + std::to_string(at) + ": request " + number(conflict.reader) + " reads block " +
         number(conflict.block) + ", which request " + number(conflict.writer) + " writes in this step";
}

std::string empty_last_text(const StepSummary& step, const DecideSettings& settings) {
  std::int64_t padded = 0;
  for (const RankSummary& rank : step.ranks) padded = std::max(padded, own_padded_tokens(rank, settings));
  const std::int64_t start = padded / settings.ubatches * (settings.ubatches - 1);
  const auto empty = [&](const RankSummary& rank) { return rank.tokens <= start; };
  return "padded to " + number(padded) + " tokens, the last of " + number(settings.ubatches) +
         " ubatches starts at token " + number(start) + ", where " + ranks_where(step, empty) +
         " would have none (the smallest has " + number(step.min_tokens) + ")";
}

std::string mismatch_text(const StepSummary& step) {
  const auto decode = [](const RankSummary& rank) { return !rank.idle() && rank.uniform; };
  const auto extend = [](const RankSummary& rank) { return !rank.idle() && !rank.uniform; };
  return ranks_where(step, decode) + (ranks_where(step, decode).starts_with("ranks") ? " decode, " : " decodes, ") +
         ranks_where(step, extend) + (ranks_where(step, extend).starts_with("ranks") ? " extend" : " extends");
}

std::string split_text(const StepSummary& step, const DecideSettings& settings, const Verdict& verdict) {
  const std::string cut =
      " (" + number(settings.ubatches) + " ubatches, padded to " + number(*verdict.graph.padded) + " tokens a rank)";
  if (settings.coordination == Coordination::Sglang) return "every rank can run two batches" + cut;
  if (settings.coordination == Coordination::V1)
    return "every rank votes for it, the smallest has " + number(step.min_tokens) + " tokens" + cut;
  return "the smallest rank has " + number(step.min_tokens) + " tokens, at least " +
         threshold_text(step.uniform, settings) + cut;
}

}  // namespace

std::string_view reason_name(Reason reason) {
  static constexpr std::array<std::string_view, kReasons> kNames = {
      "disabled",      "one-rank",           "rank-not-allowed", "idle-rank",         "prefix-veto",
      "mode-mismatch", "extend-low-latency", "below-threshold",  "empty-last-ubatch", "split"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::string reason_text(const StepSummary& step, const DecideSettings& settings, const Verdict& verdict) {
  switch (verdict.reason) {
    case Reason::Disabled:
      return settings.enabled ? "one ubatch a step: nothing to split into" : "the server runs without DBO";
    case Reason::OneRank:
      return "one data-parallel rank: there is nobody to exchange tokens with while the other ubatch computes";
    case Reason::RankNotAllowed:
      return ranks_where(step, [](const RankSummary& rank) { return !rank.allow; }) + " may not split this step";
    case Reason::IdleRank: {
      const std::string idle = ranks_where(step, [](const RankSummary& rank) { return rank.idle(); });
      return idle + (idle.starts_with("ranks") ? " have" : " has") + " no request";
    }
    case Reason::PrefixVeto:
      return veto_text(step);
    case Reason::ModeMismatch:
      return mismatch_text(step);
    case Reason::ExtendLowLatency:
      return ranks_where(step, [](const RankSummary& rank) { return !rank.idle() && !rank.uniform; }) +
             " would extend over a low-latency transport";
    case Reason::BelowThreshold:
      return settings.coordination == Coordination::V1 ? below_v1(step, settings) : below_mrv2(step, settings);
    case Reason::EmptyLastUbatch:
      return empty_last_text(step, settings);
    case Reason::Split:
      return split_text(step, settings, verdict);
  }
  return {};
}

}  // namespace dbo
