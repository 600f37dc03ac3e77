#include "sim/batch/decide.h"

#include <algorithm>

#include "sim/base/units.h"
#include "sim/batch/sglang_split.h"
#include "sim/batch/slice.h"
#include "sim/batch/sm_control.h"
#include "sim/batch/vote.h"

namespace dbo {
namespace {

class Slicer {
 public:
  Slicer(const StepSummary& summary, const DecideSettings& settings, const Decision& decision)
      : summary_(summary), settings_(settings), decision_(decision) {}

  void slice(const RankBatch& batch, const RankSummary& rank, RankSplit& out) {
    SliceSpec spec;
    spec.padded_metadata = decision_.graph.mode == GraphMode::Full;
    const std::int64_t padded = decision_.padded_tokens.value_or(own_padded_tokens(rank, settings_));
    spec.padded_requests = padded_requests(batch, rank, padded);
    const bool sglang = decision_.split && settings_.coordination == Coordination::Sglang;
    if (!decision_.split)
      spec.cuts = {0, padded};
    else if (!sglang)
      spec.cuts = even_cuts(padded, settings_.ubatches);
    else
      cut_sglang(batch, rank, padded, spec);
    std::vector<UbatchSlice>& ubatches = out.ubatches.edit();
    slice_rank(batch, spec, starts_, ubatches);
    if (sglang) round_up(ubatches);
  }

 private:
  /// Rows of the padded batch: a graph of uniform decode has as many as its tokens make whole requests, and v1's ranks
  /// pad to theirs before they know whether it will run.
  std::int64_t padded_requests(const RankBatch& batch, const RankSummary& rank, std::int64_t padded) const {
    const bool pads = settings_.coordination == Coordination::V1 && rank.uniform && !rank.padded_tokens;
    const std::int64_t by_rule = pads ? own_padded_tokens(rank, settings_) / summary_.query : rank.requests;
    const std::int64_t own = batch.padded_requests.value_or(std::max(by_rule, rank.requests));
    const bool rows_follow = decision_.graph.mode == GraphMode::Full && summary_.uniform;
    return rows_follow ? std::max(own, padded / summary_.query) : own;
  }

  void cut_sglang(const RankBatch& batch, const RankSummary& rank, std::int64_t padded, SliceSpec& spec) const {
    const bool replayed = decision_.graph.mode == GraphMode::Full;
    std::int64_t cut = 0;
    if (!summary_.uniform)
      cut = rank.idle() ? padded / 2 : sglang_extend_cut(batch.requests, settings_.token_distribution_threshold);
    else  // The halves of a graph are fixed by its size.
      cut = sglang_decode_cut(replayed || rank.idle() ? padded : rank.tokens, summary_.query);
    spec.cuts = {0, cut, padded};
    if (replayed && summary_.uniform) spec.row_cuts = {0, cut / summary_.query, spec.padded_requests};
  }

  /// The GPUs that share a rank's batch each take as many tokens of either half.
  void round_up(std::vector<UbatchSlice>& ubatches) const {
    for (UbatchSlice& slice : ubatches) {
      Range& padded = slice.padded_tokens;
      padded.end = padded.begin + ceil_div(padded.size(), settings_.tensor) * settings_.tensor;
    }
  }

  const StepSummary& summary_;
  const DecideSettings& settings_;
  const Decision& decision_;
  std::vector<std::int64_t> starts_;
};

void list_captured(const StepSummary& summary, const DecideSettings& settings, GraphChoice& graph) {
  if (!replays_graphs(settings) || !settings.graph_sizes) return;
  for (const std::int64_t size : *settings.graph_sizes) {
    const Captured captured = captured_at(settings, size, summary.query, summary.ranks.size());
    if (captured.unsplit) graph.unsplit_sizes.push_back(size);
    if (captured.ubatched) graph.ubatched_sizes.push_back(size);
  }
}

}  // namespace

std::string_view graph_mode_name(GraphMode mode) {
  switch (mode) {
    case GraphMode::None:
      return "none";
    case GraphMode::Piecewise:
      return "piecewise";
    case GraphMode::Full:
      return "full";
  }
  return {};
}

Decision decide(const StepBatch& step, const DecideSettings& settings) {
  Decision decision;
  decide(step, settings, decision);
  return decision;
}

void decide(const StepBatch& step, const DecideSettings& settings, Decision& decision) {
  const StepSummary summary = summarise(step, settings);
  Verdict verdict = judge(summary, settings);
  decision.split = verdict.split();
  decision.reason = verdict.reason;
  decision.reason_text = reason_text(summary, settings, verdict);
  decision.vote_rows = vote_rows(summary, settings, verdict);
  decision.votes = std::move(verdict.votes);
  decision.padded_tokens = verdict.graph.padded;
  const bool replays = verdict.graph.mode != GraphMode::None;
  decision.graph = {.mode = verdict.graph.mode,
                    .size = replays ? std::optional(verdict.graph.size) : std::nullopt,
                    .why = graph_text(verdict.graph, summary, settings),
                    .unsplit_sizes = {},
                    .ubatched_sizes = {}};
  list_captured(summary, settings, decision.graph);
  decision.sms = share_sms(settings, decision.split);
  decision.ubatches = decision.split ? settings.ubatches : 1;
  decision.ranks.resize(step.ranks.size());
  Slicer slicer(summary, settings, decision);
  for (std::size_t i = 0; i < step.ranks.size(); ++i) {
    if (i > 0 && step.ranks[i].shares(step.ranks[i - 1]))
      decision.ranks[i] = decision.ranks[i - 1];
    else
      slicer.slice(step.ranks[i], summary.ranks[i], decision.ranks[i]);
  }
}

DecideSettings without_dbo(DecideSettings settings) {
  settings.enabled = false;
  return settings;
}

}  // namespace dbo
