// Votes, thresholds and reasons.
#include <doctest/doctest.h>

#include "sim/batch/decision_json.h"
#include "sim/batch/loads.h"
#include "sim/batch/sglang_split.h"
#include "tests/sim/batch/steps.h"

using namespace dbo;

namespace {
const DecideSettings kV1 = defaults(Coordination::V1), kMrv2 = defaults(Coordination::Mrv2);

std::vector<std::int64_t> row(const Decision& decision, std::string_view name) {
  for (const VoteRow& row : decision.vote_rows)
    if (row.name == name) return row.values;
  return {};
}
using Row = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("decide: thresholds are inclusive") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    CHECK(decide(step_of({decodes(32), decodes(32)}), settings).split);
    CHECK(decide(step_of({decodes(32), decodes(31)}), settings).reason == Reason::BelowThreshold);
    CHECK(decide(step_of({rank_of({512}), rank_of({512})}), settings).split);
    CHECK(decide(step_of({rank_of({511}), rank_of({512})}), settings).reason == Reason::BelowThreshold);
  }
}

TEST_CASE("decide: uniform decode is one query of 1 + draft tokens for every request") {
  // 16 requests of 2 tokens are 32 tokens: decode with one draft token, a small prefill without.
  const RankBatch rank = rank_of(std::vector<std::int64_t>(16, 2));
  CHECK(decide(step_of({rank, rank}, 1), kV1).split);
  CHECK_FALSE(decide(step_of({rank, rank}, 0), kV1).split);
  // One request with another query spoils it.
  RankBatch mixed = rank;
  mixed.requests.edit().push_back({.query = 1, .seq = 1, .blocks = {}});
  const Decision decision = decide(step_of({rank, mixed}, 1), kV1);
  CHECK(decision.votes == Votes{1, 0});
  CHECK(decision.reason_text == "rank 1 has 33 tokens, not uniform decode, below prefill_token_threshold 512");
}

TEST_CASE("decide: ranks pad to the largest (T5)") {
  const Decision decision = decide(step_of({rank_of({900}), rank_of({600})}), kV1);
  CHECK(decision.split);
  CHECK(decision.votes == Votes{1, 1});
  CHECK(decision.padded_tokens == 900);
  CHECK(row(decision, "tokens") == Row{900, 600});
  CHECK(row(decision, "padded_tokens") == Row{900, 600});
  CHECK(row(decision, "vote") == Row{1, 1});
  CHECK(row(decision, "graph_mode") == Row{0, 0});
}

TEST_CASE("decide: v1 takes each rank's own threshold, mrv2 one for the group (T6)") {
  const StepBatch a = step_of({rank_of({600}), decodes(301)});
  const Decision split = decide(a, kV1);
  CHECK(split.split);
  CHECK(split.padded_tokens == 600);
  const Decision whole = decide(a, kMrv2);
  CHECK(whole.reason == Reason::BelowThreshold);
  CHECK(whole.votes == Votes{1, 1});
  CHECK(whole.padded_tokens == 600);
  CHECK(row(whole, "uniform_query") == Row{0, 1});
  CHECK(row(whole, "max_query") == Row{600, 1});
  CHECK(row(whole, "requests") == Row{1, 301});
  CHECK(whole.reason_text ==
        "the smallest rank, 1, has 301 tokens, below prefill_token_threshold 512, which holds as the step is not "
        "uniform decode on every rank");

  const Decision aborted = decide(step_of({rank_of({600}), decodes(300)}), kV1);
  CHECK(aborted.reason == Reason::EmptyLastUbatch);
  CHECK(aborted.votes == Votes{1, 1});
  CHECK_FALSE(aborted.padded_tokens.has_value());
  CHECK(aborted.reason_text ==
        "padded to 600 tokens, the last of 2 ubatches starts at token 300, where rank 1 would have none (the smallest "
        "has 300)");

  const Decision against = decide(step_of({rank_of({600}), decodes(31)}), kV1);
  CHECK(against.reason == Reason::BelowThreshold);
  CHECK(against.votes == Votes{1, 0});
  CHECK(against.reason_text == "rank 1 has 31 tokens of uniform decode, below decode_token_threshold 32");
}

TEST_CASE("decide: an empty last of three ubatches (T4)") {
  const RankBatch rank = padded(decodes(3), 8, 8);
  CHECK(decide(step_of({rank, rank}), eager(Coordination::V1, 3)).reason == Reason::EmptyLastUbatch);
  CHECK(decide(step_of({rank, rank}), eager(Coordination::Mrv2, 3)).split);
}

TEST_CASE("decide: without DBO, ubatches or a second rank nothing is split") {
  const StepBatch step = step_of({decodes(64), decodes(64)});
  const Decision off = decide(step, without_dbo(kV1));
  CHECK(off.reason == Reason::Disabled);
  CHECK(off.votes == Votes{0, 0});
  CHECK(off.reason_text == "the server runs without DBO");
  DecideSettings one = kV1;
  one.ubatches = 1;
  CHECK(decide(step, one).reason == Reason::Disabled);
  for (const DecideSettings& settings : {kV1, kMrv2, defaults(Coordination::Sglang)})
    CHECK(decide(step_of({decodes(64)}), settings).reason == Reason::OneRank);
}

TEST_CASE("decide: a rank that may not, an idle one") {
  StepBatch step = step_of({decodes(64), decodes(64), RankBatch{}});
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    const Decision idle = decide(step, settings);
    CHECK(idle.reason == Reason::IdleRank);
    CHECK(idle.reason_text == "rank 2 has no request");
  }
  // The first runner's vote includes the threshold, which an idle rank fails; the second one's flag does not.
  CHECK(decide(step, kV1).votes == Votes{1, 1, 0});
  CHECK(decide(step, kMrv2).votes == Votes{1, 1, 1});
  step.ranks[0].allow = step.ranks[1].allow = false;
  for (const DecideSettings& settings : {kV1, kMrv2, defaults(Coordination::Sglang)}) {
    const Decision refused = decide(step, settings);
    CHECK(refused.reason == Reason::RankNotAllowed);
    CHECK(refused.reason_text == "ranks 0-1 may not split this step");
    CHECK(refused.votes[0] == 0);
  }
}

TEST_CASE("decide: the first reason that holds is given") {
  // Rank 0 is below its threshold, rank 1 idle: idleness comes first.
  CHECK(decide(step_of({decodes(2), RankBatch{}}), kV1).reason == Reason::IdleRank);
}

TEST_CASE("decide: v1 refuses a step that reads what it writes (T8)") {
  const auto step_with = [](std::int64_t first_block, std::int64_t reader_query) {
    RankBatch rank;
    rank.requests.edit().push_back({.query = reader_query, .seq = 32 + reader_query, .blocks = {7, 8, 9}});
    rank.requests.edit().push_back({.query = 40, .seq = 40, .blocks = {first_block, 5, 11}});
    return step_of({rank, rank_of({44})});
  };
  DecideSettings settings = kV1;
  settings.prefill_token_threshold = 32;
  const Decision veto = decide(step_with(7, 4), settings);
  CHECK(veto.reason == Reason::PrefixVeto);
  CHECK(veto.votes == Votes{0, 1});
  CHECK(veto.reason_text == "rank 0: request 0 reads block 7, which request 1 writes in this step");
  CHECK(decide(step_with(4, 4), settings).split);
  // A decode is no reader.
  CHECK(decide(step_with(7, 1), settings).reason == Reason::Split);
  // The second runner has no such rule.
  settings.coordination = Coordination::Mrv2;
  CHECK(decide(step_with(7, 4), settings).split);
}

TEST_CASE("decide: only whole computed blocks are read, and written ones reach to the last token") {
  // The reader has 31 computed tokens: one whole block. The writer's third column holds its 33rd token.
  RankBatch rank;
  rank.requests.edit().push_back({.query = 600, .seq = 631, .blocks = {}});
  rank.requests.edit()[0].blocks.assign(40, 0);
  for (std::size_t i = 0; i < 40; ++i) rank.requests.edit()[0].blocks[i] = 100 + static_cast<std::int64_t>(i);
  rank.requests.edit().push_back({.query = 33, .seq = 33, .blocks = {1, 2, 101}});
  CHECK(decide(step_of({rank, rank}), kV1).split);
  rank.requests.edit()[1].blocks = {1, 2, 100};
  CHECK(decide(step_of({rank, rank}), kV1).reason == Reason::PrefixVeto);
  // The block behind the last token is not written.
  rank.requests.edit()[1] = {.query = 32, .seq = 32, .blocks = {1, 2, 100}};
  CHECK(decide(step_of({rank, rank}), kV1).split);
}

TEST_CASE("decide: SGLang's flags, modes and reasons") {
  DecideSettings settings = defaults(Coordination::Sglang);
  // No thresholds: two sequences a rank split; an idle rank says yes.
  const Decision split = decide(step_of({decodes(2), RankBatch{}, decodes(4)}), settings);
  CHECK(split.split);
  CHECK(split.votes == Votes{1, 1, 1});
  CHECK(row(split, "forward_mode") == Row{1, 0, 1});
  CHECK(split.padded_tokens == 4);
  CHECK(split.ranks[0].ubatches[0].requests == Range{0, 1});
  CHECK(split.ranks[1].ubatches[0].tokens == Range{0, 0});
  CHECK(split.ranks[1].ubatches[1].requests == Range{0, 0});
  CHECK(split.ranks[1].ubatches[1].empty());

  const Decision all_idle = decide(step_of({RankBatch{}, RankBatch{}}), settings);
  CHECK(all_idle.reason == Reason::IdleRank);
  CHECK(all_idle.votes == Votes{1, 1});

  const Decision mixed = decide(step_of({decodes(64), rank_of({600})}), settings);
  CHECK(mixed.reason == Reason::ModeMismatch);
  CHECK(mixed.votes == Votes{1, 0});
  CHECK(mixed.reason_text == "rank 0 decodes, rank 1 extends");
  const Decision extend = decide(step_of({rank_of({600}), rank_of({600})}), settings);
  CHECK(extend.reason == Reason::ExtendLowLatency);
  CHECK(extend.votes == Votes{0, 0});
  settings.transport = Transport::Ht;
  settings.low_latency = false;
  CHECK(decide(step_of({rank_of({600}), rank_of({600})}), settings).split);
}

TEST_CASE("sglang_split: decode by sequence, extend by balanced sum, else inside a request") {
  CHECK(sglang_decode_cut(7, 1) == 3);
  CHECK(sglang_decode_cut(1, 1) == 0);
  CHECK(sglang_decode_cut(18, 3) == 9);
  CHECK(sglang_decode_cut(15, 3) == 6);
  const auto cut = [](const std::vector<std::int64_t>& queries, double threshold = 0.48) {
    return sglang_extend_cut(rank_of(queries).requests, threshold);
  };
  CHECK(cut({300, 300}) == 300);
  // 100 | 100 100: differences 100 and 100, the later place wins; 2/3 is above 0.52, so half of 300 cuts a request.
  CHECK(cut({100, 100, 100}) == 150);
  CHECK(cut({100, 100, 100}, 0.3) == 200);
  CHECK(cut({600}) == 300);
  CHECK(cut({600}, 0) == 0);
  // 490 of 1000 is within 0.48.
  CHECK(cut({490, 510}) == 490);
  CHECK(cut({470, 530}) == 500);
  // The difference falls to 2, then grows: the search stops there, whatever comes later.
  CHECK(cut({50, 49, 2, 1}, 0.3) == 50);
}

TEST_CASE("decide: SGLang cuts a prompt in two with the context of each part") {
  DecideSettings settings = defaults(Coordination::Sglang);
  settings.transport = Transport::Ht;
  settings.low_latency = false;
  const RankBatch rank = rank_of({400, 100, 100}, {1000, 100, 100});
  const Decision decision = decide(step_of({rank, rank}), settings);
  // Between requests the best is 400 | 200, and 2/3 is above 0.52: the first prompt is cut at half of 600.
  const auto& s = decision.ranks[0].ubatches;
  CHECK(s[0].requests == Range{0, 1});
  CHECK(s[0].tokens == Range{0, 300});
  CHECK(s[0].query_start_loc == Ints{0, 300});
  CHECK(s[0].seq_lens == Ints{900});
  CHECK(s[1].requests == Range{0, 3});
  CHECK(s[1].tokens == Range{300, 600});
  CHECK(s[1].query_start_loc == Ints{0, 100, 200, 300});
  CHECK(s[1].seq_lens == Ints{1000, 100, 100});
}

TEST_CASE("decide: SGLang pads each half to a multiple of attention tensor parallelism") {
  DecideSettings settings = defaults(Coordination::Sglang);
  settings.tensor = 4;
  const Decision decision = decide(step_of({decodes(10), decodes(10)}), settings);
  const auto& s = decision.ranks[0].ubatches;
  CHECK(s[0].tokens == Range{0, 5});
  CHECK(s[0].padded_tokens == Range{0, 8});
  CHECK(s[1].tokens == Range{5, 10});
  CHECK(s[1].padded_tokens == Range{5, 13});
}

TEST_CASE("loads: ranks with equal work share one") {
  const Decision decision = decide(step_of({decodes(64), decodes(64, 65), decodes(64), decodes(64)}), kV1);
  const StepLoads loads = make_loads(decision);
  CHECK(loads.load_of_rank == std::vector<int>{0, 1, 0, 0});
  REQUIRE(loads.loads.size() == 2);
  CHECK(loads.loads[1][1].token_begin == 32);
  CHECK(loads.loads[1][1].token_end == 64);
  CHECK(loads.loads[1][1].padded == 32);
  CHECK(loads.loads[1][1].seq_lens == Ints(32, 65));
  CHECK(loads.ranks_of(0) == std::vector<std::pair<int, int>>{{0, 1}, {2, 4}});
}

TEST_CASE("decide: ranks that share a batch get what they get with batches of their own") {
  for (const auto coordination : {Coordination::V1, Coordination::Mrv2, Coordination::Sglang}) {
    const DecideSettings settings = defaults(coordination);
    RankBatch rank;
    rank.requests.edit().assign(300, {.query = 1, .seq = 700, .blocks = {}});
    StepBatch shared, own;
    for (int r = 0; r < 6; ++r) {
      // Every third rank pads by itself: it shares its requests, but not its slices.
      rank.padded_tokens = r % 3 == 2 ? std::optional<std::int64_t>(320) : std::nullopt;
      shared.ranks.push_back(rank);
      own.ranks.push_back(rank);
      own.ranks.back().requests.edit();
    }
    const Decision a = decide(shared, settings), b = decide(own, settings);
    CHECK(pretty_json(decision_to_json(a)) == pretty_json(decision_to_json(b)));
    CHECK(a.ranks[1].ubatches.shares(a.ranks[0].ubatches));
    CHECK_FALSE(a.ranks[2].ubatches.shares(a.ranks[1].ubatches));
    CHECK_FALSE(b.ranks[1].ubatches.shares(b.ranks[0].ubatches));
  }
}
