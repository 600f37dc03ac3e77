// The worked examples of slicing, a to o.
#include <doctest/doctest.h>

#include "tests/sim/batch/steps.h"

using namespace dbo;

namespace {

/// Two equal ranks, so that nothing but the batch itself decides.
std::vector<UbatchSlice> slices(const RankBatch& rank, const DecideSettings& settings) {
  const Decision decision = decide(step_of({rank, rank}), settings);
  REQUIRE(decision.split);
  return decision.ranks[1].ubatches;
}

const DecideSettings kV1 = eager(Coordination::V1), kMrv2 = eager(Coordination::Mrv2);

}  // namespace

TEST_CASE("slice a: uniform decode halves by requests") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    const auto s = slices(decodes(8), settings);
    CHECK(s[0].requests == Range{0, 4});
    CHECK(s[0].tokens == Range{0, 4});
    CHECK(s[1].requests == Range{4, 8});
    CHECK(s[1].tokens == Range{4, 8});
    CHECK(s[1].query_start_loc == Ints{0, 1, 2, 3, 4});
    CHECK(s[1].seq_lens == Ints{64, 64, 64, 64});
    CHECK(s[1].block_table_rows == Range{4, 8});
    CHECK(s[1].unused_slots() == 0);
  }
}

TEST_CASE("slice b: a request is cut, and its context is shorter in the first half only") {
  for (const DecideSettings& settings : {kV1, kMrv2}) {
    const auto s = slices(rank_of({1, 1, 10, 1, 1}, {64, 96, 512, 32, 48}), settings);
    CHECK(s[0].requests == Range{0, 3});
    CHECK(s[0].tokens == Range{0, 7});
    CHECK(s[0].query_start_loc == Ints{0, 1, 2, 7});
    CHECK(s[0].seq_lens == Ints{64, 96, 507});
    CHECK(s[1].requests == Range{2, 5});
    CHECK(s[1].tokens == Range{7, 14});
    CHECK(s[1].query_start_loc == Ints{0, 5, 6, 7});
    CHECK(s[1].seq_lens == Ints{512, 32, 48});
  }
}

TEST_CASE("slice c: a cut on a request boundary cuts no request") {
  const auto s = slices(rank_of({6, 2, 4, 4}), kV1);
  CHECK(s[0].requests == Range{0, 2});
  CHECK(s[0].tokens == Range{0, 8});
  CHECK(s[1].requests == Range{2, 4});
  CHECK(s[1].tokens == Range{8, 16});
}

TEST_CASE("slice d: an odd total leaves the remainder to the last") {
  const auto s = slices(rank_of({3, 9, 3}, {70, 300, 41}), kV1);
  CHECK(s[0].requests == Range{0, 2});
  CHECK(s[0].query_start_loc == Ints{0, 3, 7});
  CHECK(s[0].seq_lens == Ints{70, 295});
  CHECK(s[1].requests == Range{1, 3});
  CHECK(s[1].tokens == Range{7, 15});
  CHECK(s[1].query_start_loc == Ints{0, 5, 8});
  CHECK(s[1].seq_lens == Ints{300, 41});
}

TEST_CASE("slice f, m: one prompt is in both halves, two equal ones are not cut") {
  const auto one = slices(rank_of({700}), kV1);
  CHECK(one[0].tokens == Range{0, 350});
  CHECK(one[1].tokens == Range{350, 700});
  CHECK(one[0].requests == Range{0, 1});
  CHECK(one[1].requests == Range{0, 1});
  CHECK(one[0].seq_lens == Ints{350});
  CHECK(one[1].seq_lens == Ints{700});
  const auto two = slices(rank_of({300, 300}), kV1);
  CHECK(two[0].requests == Range{0, 1});
  CHECK(two[1].requests == Range{1, 2});
}

TEST_CASE("slice g: the cut is by the padded count, the padding lies in the last") {
  const Decision decision = decide(step_of({rank_of({900}), rank_of({600})}), kV1);
  CHECK(decision.padded_tokens == 900);
  const auto& s = decision.ranks[1].ubatches;
  CHECK(s[0].tokens == Range{0, 450});
  CHECK(s[0].padded_tokens == Range{0, 450});
  CHECK(s[1].tokens == Range{450, 600});
  CHECK(s[1].padded_tokens == Range{450, 900});
  CHECK(s[1].unused_slots() == 300);
  // Eager: metadata is that of the real tokens.
  CHECK(s[1].query_start_loc == Ints{0, 150});
}

TEST_CASE("slice h: padded requests, in real and in padded metadata") {
  const RankBatch rank = padded(decodes(6), 8, 8);
  const auto real = slices(rank, kV1);
  CHECK(real[0].requests == Range{0, 4});
  CHECK(real[1].requests == Range{4, 6});
  CHECK(real[1].tokens == Range{4, 6});
  CHECK(real[1].padded_tokens == Range{4, 8});
  CHECK(real[1].padded_requests == Range{4, 8});
  CHECK(real[1].query_start_loc == Ints{0, 1, 2});
  CHECK(real[1].seq_lens == Ints{64, 64});
  for (const Coordination coordination : {Coordination::V1, Coordination::Mrv2}) {
    const auto graph = slices(rank, with_graphs(eager(coordination), {8}));
    CHECK(graph[1].requests == Range{4, 6});
    CHECK(graph[1].tokens == Range{4, 6});
    CHECK(graph[1].query_start_loc == Ints{0, 1, 2, 2, 2});
    CHECK(graph[1].seq_lens == Ints{64, 64, 0, 0});
    CHECK(graph[1].block_table_rows == Range{4, 8});
  }
}

TEST_CASE("slice i: an empty last ubatch: v1 refuses, mrv2 runs a dummy on the last request") {
  const RankBatch rank = padded(decodes(6), 16, 6);
  const Decision v1 = decide(step_of({rank, rank}), kV1);
  CHECK_FALSE(v1.split);
  CHECK(v1.reason == Reason::EmptyLastUbatch);
  CHECK(v1.votes == Votes{1, 1});
  const auto s = slices(rank, kMrv2);
  CHECK(s[0].tokens == Range{0, 6});
  CHECK(s[0].padded_tokens == Range{0, 8});
  CHECK(s[1].empty());
  CHECK(s[1].tokens == Range{6, 6});
  CHECK(s[1].requests == Range{5, 6});
  CHECK(s[1].padded_tokens == Range{8, 16});
  CHECK(s[1].query_start_loc == Ints{0, 0});
  CHECK(s[1].seq_lens == Ints{64});
}

TEST_CASE("slice j, k: three ubatches, and an odd decode count") {
  const auto three = slices(decodes(10), eager(Coordination::V1, 3));
  CHECK(three[0].tokens == Range{0, 3});
  CHECK(three[1].tokens == Range{3, 6});
  CHECK(three[2].tokens == Range{6, 10});
  CHECK(three[2].requests == Range{6, 10});
  const auto odd = slices(decodes(7), kV1);
  CHECK(odd[0].tokens == Range{0, 3});
  CHECK(odd[1].tokens == Range{3, 7});
}

TEST_CASE("slice o: a dummy request of 32 tokens halves") {
  const auto s = slices(rank_of({32}), kV1);
  CHECK(s[0].query_start_loc == Ints{0, 16});
  CHECK(s[1].query_start_loc == Ints{0, 16});
}

TEST_CASE("slice: mrv2 leaves middle ubatches empty too") {
  // 12 padded tokens in 3: cuts at 4 and 8; the rank has 3.
  const auto s = slices(padded(decodes(3), 12, 3), eager(Coordination::Mrv2, 3));
  CHECK(s[0].tokens == Range{0, 3});
  CHECK(s[0].padded_tokens == Range{0, 4});
  CHECK(s[0].query_start_loc == Ints{0, 1, 2, 3});
  for (const std::size_t i : {1U, 2U}) {
    CHECK(s[i].empty());
    CHECK(s[i].tokens == Range{3, 3});
    CHECK(s[i].requests == Range{2, 3});
    CHECK(s[i].seq_lens == Ints{64});
  }
  CHECK(s[1].padded_tokens == Range{4, 8});
  CHECK(s[2].padded_tokens == Range{8, 12});
}

TEST_CASE("slice: a request of three ubatches is shortened in all but its last") {
  const auto s = slices(rank_of({30}, {100}), eager(Coordination::V1, 3));
  CHECK(s[0].seq_lens == Ints{80});
  CHECK(s[1].seq_lens == Ints{90});
  CHECK(s[2].seq_lens == Ints{100});
  for (const UbatchSlice& slice : s) CHECK(slice.query_start_loc == Ints{0, 10});
}

TEST_CASE("slice: without a split one ubatch holds the rank's whole batch") {
  const Decision decision = decide(step_of({rank_of({3, 9}, {7, 20}), RankBatch{}}), kV1);
  CHECK_FALSE(decision.split);
  CHECK(decision.ubatches == 1);
  const auto& s = decision.ranks[0].ubatches;
  REQUIRE(s.size() == 1);
  CHECK(s[0].requests == Range{0, 2});
  CHECK(s[0].tokens == Range{0, 12});
  CHECK(s[0].padded_tokens == Range{0, 12});
  CHECK(s[0].query_start_loc == Ints{0, 3, 12});
  CHECK(s[0].seq_lens == Ints{7, 20});
  const auto& idle = decision.ranks[1].ubatches;
  CHECK(idle[0].requests == Range{0, 0});
  CHECK(idle[0].tokens == Range{0, 0});
  CHECK(idle[0].empty());
  CHECK(idle[0].query_start_loc == Ints{0});
  CHECK(idle[0].seq_lens == Ints{});
}
