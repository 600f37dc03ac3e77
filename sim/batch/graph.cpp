#include "sim/batch/graph.h"

#include <algorithm>

namespace dbo {
namespace {

using Sizes = std::vector<std::int64_t>;

GraphOutcome full(std::int64_t size, GraphWhy why) {
  return {.mode = GraphMode::Full, .size = size, .why = why, .wanted = size};
}

GraphOutcome none(GraphWhy why, std::int64_t wanted = 0) {
  return {.mode = GraphMode::None, .size = 0, .why = why, .wanted = wanted};
}

bool has_size(const Sizes& sizes, std::int64_t tokens) {
  return std::binary_search(sizes.begin(), sizes.end(), tokens);
}

/// The last of N ubatches, cut by `size` tokens, holds a real token on every rank.
bool fills_last(const StepSummary& step, const DecideSettings& settings, std::int64_t size) {
  return step.min_tokens > size / settings.ubatches * (settings.ubatches - 1);
}

std::int64_t largest_own(const StepSummary& step, const DecideSettings& settings) {
  std::int64_t largest = 0;
  for (const RankSummary& rank : step.ranks) largest = std::max(largest, own_padded_tokens(rank, settings));
  return largest;
}

/// The first runner. Every rank has padded to a graph of its own; the modes' minimum and the sizes' maximum count.
GraphOutcome choose_v1(const StepSummary& step, const DecideSettings& settings, bool split, std::int64_t size) {
  std::int64_t mode = 2;
  for (const RankSummary& rank : step.ranks) mode = std::min(mode, own_graph_mode(rank, settings));
  if (split && !step.uniform) return none(GraphWhy::SplitNotUniform);
  if (mode == 1) return {.mode = GraphMode::Piecewise, .size = size, .why = GraphWhy::NotUniform, .wanted = size};
  if (mode == 0 || !has_size(*settings.graph_sizes, size))
    return none(split ? GraphWhy::NoUbatchedSize : GraphWhy::NoSuchSize, size);
  const Captured captured = captured_at(settings, size, step.query, step.ranks.size());
  if (!split && !captured.unsplit) return none(GraphWhy::Replaced, size);
  return full(size, GraphWhy::Fits);
}

/// The smallest size that holds `tokens` and was captured as ubatches.
std::optional<std::int64_t> ubatched_bucket(const StepSummary& step, const DecideSettings& settings,
                                            std::int64_t tokens) {
  for (const std::int64_t size : *settings.graph_sizes)
    if (size >= tokens && captured_at(settings, size, step.query, step.ranks.size()).ubatched) return size;
  return std::nullopt;
}

GraphOutcome choose_by_bucket(const StepSummary& step, const DecideSettings& settings, bool split,
                              std::int64_t tokens) {
  if (!split) {
    if (!step.uniform)
      return {.mode = GraphMode::Piecewise, .size = tokens, .why = GraphWhy::NotUniform, .wanted = tokens};
    const auto size = graph_bucket(settings, tokens);
    if (!size) return none(GraphWhy::NoSuchSize, tokens);
    const bool there = captured_at(settings, *size, step.query, step.ranks.size()).unsplit;
    return there ? full(*size, GraphWhy::Fits) : none(GraphWhy::NeedsSplit, tokens);
  }
  if (!step.uniform) return none(GraphWhy::SplitNotUniform);
  const auto size = ubatched_bucket(step, settings, tokens);
  if (!size) return none(GraphWhy::NoUbatchedSize, tokens);
  // SGLang's replay takes an empty half; vLLM's would replay stale rows.
  if (settings.coordination == Coordination::Mrv2 && !fills_last(step, settings, *size))
    return none(GraphWhy::LastUbatchEmpty, *size);
  return full(*size, GraphWhy::Fits);
}

GraphOutcome choose_own_size(const StepSummary& step, const DecideSettings& settings, bool split, std::int64_t tokens) {
  if (split && settings.coordination == Coordination::Mrv2 && !fills_last(step, settings, tokens))
    return none(GraphWhy::LastUbatchEmpty, tokens);
  return full(tokens, GraphWhy::OwnSize);
}

GraphOutcome choose(const StepSummary& step, const DecideSettings& settings, bool split, std::int64_t largest) {
  if (settings.execution == Execution::Eager) return none(GraphWhy::EagerMode);
  if (!replays_graphs(settings)) return none(GraphWhy::NotCapturable);
  if (step.all_idle) return none(GraphWhy::NoTokens);
  if (!settings.graph_sizes) return choose_own_size(step, settings, split, largest);
  if (settings.coordination == Coordination::V1) return choose_v1(step, settings, split, largest);
  return choose_by_bucket(step, settings, split, largest);
}

std::string tokens_text(std::int64_t tokens) {
  return std::to_string(tokens) + (tokens == 1 ? " token" : " tokens");
}

/// Sizes captured as one batch or as ubatches, the largest few.
std::string sizes_text(const DecideSettings& settings, const StepSummary& step, bool ubatched) {
  constexpr int kMost = 6;
  std::string text;
  int listed = 0;
  const Sizes& sizes = *settings.graph_sizes;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const Captured captured = captured_at(settings, *size, step.query, step.ranks.size());
    if (!(ubatched ? captured.ubatched : captured.unsplit)) continue;
    if (++listed > kMost) return "... " + text;
    text = std::to_string(*size) + (text.empty() ? "" : " ") + text;
  }
  return text.empty() ? "none" : text;
}

std::string smallest_rank(const StepSummary& step) {
  std::size_t at = 0;
  while (step.ranks[at].tokens != step.min_tokens) ++at;
  return "rank " + std::to_string(at) + " has " + tokens_text(step.min_tokens);
}

}  // namespace

bool replays_graphs(const DecideSettings& settings) {
  return settings.execution == Execution::Graph && transport_info(settings.transport).capturable;
}

Captured captured_at(const DecideSettings& settings, std::int64_t size, std::int64_t query, std::size_t ranks) {
  if (!settings.can_split() || ranks < 2) return {};
  const bool past_threshold = size >= std::max<std::int64_t>(settings.ubatches, settings.decode_token_threshold);
  switch (settings.coordination) {
    case Coordination::V1:
      return {.unsplit = !past_threshold, .ubatched = past_threshold};
    case Coordination::Mrv2:
      return {.unsplit = true, .ubatched = past_threshold && size % query == 0};
    case Coordination::Sglang:
      return {.unsplit = false, .ubatched = size % query == 0};
  }
  return {};
}

std::optional<std::int64_t> graph_bucket(const DecideSettings& settings, std::int64_t tokens) {
  const Sizes& sizes = *settings.graph_sizes;
  const auto found = std::lower_bound(sizes.begin(), sizes.end(), tokens);
  return found == sizes.end() ? std::nullopt : std::optional(*found);
}

std::int64_t own_padded_tokens(const RankSummary& rank, const DecideSettings& settings) {
  if (rank.padded_tokens) return *rank.padded_tokens;
  const bool pads = settings.coordination == Coordination::V1 && replays_graphs(settings) && settings.graph_sizes;
  if (!pads || !rank.uniform) return rank.tokens;
  // An idle rank runs a batch of one made-up token.
  return graph_bucket(settings, std::max<std::int64_t>(rank.tokens, 1)).value_or(rank.tokens);
}

std::int64_t own_graph_mode(const RankSummary& rank, const DecideSettings& settings) {
  if (!replays_graphs(settings)) return 0;
  if (!settings.graph_sizes) return 2;
  if (!rank.uniform) return 1;
  return graph_bucket(settings, own_padded_tokens(rank, settings)) ? 2 : 0;
}

GraphOutcome choose_graph(const StepSummary& step, const DecideSettings& settings, bool split) {
  const std::int64_t largest = largest_own(step, settings);
  GraphOutcome outcome = choose(step, settings, split, largest);
  const bool replays = outcome.mode != GraphMode::None;
  if (outcome.mode == GraphMode::Full)
    outcome.padded = outcome.size;
  else if (settings.coordination != Coordination::V1 || split || replays)
    outcome.padded = largest;
  return outcome;
}

std::string graph_text(const GraphOutcome& outcome, const StepSummary& step, const DecideSettings& settings) {
  const std::string wanted = tokens_text(outcome.wanted);
  switch (outcome.why) {
    case GraphWhy::Fits:
      return "uniform decode fits the graph of " + wanted;
    case GraphWhy::OwnSize:
      return "every step has a graph of its own size, here " + wanted;
    case GraphWhy::NotUniform:
      return "not uniform decode: graphs around attention only";
    case GraphWhy::EagerMode:
      return "execution is eager";
    case GraphWhy::NotCapturable:
      return "transport \"" + std::string(transport_info(settings.transport).name) + "\" cannot be captured";
    case GraphWhy::NoTokens:
      return "no rank has a token";
    case GraphWhy::SplitNotUniform:
      return "split, but not uniform decode on every rank: ubatched graphs are for uniform decode";
    case GraphWhy::NoSuchSize:
      return "no graph has " + wanted + " (sizes: " + sizes_text(settings, step, false) + ")";
    case GraphWhy::NoUbatchedSize:
      return "no ubatched graph has " + wanted + " (sizes: " + sizes_text(settings, step, true) + ")";
    case GraphWhy::Replaced:
      return "the graph of " + wanted + " was captured as ubatches, in place of the un-split one";
    case GraphWhy::LastUbatchEmpty:
      return smallest_rank(step) + ", too few to reach the last of " + std::to_string(settings.ubatches) +
             " ubatches of the graph of " + wanted;
    case GraphWhy::NeedsSplit:
      return "graphs were captured as two batches, and this step is one";
  }
  return {};
}

}  // namespace dbo
