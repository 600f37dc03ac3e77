#include "sim/batch/workload.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace dbo;

TEST_CASE("workload: decode requests have the query, context and count asked for") {
  const StepBatch step =
      expand({.phase = Phase::Decode, .decode_tokens = 12, .context_tokens = 100, .query_tokens = 3}, 2);
  CHECK(step.draft_tokens == 2);
  REQUIRE(step.ranks.size() == 2);
  REQUIRE(step.ranks[1].requests.size() == 4);
  for (const Request& request : step.ranks[1].requests) CHECK(request == Request{.query = 3, .seq = 100, .blocks = {}});
}

TEST_CASE("workload: prompts fill the tokens and the last is shorter") {
  const StepBatch step = expand({.phase = Phase::Prefill, .prefill_tokens = 1000, .context_tokens = 400}, 1);
  REQUIRE(step.ranks[0].requests.size() == 3);
  CHECK(step.ranks[0].requests[0] == Request{.query = 400, .seq = 400, .blocks = {}});
  CHECK(step.ranks[0].requests[2] == Request{.query = 200, .seq = 200, .blocks = {}});
}

TEST_CASE("workload: a mixed step has its decodes first") {
  const StepBatch step =
      expand({.phase = Phase::Mixed, .decode_tokens = 2, .prefill_tokens = 70, .context_tokens = 64}, 1);
  REQUIRE(step.ranks[0].requests.size() == 4);
  CHECK(step.ranks[0].requests[1] == Request{.query = 1, .seq = 64, .blocks = {}});
  CHECK(step.ranks[0].requests[2] == Request{.query = 64, .seq = 64, .blocks = {}});
  CHECK(step.ranks[0].requests[3] == Request{.query = 6, .seq = 6, .blocks = {}});
}

TEST_CASE("workload: spreads stay within their share, reach both sides and depend on the seed alone") {
  UniformWorkload w{.phase = Phase::Decode,
                    .decode_tokens = 200,
                    .context_tokens = 1000,
                    .context_spread = 0.5,
                    .token_spread = 0.1,
                    .seed = 1};
  const StepBatch step = expand(w, 8);
  CHECK(step == expand(w, 8));
  std::int64_t low = 1000, high = 1000, fewest = 200, most = 200;
  for (const RankBatch& rank : step.ranks) {
    fewest = std::min(fewest, rank.tokens());
    most = std::max(most, rank.tokens());
    for (const Request& request : rank.requests) {
      low = std::min(low, request.seq);
      high = std::max(high, request.seq);
    }
  }
  CHECK(fewest >= 180);
  CHECK(fewest < 200);
  CHECK(most <= 220);
  CHECK(most > 200);
  CHECK(low >= 500);
  CHECK(low < 600);
  CHECK(high <= 1500);
  CHECK(high > 1400);
  // More ranks do not change those that were there.
  const StepBatch wider = expand(w, 9);
  CHECK(std::equal(step.ranks.begin(), step.ranks.end(), wider.ranks.begin()));
  w.seed = 2;
  CHECK_FALSE(step == expand(w, 8));
}
