// Which CUDA graph a step replays, and why none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/batch/decide.h"
#include "sim/batch/summary.h"

namespace dbo {

enum class GraphWhy : std::uint8_t {
  Fits,        ///< full
  OwnSize,     ///< full: every step has a graph of its own size
  NotUniform,  ///< piecewise
  EagerMode,   ///< none, from here on
  NotCapturable,
  NoTokens,
  SplitNotUniform,
  NoSuchSize,
  NoUbatchedSize,
  Replaced,         ///< v1: the ubatched graph took the place of the un-split one
  LastUbatchEmpty,  ///< mrv2: some rank cannot fill the last ubatch
  NeedsSplit        ///< sglang: graphs are captured as two batches only
};

struct GraphOutcome {
  GraphMode mode = GraphMode::None;
  std::int64_t size = 0;  ///< tokens the graph has, when one is replayed
  GraphWhy why = GraphWhy::EagerMode;
  std::int64_t wanted = 0;               ///< tokens a graph was looked for
  std::optional<std::int64_t> padded{};  ///< the ranks' common size
};

/// Whether the server replays graphs at all.
bool replays_graphs(const DecideSettings& settings);

/// What the server captured at one of its sizes, where uniform decode has `query` tokens a request. Without a split one
/// batch. v1: ubatches from the decode threshold on, in place of the one batch; mrv2: a ubatched twin beside it, from
/// the threshold on and where whole requests fill the size; sglang: two batches alone. One rank never splits.
struct Captured {
  bool unsplit = true, ubatched = false;
};
Captured captured_at(const DecideSettings& settings, std::int64_t size, std::int64_t query, std::size_t ranks);

/// The smallest of the server's sizes that holds `tokens`; null when none does. Only for settings with sizes.
std::optional<std::int64_t> graph_bucket(const DecideSettings& settings, std::int64_t tokens);

/// What a rank's own padding makes of its batch, before the ranks agree on a size.
std::int64_t own_padded_tokens(const RankSummary& rank, const DecideSettings& settings);

/// v1's row of graph modes: 0 none, 1 piecewise, 2 full. Of the other runners the first one's mode.
std::int64_t own_graph_mode(const RankSummary& rank, const DecideSettings& settings);

GraphOutcome choose_graph(const StepSummary& step, const DecideSettings& settings, bool split);

/// The outcome in words.
std::string graph_text(const GraphOutcome& outcome, const StepSummary& step, const DecideSettings& settings);

}  // namespace dbo
