// What holds of every decision, on random steps.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/hash.h"
#include "tests/sim/batch/steps.h"

using namespace dbo;

namespace {

/// Numbers from a seed, one after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(mix_below(seed_, counter_++, static_cast<std::uint64_t>(bound)));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }

 private:
  std::uint64_t seed_, counter_ = 0;
};

RankBatch random_rank(Dice& dice, std::int64_t query, bool decode) {
  RankBatch rank;
  const std::int64_t requests = dice.one_in(12) ? 0 : 1 + dice.below(40);
  for (std::int64_t i = 0; i < requests; ++i) {
    const std::int64_t tokens = decode || dice.one_in(3) ? query : 1 + dice.below(60);
    rank.requests.edit().push_back({.query = tokens, .seq = tokens + dice.below(200), .blocks = {}});
  }
  if (dice.one_in(5)) rank.padded_tokens = rank.tokens() + dice.below(40);
  if (dice.one_in(5)) rank.padded_requests = requests + dice.below(10);
  rank.allow = !dice.one_in(25);
  return rank;
}

StepBatch random_step(Dice& dice) {
  StepBatch step;
  step.draft_tokens = dice.one_in(2) ? 0 : dice.below(4);
  const bool decode = dice.one_in(2);
  const std::int64_t ranks = 1 + dice.below(6);
  for (std::int64_t i = 0; i < ranks; ++i) step.ranks.push_back(random_rank(dice, 1 + step.draft_tokens, decode));
  return step;
}

DecideSettings random_settings(Dice& dice) {
  DecideSettings settings;
  settings.coordination = static_cast<Coordination>(dice.below(3));
  settings.ubatches = settings.coordination == Coordination::Sglang ? 2 : 1 + static_cast<int>(dice.below(4));
  settings.decode_token_threshold = settings.ubatches + dice.below(20);
  settings.prefill_token_threshold = settings.ubatches + dice.below(60);
  settings.low_latency = !dice.one_in(3);
  settings.transport = settings.low_latency ? Transport::Ll : Transport::LsaHt;
  if (dice.one_in(2)) settings.execution = Execution::Graph;
  if (dice.one_in(2)) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t size = 1 + dice.below(8); size < 200; size += 1 + dice.below(40)) sizes.push_back(size);
    settings.graph_sizes = sizes;
  }
  return settings;
}

template <class Check>
void for_random_steps(Check&& check) {
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    Dice dice(seed);
    const StepBatch step = random_step(dice);
    const DecideSettings settings = random_settings(dice);
    check(step, settings, decide(step, settings));
  }
}

/// Puts a request's parts together from the ubatches' metadata, which may cover padding rows.
struct Parts {
  std::int64_t tokens = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;  ///< tokens and seq_len of each part
};

std::vector<Parts> reassemble(const RankSplit& split, std::size_t requests) {
  std::vector<Parts> out(requests);
  for (const UbatchSlice& slice : split.ubatches)
    for (std::int64_t row = slice.block_table_rows.begin; row < slice.block_table_rows.end; ++row) {
      const auto i = static_cast<std::size_t>(row - slice.block_table_rows.begin);
      const std::int64_t tokens = slice.query_start_loc[i + 1] - slice.query_start_loc[i];
      if (row >= static_cast<std::int64_t>(requests)) {
        CHECK(tokens == 0);
        CHECK(slice.seq_lens[i] == 0);
        continue;
      }
      if (tokens == 0) continue;  // an empty ubatch stands on a request without a token of it
      Parts& parts = out[static_cast<std::size_t>(row)];
      parts.tokens += tokens;
      parts.pieces.emplace_back(tokens, slice.seq_lens[i]);
    }
  return out;
}

}  // namespace

TEST_CASE("property: slices tile real and padded tokens, requests are covered in order") {
  int splits = 0, graphs = 0;
  for_random_steps([&](const StepBatch& step, const DecideSettings&, const Decision& decision) {
    splits += decision.split ? 1 : 0;
    graphs += decision.split && decision.graph.mode == GraphMode::Full ? 1 : 0;
    REQUIRE(decision.ranks.size() == step.ranks.size());
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      const auto& ubatches = decision.ranks[r].ubatches;
      REQUIRE(static_cast<int>(ubatches.size()) == decision.ubatches);
      std::int64_t token = 0, padded_token = 0, request = 0;
      for (const UbatchSlice& slice : ubatches) {
        CHECK(slice.tokens.begin == token);
        CHECK(slice.padded_tokens.begin == padded_token);
        CHECK(slice.tokens.size() >= 0);
        CHECK(slice.tokens.size() <= slice.padded_tokens.size());
        // The next request, or the last one again when it is cut or the ubatch is empty.
        CHECK((slice.requests.begin == request || slice.requests.begin == request - 1));
        CHECK(slice.requests.end >= slice.requests.begin);
        CHECK(slice.padded_requests.end >= slice.requests.begin);
        CHECK(slice.query_start_loc.size() == slice.seq_lens.size() + 1);
        CHECK(slice.query_start_loc.front() == 0);
        CHECK(std::is_sorted(slice.query_start_loc.begin(), slice.query_start_loc.end()));
        CHECK(slice.query_start_loc.back() == slice.tokens.size());
        token = slice.tokens.end;
        padded_token = slice.padded_tokens.end;
        request = std::max(request, slice.requests.end);
      }
      CHECK(token == step.ranks[r].tokens());
      CHECK(request == static_cast<std::int64_t>(step.ranks[r].requests.size()));
      if (decision.padded_tokens) CHECK(padded_token == *decision.padded_tokens);
      CHECK(padded_token >= step.ranks[r].tokens());
    }
  });
  // The dice must reach what is tested.
  CHECK(splits > 400);
  CHECK(graphs > 100);
}

TEST_CASE("property: metadata re-assembles into the parent's") {
  for_random_steps([](const StepBatch& step, const DecideSettings&, const Decision& decision) {
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      const auto& requests = step.ranks[r].requests;
      const std::vector<Parts> parts = reassemble(decision.ranks[r], requests.size());
      for (std::size_t i = 0; i < requests.size(); ++i) {
        CHECK(parts[i].tokens == requests[i].query);
        // A part's context ends where the part ends: the whole context less what later parts hold.
        std::int64_t behind = requests[i].query;
        for (const auto& [tokens, seq] : parts[i].pieces) {
          behind -= tokens;
          CHECK(seq == requests[i].seq - behind);
        }
      }
    }
  });
}

TEST_CASE("property: every rank concludes the same from the matrix alone") {
  for_random_steps([](const StepBatch& step, const DecideSettings& settings, const Decision& decision) {
    const auto row = [&](std::string_view name) {
      const auto at = std::find_if(decision.vote_rows.begin(), decision.vote_rows.end(),
                                   [&](const VoteRow& r) { return r.name == name; });
      REQUIRE(at != decision.vote_rows.end());
      REQUIRE(at->values.size() == step.ranks.size());
      return at->values;
    };
    const auto smallest = [](const std::vector<std::int64_t>& v) { return *std::min_element(v.begin(), v.end()); };
    const auto largest = [](const std::vector<std::int64_t>& v) { return *std::max_element(v.begin(), v.end()); };
    if (step.ranks.size() < 2) return;
    bool split = false;
    switch (settings.coordination) {
      case Coordination::V1: {
        const std::int64_t last = largest(row("padded_tokens")) / settings.ubatches * (settings.ubatches - 1);
        split = smallest(row("vote")) == 1 && last < smallest(row("tokens"));
        break;
      }
      case Coordination::Mrv2: {
        const bool uniform = smallest(row("uniform_query")) > 0;
        split =
            smallest(row("allow_ubatching")) == 1 && smallest(row("requests")) > 0 &&
            smallest(row("tokens")) >= (uniform ? settings.decode_token_threshold : settings.prefill_token_threshold);
        break;
      }
      case Coordination::Sglang: {
        std::vector<std::int64_t> modes = row("forward_mode");
        std::erase(modes, 0);
        split = smallest(row("can_run")) == 1 && !modes.empty() && smallest(modes) == largest(modes);
        break;
      }
    }
    CHECK(decision.split == split);
    CHECK(decision.split == (decision.reason == Reason::Split));
    CHECK_FALSE(decision.reason_text.empty());
    CHECK_FALSE(decision.graph.why.empty());
  });
}

TEST_CASE("property: the order of ranks changes nobody's decision") {
  for_random_steps([](const StepBatch& step, const DecideSettings& settings, const Decision& decision) {
    StepBatch reversed = step;
    std::reverse(reversed.ranks.begin(), reversed.ranks.end());
    const Decision other = decide(reversed, settings);
    CHECK(other.reason == decision.reason);
    CHECK(other.padded_tokens == decision.padded_tokens);
    CHECK(other.graph.mode == decision.graph.mode);
    CHECK(other.graph.size == decision.graph.size);
    CHECK(std::equal(other.votes.rbegin(), other.votes.rend(), decision.votes.begin(), decision.votes.end()));
  });
}

TEST_CASE("property: a replayed graph has a real token in every vLLM ubatch and padding in the last alone") {
  for_random_steps([](const StepBatch&, const DecideSettings& settings, const Decision& decision) {
    if (!decision.split || decision.graph.mode != GraphMode::Full || settings.coordination == Coordination::Sglang)
      return;
    for (const RankSplit& rank : decision.ranks)
      for (std::size_t i = 0; i < rank.ubatches.size(); ++i) {
        CHECK_FALSE(rank.ubatches[i].empty());
        if (i + 1 < rank.ubatches.size()) CHECK(rank.ubatches[i].unused_slots() == 0);
      }
  });
}
