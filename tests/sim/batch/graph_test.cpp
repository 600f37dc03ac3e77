// Which graph a step replays.
#include <doctest/doctest.h>

#include "tests/sim/batch/steps.h"

using namespace dbo;

namespace {
Decision decide_two(const RankBatch& a, const RankBatch& b, const DecideSettings& settings, std::int64_t drafts = 0) {
  return decide(step_of({a, b}, drafts), settings);
}
const DecideSettings kV1 = with_graphs(defaults(Coordination::V1), {64, 128});
const DecideSettings kMrv2 = with_graphs(defaults(Coordination::Mrv2), {64, 128});
}  // namespace

TEST_CASE("graph: mrv2 replays when every rank fills the last ubatch (T7)") {
  const Decision even = decide_two(decodes(64), decodes(64), kMrv2);
  CHECK(even.split);
  CHECK(even.graph.mode == GraphMode::Full);
  CHECK(even.graph.size == 64);
  CHECK(even.padded_tokens == 64);

  // The last half starts at 64: 33 and also 64 tokens do not reach it.
  for (const int tokens : {33, 64}) {
    const Decision eager_step = decide_two(decodes(tokens), decodes(128), kMrv2);
    CHECK(eager_step.split);
    CHECK(eager_step.graph.mode == GraphMode::None);
    CHECK_FALSE(eager_step.graph.size.has_value());
    CHECK(eager_step.padded_tokens == 128);
    CHECK(eager_step.ranks[0].ubatches[1].empty());
  }
  CHECK(decide_two(decodes(33), decodes(128), kMrv2).graph.why ==
        "rank 0 has 33 tokens, too few to reach the last of 2 ubatches of the graph of 128 tokens");
  CHECK(decide_two(decodes(65), decodes(128), kMrv2).graph.size == 128);
}

TEST_CASE("graph: mrv2 falls back to the largest count, not to the graph's size") {
  // 33 and 100 tokens: the graph of 128 is cut at 64, which rank 0 does not reach.
  const Decision decision = decide_two(decodes(33), decodes(100), kMrv2);
  CHECK(decision.graph.mode == GraphMode::None);
  CHECK(decision.padded_tokens == 100);
  CHECK(decision.ranks[0].ubatches[0].tokens == Range{0, 33});
  CHECK(decision.ranks[1].ubatches[0].tokens == Range{0, 50});
}

TEST_CASE("graph: mrv2 keeps the un-split graph beside the ubatched one") {
  DecideSettings settings = kMrv2;
  settings.decode_token_threshold = 100;
  const Decision decision = decide_two(decodes(64), decodes(60), settings);
  CHECK(decision.reason == Reason::BelowThreshold);
  CHECK(decision.graph.mode == GraphMode::Full);
  CHECK(decision.graph.size == 64);
  // Padded metadata: 60 requests in 64 rows.
  const UbatchSlice& slice = decision.ranks[1].ubatches[0];
  CHECK(slice.requests == Range{0, 60});
  CHECK(slice.padded_requests == Range{0, 64});
  CHECK(slice.query_start_loc.size() == 65);
  CHECK(slice.query_start_loc.back() == 60);
  CHECK(slice.seq_lens.back() == 0);
}

TEST_CASE("graph: sizes that whole requests do not fill have no ubatched twin in mrv2") {
  // Three tokens a request: 63 tokens; 64 and 128 are no multiples of 3, 96 is.
  const RankBatch rank = rank_of(std::vector<std::int64_t>(21, 3), std::vector<std::int64_t>(21, 50));
  CHECK(decide_two(rank, rank, kMrv2, 2).graph.mode == GraphMode::None);
  CHECK(decide_two(rank, rank, kMrv2, 2).graph.why == "no ubatched graph has 63 tokens (sizes: none)");
  CHECK(decide_two(rank, rank, with_graphs(defaults(Coordination::Mrv2), {64, 96, 128}), 2).graph.size == 96);
}

TEST_CASE("graph: v1 pads each rank's uniform decode to a graph, then all to the largest") {
  const Decision decision = decide_two(decodes(60), decodes(100), kV1);
  CHECK_FALSE(decision.split);  // 128 / 2 = 64 >= 60
  CHECK(decision.reason == Reason::EmptyLastUbatch);
  const Decision split = decide_two(decodes(70), decodes(100), kV1);
  CHECK(split.split);
  CHECK(split.padded_tokens == 128);
  CHECK(split.graph.mode == GraphMode::Full);
  CHECK(split.graph.size == 128);
  // 70 requests: 64 in the first half, 6 and 58 rows of padding in the second.
  const UbatchSlice& last = split.ranks[0].ubatches[1];
  CHECK(last.requests == Range{64, 70});
  CHECK(last.padded_requests == Range{64, 128});
  CHECK(last.query_start_loc.size() == 65);
  CHECK(last.query_start_loc[6] == 6);
  CHECK(last.query_start_loc.back() == 6);
  CHECK(last.seq_lens[6] == 0);
}

TEST_CASE("graph: v1 has no un-split graph from the decode threshold on") {
  // One rank may not split: at 64 tokens the graph was captured as ubatches, below 32 as one.
  RankBatch refuses = decodes(64);
  refuses.allow = false;
  const Decision cliff = decide_two(refuses, decodes(64), kV1);
  CHECK(cliff.graph.mode == GraphMode::None);
  CHECK(cliff.graph.why == "the graph of 64 tokens was captured as ubatches, in place of the un-split one");
  CHECK_FALSE(cliff.padded_tokens.has_value());
  const DecideSettings small = with_graphs(defaults(Coordination::V1), {16, 31, 32, 64});
  CHECK(decide_two(decodes(20), decodes(31), small).graph.size == 31);
  // 31 tokens are below the threshold, their graph of 32 is not.
  CHECK(decide_two(decodes(31), decodes(31), with_graphs(defaults(Coordination::V1), {16, 32})).graph.mode ==
        GraphMode::None);
  // The server with DBO off captured every size as one batch, and so did a server of one rank.
  CHECK(decide_two(refuses, decodes(64), without_dbo(kV1)).graph.size == 64);
  CHECK(decide(step_of({decodes(64)}), kV1).graph.size == 64);
}

TEST_CASE("graph: prefill runs piecewise un-split and eager split, where the server has decode sizes") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    const Decision whole = decide_two(rank_of({300}), rank_of({200}), settings);
    CHECK_FALSE(whole.split);
    CHECK(whole.graph.mode == GraphMode::Piecewise);
    CHECK(whole.graph.size == 300);
    CHECK(whole.padded_tokens == 300);
    CHECK(whole.ranks[1].ubatches[0].padded_tokens == Range{0, 300});
    CHECK(whole.ranks[1].ubatches[0].query_start_loc == Ints{0, 200});
    const Decision split = decide_two(rank_of({600}), rank_of({600}), settings);
    CHECK(split.split);
    CHECK(split.graph.mode == GraphMode::None);
  }
  // One rank decodes, one prefills: v1 splits, but without a graph.
  CHECK(decide_two(rank_of({600}), decodes(400), kV1).graph.mode == GraphMode::None);
}

TEST_CASE("graph: without sizes every step has a graph of its own") {
  for (const Coordination coordination : {Coordination::V1, Coordination::Mrv2}) {
    const DecideSettings settings = with_graphs(defaults(coordination), {});
    const Decision prefill = decide_two(rank_of({600}), rank_of({900}), settings);
    CHECK(prefill.split);
    CHECK(prefill.graph.mode == GraphMode::Full);
    CHECK(prefill.graph.size == 900);
    CHECK(prefill.padded_tokens == 900);
    const Decision whole = decide_two(rank_of({100}), rank_of({90}), settings);
    CHECK(whole.graph.mode == GraphMode::Full);
    CHECK(whole.padded_tokens == 100);
  }
  // What cannot be replayed still cannot: rank 0 does not reach the last half.
  CHECK(decide_two(decodes(33), decodes(128), with_graphs(defaults(Coordination::Mrv2), {})).graph.mode ==
        GraphMode::None);
}

TEST_CASE("graph: eager execution and transports that cannot be captured replay nothing and pad nothing") {
  DecideSettings settings = kV1;
  settings.transport = Transport::Ht;
  const Decision ht = decide_two(decodes(60), decodes(50), settings);
  CHECK(ht.split);
  CHECK(ht.graph.mode == GraphMode::None);
  CHECK(ht.graph.why == "transport \"ht\" cannot be captured");
  CHECK(ht.padded_tokens == 60);
  settings.transport = Transport::Ll;
  settings.execution = Execution::Eager;
  CHECK(decide_two(decodes(60), decodes(50), settings).graph.why == "execution is eager");
}

TEST_CASE("graph: more tokens than the largest size run eager") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    const Decision decision = decide_two(decodes(130), decodes(130), settings);
    CHECK(decision.split);
    CHECK(decision.graph.mode == GraphMode::None);
    CHECK(decision.graph.why == "no ubatched graph has 130 tokens (sizes: 64 128)");
    CHECK(decision.padded_tokens == 130);
  }
}

TEST_CASE("graph: an idle rank replays with the others; a step without tokens replays nothing") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    DecideSettings high = settings;
    high.decode_token_threshold = 1000;
    const Decision decision = decide_two(decodes(60), RankBatch{}, high);
    CHECK(decision.reason == Reason::IdleRank);
    CHECK(decision.graph.size == 64);
    CHECK(decision.ranks[1].ubatches[0].padded_tokens == Range{0, 64});
    CHECK(decision.ranks[1].ubatches[0].tokens == Range{0, 0});
    CHECK(decide_two(RankBatch{}, RankBatch{}, settings).graph.why == "no rank has a token");
  }
}

TEST_CASE("graph: SGLang's graph is cut by its size, and an empty half replays") {
  const DecideSettings settings = with_graphs(defaults(Coordination::Sglang), {64, 128});
  const Decision decision = decide_two(decodes(20), decodes(100), settings);
  CHECK(decision.split);
  CHECK(decision.graph.size == 128);
  const auto& s = decision.ranks[0].ubatches;
  CHECK(s[0].tokens == Range{0, 20});
  CHECK(s[0].padded_tokens == Range{0, 64});
  CHECK(s[0].padded_requests == Range{0, 64});
  CHECK(s[0].query_start_loc.size() == 65);
  CHECK(s[1].empty());
  CHECK(s[1].padded_tokens == Range{64, 128});
  CHECK(s[1].padded_requests == Range{64, 128});
  CHECK(s[1].query_start_loc == Ints(65, 0));
}

TEST_CASE("graph: v1 ranks keep the rows they padded to when no graph runs after all") {
  // The step is split without a graph, as rank 0 prefills; rank 1 had padded its 400 requests to 512.
  const DecideSettings settings = with_graphs(defaults(Coordination::V1), {512});
  const Decision decision = decide_two(rank_of({600}), decodes(400), settings);
  CHECK(decision.padded_tokens == 600);
  const UbatchSlice& last = decision.ranks[1].ubatches[1];
  CHECK(last.requests == Range{300, 400});
  CHECK(last.padded_requests == Range{300, 512});
  CHECK(last.query_start_loc.size() == 101);
}

TEST_CASE("graph: what each server captured at its sizes") {
  using Sizes = std::vector<std::int64_t>;
  const auto check = [](const DecideSettings& settings, std::int64_t drafts, const Sizes& unsplit,
                        const Sizes& ubatched) {
    const GraphChoice graph = decide_two(decodes(4), decodes(4), settings, drafts).graph;
    CHECK(graph.unsplit_sizes == unsplit);
    CHECK(graph.ubatched_sizes == ubatched);
  };
  const Sizes sizes = {8, 31, 32, 64};
  // The ubatched graph replaces the un-split one, or stands beside it; SGLang has no other.
  check(with_graphs(defaults(Coordination::V1), sizes), 0, {8, 31}, {32, 64});
  check(with_graphs(defaults(Coordination::Mrv2), sizes), 0, sizes, {32, 64});
  check(with_graphs(defaults(Coordination::Mrv2), {33, 64, 66}), 2, {33, 64, 66}, {33, 66});
  check(with_graphs(defaults(Coordination::Sglang), sizes), 0, {}, sizes);
  check(without_dbo(with_graphs(defaults(Coordination::V1), sizes)), 0, sizes, {});
  check(with_graphs(defaults(Coordination::V1), {}), 0, {}, {});
  check(defaults(Coordination::V1), 0, {}, {});
}
