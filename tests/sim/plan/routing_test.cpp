#include "sim/plan/routing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "sim/base/error.h"

using namespace dbo;

namespace {

Plan plan_of(int ranks, int ranks_per_node, int experts, int k, RoutingKind kind = RoutingKind::Balanced) {
  Plan plan;
  plan.world = {.ranks = ranks, .ranks_per_node = ranks_per_node};
  plan.shape.layers = 4;
  plan.shape.dense_layers = 1;
  plan.shape.moe.routed_experts = experts;
  plan.shape.moe.top_k = k;
  plan.routing.kind = kind;
  return plan;
}

/// DeepSeek-V3's experts: 256 in 8 groups, 8 picked inside 4 of them.
Plan v3(int ranks, int redundant = 0, RoutingKind kind = RoutingKind::Balanced) {
  Plan plan = plan_of(ranks, 8, 256, 8, kind);
  plan.shape.moe.groups = 8;
  plan.shape.moe.group_top_k = 4;
  plan.routing.redundant = redundant;
  return plan;
}

std::vector<TokenRange> ranges(int ranks, std::int64_t begin, std::int64_t end) {
  return std::vector<TokenRange>(static_cast<std::size_t>(ranks), TokenRange{begin, end});
}

double sum_of(const RoutedLoad& load, double RankTraffic::*field) {
  double sum = 0;
  for (const RankTraffic& rank : load.ranks) sum += rank.*field;
  return sum;
}

}  // namespace

TEST_CASE("placement: without redundant experts, expert e lives on rank e / (experts / ranks)") {
  const ExpertPlacement p = place_experts({.ranks = 4, .ranks_per_node = 4}, 1, {{1, 1, 1, 1, 1, 1, 1, 9}, false}, 0);
  CHECK(p.slots == 2);
  CHECK(p.logical == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(p.rank_of(5) == 2);
  CHECK_THROWS_WITH_AS(place_experts({.ranks = 3, .ranks_per_node = 3}, 1, {{1, 1, 1, 1}, false}, 1),
                       "4 experts and 1 redundant ones do not divide evenly over 3 ranks", InputError);
}

TEST_CASE("placement: replicas go to the most loaded experts and ranks end as even as they can") {
  // Loads 8 4 2 2 with two replicas: 8 -> 4+4, then 4 and 4 and 4 tie; expert 0 has two copies already, so expert 1
  // gets the second one: 4 4 | 2 2 | 2 | 2. Three ranks of two: (4, 2) (4, 2) (2, 2).
  const ExpertPlacement p = place_experts({.ranks = 3, .ranks_per_node = 3}, 1, {{8, 4, 2, 2}, false}, 2);
  CHECK(p.slots == 2);
  CHECK(p.replicas[0].size() == 2);
  CHECK(p.replicas[1].size() == 2);
  CHECK(p.rank_of(p.replicas[0][0]) != p.rank_of(p.replicas[0][1]));
  CHECK(p.rank_of(p.replicas[1][0]) != p.rank_of(p.replicas[1][1]));
}

TEST_CASE("placement: equally loaded experts get their replicas in turn over the groups") {
  // 9 experts a rank with 32 replicas, as DeepSeek serves prefill on 32 ranks: four replicas a group.
  const World world{.ranks = 32, .ranks_per_node = 8};
  const ExpertPlacement p = place_experts(world, 8, {std::vector<std::uint32_t>(256, 1), true}, 32);
  CHECK(p.slots == 9);
  for (int e = 0; e < 256; ++e) CHECK(p.replicas[static_cast<std::size_t>(e)].size() == (e % 32 < 4 ? 2 : 1));
  for (int rank = 0; rank < 32; ++rank) {
    std::set<int> held;
    for (int slot = 0; slot < 9; ++slot) held.insert(p.logical[static_cast<std::size_t>(rank * 9 + slot)]);
    CHECK(held.size() == 9);
  }
}

TEST_CASE("routing: a token's experts belong to different logical experts") {
  for (const RoutingKind kind : {RoutingKind::Balanced, RoutingKind::Uniform, RoutingKind::Zipf}) {
    Plan plan = v3(72, 32, kind);
    plan.routing.alpha = 1.0;
    const Router router(plan);
    const ExpertPlacement& placement = router.placement(1);
    for (std::int64_t token = 0; token < 200; ++token) {
      const std::vector<int> experts = router.experts_of_token(5, 1, token);
      std::set<int> logical, groups;
      for (const int p : experts) {
        logical.insert(placement.logical[static_cast<std::size_t>(p)]);
        groups.insert(placement.logical[static_cast<std::size_t>(p)] / 32);
      }
      CHECK(logical.size() == 8);
      CHECK(groups.size() <= 4);
    }
  }
}

TEST_CASE("routing: a range gives what single tokens give, and half batches what the whole one gives") {
  for (const RoutingKind kind : {RoutingKind::Balanced, RoutingKind::Uniform}) {
    const Router router(v3(16, 0, kind));
    std::vector<int> whole(100 * 8), half(50 * 8);
    router.experts_of_tokens(3, 2, {0, 100}, whole.data());
    router.experts_of_tokens(3, 2, {50, 100}, half.data());
    CHECK(std::equal(half.begin(), half.end(), whole.begin() + 50 * 8));
    CHECK(router.experts_of_token(3, 2, 77) == std::vector<int>(whole.begin() + 77 * 8, whole.begin() + 78 * 8));
  }
}

TEST_CASE("routing: balanced gives every expert the same rows") {
  struct Case {
    Plan plan;
    std::int64_t tokens;
  };
  Plan lite = plan_of(2, 2, 64, 6);  // 6 does not divide 64: blocks of 32 tokens over three shuffles
  // 288 copies, 72 ranks: one token a rank is 576 rows, two an expert. 256 on 16 ranks: two tokens a rank make one.
  for (const Case& c : {Case{v3(72, 32), 1}, Case{v3(72, 32), 7}, Case{v3(16), 2}, Case{v3(16), 64},
                        Case{v3(32, 32), 9}, Case{lite, 32}, Case{plan_of(8, 8, 128, 8), 16}}) {
    const Router router(c.plan);
    const int ranks = c.plan.world.ranks;
    const RoutedLoad load = router.counted_load(1, ranges(ranks, 0, c.tokens), 8);
    const double expected =
        static_cast<double>(c.tokens * ranks * c.plan.shape.moe.top_k) / static_cast<double>(load.expert_rows.size());
    CHECK(expected == std::floor(expected));
    for (const double rows : load.expert_rows) CHECK(rows == expected);
  }
}

TEST_CASE("routing: balanced ranges that end inside a block stay within two rows an expert") {
  const Router router(v3(16));
  for (const std::int64_t end : {1, 3, 17, 63}) {
    const RoutedLoad load = router.counted_load(1, ranges(16, 0, end), 8);
    const auto [low, high] = std::minmax_element(load.expert_rows.begin(), load.expert_rows.end());
    CHECK(*high - *low <= 2);
  }
}

TEST_CASE("routing: the closed form of balanced agrees with counting within 3 %") {
  for (const Plan& plan : {v3(16), v3(32, 32), v3(64), v3(72, 32), plan_of(16, 8, 128, 8), plan_of(8, 4, 64, 6)}) {
    const Router router(plan);
    const int ranks = plan.world.ranks;
    const RoutedLoad closed = router.load(1, ranges(ranks, 0, 256), 8);
    const RoutedLoad counted = router.counted_load(1, ranges(ranks, 0, 256), 8);
    using Field = double RankTraffic::*;
    for (const Field field : {&RankTraffic::copies_self, &RankTraffic::copies_out_near, &RankTraffic::copies_out_far,
                              &RankTraffic::copies_in_near, &RankTraffic::copies_in_far, &RankTraffic::ranks_self,
                              &RankTraffic::ranks_out_near, &RankTraffic::ranks_out_far, &RankTraffic::ranks_in_near,
                              &RankTraffic::ranks_in_far, &RankTraffic::rail_out, &RankTraffic::rail_in,
                              &RankTraffic::forward_out, &RankTraffic::forward_in}) {
      const double expected = sum_of(closed, field), actual = sum_of(counted, field);
      CHECK(std::abs(actual - expected) <= 0.03 * expected);
    }
    CHECK(std::abs(closed.expert_rows[0] - counted.expert_rows[0]) <= 2);
    CHECK_FALSE(closed.sampled);
  }
}

TEST_CASE("routing: what leaves arrives, for every kind") {
  for (const RoutingKind kind : {RoutingKind::Balanced, RoutingKind::Uniform, RoutingKind::Zipf}) {
    Plan plan = v3(24, 8, kind);  // three nodes
    plan.routing.alpha = 0.8;
    const Router router(plan);
    const RoutedLoad load = router.load(1, ranges(24, 10, 74), 8);
    const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(a, 1.0); };
    CHECK(close(sum_of(load, &RankTraffic::copies_out_far), sum_of(load, &RankTraffic::copies_in_far)));
    CHECK(close(sum_of(load, &RankTraffic::copies_out_near), sum_of(load, &RankTraffic::copies_in_near)));
    CHECK(close(sum_of(load, &RankTraffic::ranks_out_far), sum_of(load, &RankTraffic::ranks_in_far)));
    CHECK(close(sum_of(load, &RankTraffic::rail_out), sum_of(load, &RankTraffic::rail_in)));
    CHECK(close(sum_of(load, &RankTraffic::forward_out), sum_of(load, &RankTraffic::forward_in)));
    const double rows = std::accumulate(load.expert_rows.begin(), load.expert_rows.end(), 0.0);
    CHECK(close(rows, 24 * 64 * 8));
    CHECK(close(rows, sum_of(load, &RankTraffic::copies_self) + sum_of(load, &RankTraffic::copies_out_near) +
                          sum_of(load, &RankTraffic::copies_out_far)));
  }
}

TEST_CASE("routing: pairs of ranks add up to every rank's totals") {
  for (const RoutingKind kind : {RoutingKind::Balanced, RoutingKind::Zipf}) {
    Plan plan = v3(24, 8, kind);
    const Router router(plan);
    std::vector<TokenRange> tokens = ranges(24, 0, 64);
    tokens[5] = {0, 10};
    const RoutedLoad load = router.load(1, tokens, 8, true);
    REQUIRE(load.pairs.size() == 24 * 24);
    CHECK(router.load(1, tokens, 8).pairs.empty());
    for (int r = 0; r < 24; ++r) {
      RankTraffic sum;
      for (int other = 0; other < 24; ++other) {
        const PairTraffic &out = load.pairs[static_cast<std::size_t>(r * 24 + other)],
                          &in = load.pairs[static_cast<std::size_t>(other * 24 + r)];
        const bool near = other / 8 == r / 8;
        if (other == r) {
          sum.copies_self += out.copies;
          sum.ranks_self += out.ranks;
          continue;
        }
        (near ? sum.copies_out_near : sum.copies_out_far) += out.copies;
        (near ? sum.copies_in_near : sum.copies_in_far) += in.copies;
        (near ? sum.ranks_out_near : sum.ranks_out_far) += out.ranks;
        (near ? sum.ranks_in_near : sum.ranks_in_far) += in.ranks;
        sum.rail_out += out.rail;
        sum.rail_in += in.rail;
        sum.forward_out += out.forward;
        sum.forward_in += in.forward;
      }
      const RankTraffic& whole = load.ranks[static_cast<std::size_t>(r)];
      CAPTURE(r);
      for (double RankTraffic::*field :
           {&RankTraffic::copies_self, &RankTraffic::copies_out_near, &RankTraffic::copies_out_far,
            &RankTraffic::copies_in_near, &RankTraffic::copies_in_far, &RankTraffic::ranks_self,
            &RankTraffic::ranks_out_near, &RankTraffic::ranks_out_far, &RankTraffic::ranks_in_near,
            &RankTraffic::ranks_in_far, &RankTraffic::rail_out, &RankTraffic::rail_in, &RankTraffic::forward_out,
            &RankTraffic::forward_in})
        CHECK(sum.*field == doctest::Approx(whole.*field));
    }
  }
}

TEST_CASE("routing: distinct ranks of uniform top-8 of 256 are the published ones") {
  // R(1 - C(256 - 256/R, 8) / C(256, 8)): 1.993 for 2 ranks, 5.30 for 8, 6.52 for 16, 7.27 for 32.
  const std::pair<int, double> published[] = {{2, 1.993}, {4, 3.61}, {8, 5.30}, {16, 6.52}, {32, 7.27}};
  for (const auto& [ranks, distinct] : published) {
    const Router balanced(plan_of(ranks, ranks, 256, 8));
    const RoutedLoad closed = balanced.load(1, ranges(ranks, 0, 32), ranks);
    const double mean =
        (sum_of(closed, &RankTraffic::ranks_self) + sum_of(closed, &RankTraffic::ranks_out_near)) / (32.0 * ranks);
    CHECK(std::abs(mean - distinct) < 0.006);
    const Router uniform(plan_of(ranks, ranks, 256, 8, RoutingKind::Uniform));
    const RoutedLoad counted = uniform.load(1, ranges(ranks, 0, 512), ranks);
    const double drawn =
        (sum_of(counted, &RankTraffic::ranks_self) + sum_of(counted, &RankTraffic::ranks_out_near)) / (512.0 * ranks);
    CHECK(std::abs(drawn - distinct) < 0.05);
  }
}

TEST_CASE("routing: one node per group limits the far nodes a token needs") {
  // 8 nodes of 8, a group on each, 4 groups a token: 4 of 8 nodes, so 3.5 far ones on average.
  const Router router(v3(64));
  const RoutedLoad load = router.load(1, ranges(64, 0, 100), 8);
  CHECK(load.ranks[0].rail_out == doctest::Approx(350));
  CHECK(load.ranks[9].rail_in == doctest::Approx(350));
}

TEST_CASE("routing: a zipf draw follows its weights and replicas share an expert's load") {
  Plan plan = plan_of(8, 8, 64, 2, RoutingKind::Zipf);
  plan.routing.alpha = 1.0;
  plan.routing.redundant = 8;
  const Router router(plan);
  const RoutedLoad load = router.load(1, ranges(8, 0, 2000), 8);
  const ExpertPlacement& placement = router.placement(1);
  std::vector<double> logical(64, 0);
  for (std::size_t p = 0; p < load.expert_rows.size(); ++p)
    logical[static_cast<std::size_t>(placement.logical[p])] += load.expert_rows[p];
  std::sort(logical.rbegin(), logical.rend());
  // First draws follow 1 / (rank * H64), H64 = 4.744; the second draw flattens the head a little.
  CHECK(logical[0] / 16000 > 0.21);
  CHECK(logical[1] / logical[0] == doctest::Approx(0.55).epsilon(0.05));
  CHECK(logical[3] / logical[1] == doctest::Approx(0.5).epsilon(0.08));
  for (const std::vector<int>& copies : placement.replicas)
    for (const int p : copies)
      CHECK(std::abs(load.expert_rows[static_cast<std::size_t>(p)] -
                     load.expert_rows[static_cast<std::size_t>(copies[0])]) <
            0.1 * load.expert_rows[static_cast<std::size_t>(copies[0])] + 10);
}

TEST_CASE("routing: a table's shares are kept, a row a layer when there are as many") {
  Plan plan = plan_of(2, 2, 4, 1, RoutingKind::Table);
  plan.routing.table = {{0.5, 0.5, 0, 0}, {0, 0, 0.5, 0.5}, {1, 1, 1, 1}};  // three MoE layers
  const Router router(plan);
  CHECK(router.routing_classes() == 3);
  const RoutedLoad first = router.load(1, ranges(2, 0, 500), 2);
  CHECK(first.expert_rows[2] + first.expert_rows[3] == 0);
  CHECK(std::abs(first.expert_rows[0] - 500) < 60);
  const RoutedLoad second = router.load(2, ranges(2, 0, 500), 2);
  CHECK(second.expert_rows[0] + second.expert_rows[1] == 0);
  plan.routing.table = {{1, 1, 1}};
  CHECK_THROWS_WITH_AS(Router{plan}, "a routing table row has 3 shares for 4 experts", InputError);
  plan.routing.table = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  CHECK_THROWS_WITH_AS(Router{plan}, "a routing table has one row, a row a layer or a row a MoE layer, not 2",
                       InputError);
}

TEST_CASE("routing: a fresh draw for every layer on request, the same draw otherwise") {
  Plan plan = v3(16, 0, RoutingKind::Uniform);
  CHECK(Router(plan).routing_classes() == 1);
  plan.routing.per_layer = true;
  const Router router(plan);
  CHECK(router.routing_classes() == 3);
  CHECK(router.experts_of_token(0, 1, 0) != router.experts_of_token(0, 2, 0));
  plan.routing.seed = 1;
  CHECK(Router(plan).experts_of_token(0, 1, 0) != router.experts_of_token(0, 1, 0));
}

TEST_CASE("routing: the GPUs of a tensor-parallel group cut their tokens and route them alike") {
  CHECK(tensor_share({10, 21}, 0, 2) == TokenRange{10, 15});
  CHECK(tensor_share({10, 21}, 5, 2) == TokenRange{15, 21});
  Plan plan = v3(16);
  plan.tensor_parallel = 2;
  const Router router(plan);
  CHECK(router.experts_of_token(4, 1, 3) == router.experts_of_token(5, 1, 3));
}

TEST_CASE("routing: skewed draws that run out of tries still give distinct experts") {
  Plan plan = plan_of(1, 1, 8, 4, RoutingKind::Table);
  plan.routing.table = {{1, 0, 0, 0, 0, 0, 0, 0}};
  CHECK(Router(plan).experts_of_token(0, 1, 0) == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("routing: long ranges of drawn kinds are counted on a sample and scaled") {
  const Router router(plan_of(64, 8, 64, 2, RoutingKind::Uniform));
  CHECK(router.counted_tokens() == 4096);
  const RoutedLoad load = router.load(1, ranges(64, 0, 3 * 4096), 8);
  CHECK(load.sampled);
  const double rows = std::accumulate(load.expert_rows.begin(), load.expert_rows.end(), 0.0);
  CHECK(rows == doctest::Approx(64.0 * 2 * 3 * 4096));
  CHECK_FALSE(router.load(1, ranges(64, 0, 4096), 8).sampled);
}

TEST_CASE("routing: loads that batches share are those counted one by one, bit for bit") {
  struct Case {
    const char* what;
    Plan plan;
  };
  Plan per_layer = v3(16, 0, RoutingKind::Uniform);
  per_layer.routing.per_layer = true;
  Plan replicas = v3(24, 8, RoutingKind::Zipf);
  replicas.routing.alpha = 0.8;
  Plan tensor = v3(16, 0, RoutingKind::Zipf);
  tensor.tensor_parallel = 4;
  Plan wide = plan_of(130, 8, 130, 3, RoutingKind::Uniform);  // more ranks than a word has bits, a short last domain
  for (const Case& c : {Case{"per layer", per_layer}, Case{"replicas", replicas}, Case{"tensor parallel", tensor},
                        Case{"wide", wide}, Case{"balanced", v3(16)}}) {
    CAPTURE(c.what);
    const Router router(c.plan);
    const int ranks = c.plan.world.ranks;
    RoutedLoads loads;
    const auto check = [&](const std::vector<TokenRange>& tokens) {
      for (const int layer : {1, 3}) {
        for (const int domain : {8, ranks}) {
          const RoutedLoad shared = loads.load(router, layer, tokens, domain);
          const RoutedLoad alone = router.load(layer, tokens, domain);
          CHECK(shared.expert_rows == alone.expert_rows);
          CHECK(shared.ranks == alone.ranks);
          CHECK(shared.sampled == alone.sampled);
          if (ranks > 64) continue;
          const RoutedLoad paired = loads.load(router, layer, tokens, domain, true);
          CHECK(paired.ranks == router.load(layer, tokens, domain, true).ranks);
          CHECK(paired.pairs.size() == static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks));
          CHECK(loads.load(router, layer, tokens, domain).pairs.empty());
        }
      }
    };
    // Inside a block, over several, from within one to within another, coarse ones, none at all, and long ones.
    const std::int64_t most = router.counted_tokens();
    for (const TokenRange range :
         {TokenRange{0, 20}, TokenRange{40, 50}, TokenRange{0, 256}, TokenRange{100, 333}, TokenRange{64, 96},
          TokenRange{500, 2600}, TokenRange{5, 5}, TokenRange{0, most + 700}, TokenRange{most, 2 * most + 1}}) {
      std::vector<TokenRange> tokens;
      for (int rank = 0; rank < ranks; ++rank)
        tokens.push_back(tensor_share(range, rank, std::max(c.plan.tensor_parallel, 1)));
      CAPTURE(range.begin);
      CAPTURE(range.end);
      check(tokens);
      loads.next_batch();
    }
    // Ranks with batches of different sizes, one of them idle.
    std::vector<TokenRange> tokens;
    for (int rank = 0; rank < ranks; ++rank) tokens.push_back({rank % 5, 300 + 17 * (rank % 7)});
    check(tokens);
    tokens[3] = {};
    check(tokens);
    tokens[4] = {0, most + 10};
    check(tokens);
    loads.clear();
    check(ranges(ranks, 0, 100));
  }
}

TEST_CASE("routing: counts of single tokens add up") {
  // A token of rank 0 with experts on ranks 0, 1, 9 and 9 again: domains of 8, so rank 9 is entered through rank 8.
  Plan plan = plan_of(16, 8, 32, 4, RoutingKind::Table);
  plan.routing.table = {std::vector<double>(32, 0)};
  for (const std::size_t expert : std::vector<std::size_t>{0, 2, 18, 19}) plan.routing.table[0][expert] = 1;
  std::vector<TokenRange> tokens(16, TokenRange{});
  tokens[0] = {0, 3};
  const Router router(plan);
  const RoutedLoad load = router.load(1, tokens, 8);
  for (std::size_t expert = 0; expert < 32; ++expert)
    CHECK(load.expert_rows[expert] == (expert == 0 || expert == 2 || expert == 18 || expert == 19 ? 3 : 0));
  const RankTraffic &from = load.ranks[0], &near = load.ranks[1], &gate = load.ranks[8], &far = load.ranks[9];
  CHECK(from.copies_self == 3);
  CHECK(from.copies_out_near == 3);
  CHECK(from.copies_out_far == 6);
  CHECK(from.ranks_out_far == 3);
  CHECK(from.rail_out == 3);
  CHECK(near.copies_in_near == 3);
  CHECK(gate.rail_in == 3);
  CHECK(gate.forward_out == 3);
  CHECK(gate.copies_in_far == 0);
  CHECK(far.copies_in_far == 6);
  CHECK(far.ranks_in_far == 3);
  CHECK(far.forward_in == 3);
}

TEST_CASE("routing: an echo brings experts the rows a rank's own tokens pick, and as many copies as it sends") {
  Plan plan = v3(16, 0, RoutingKind::Zipf);
  plan.routing.alpha = 0.6;
  plan.routing.seed = 3;
  const Router router(plan);
  // Ranks with batches of their own.
  std::vector<TokenRange> tokens;
  for (int rank = 0; rank < 16; ++rank) tokens.push_back({0, 40 + 3 * rank});
  std::vector<double> rows(16, 0.0);
  for (std::int64_t token = 0; token < tokens[2].end; ++token)
    for (const int expert : router.experts_of_token(2, 1, token)) rows[static_cast<std::size_t>(expert % 16)] += 1;
  RoutedLoads loads, plain;
  loads.echo(2);
  const RoutedLoad echoed = loads.load(router, 1, tokens, 8), sent = plain.load(router, 1, tokens, 8);
  for (std::size_t slot = 0; slot < echoed.expert_rows.size(); ++slot)
    CHECK(echoed.expert_rows[slot] == rows[slot % 16]);
  CHECK(std::accumulate(rows.begin(), rows.end(), 0.0) == 46 * 8);
  // Every rank is as this one.
  for (const RankTraffic& now : echoed.ranks) {
    const RankTraffic& own = sent.ranks[2];
    CHECK(now.tokens == own.tokens);
    CHECK(now.copies_out_near == own.copies_out_near);
    CHECK(now.copies_in_near == own.copies_out_near);
    CHECK(now.copies_in_far == own.copies_out_far);
    CHECK(now.ranks_in_near == own.ranks_out_near);
    CHECK(now.ranks_in_far == own.ranks_out_far);
    CHECK(now.rail_in == own.rail_out);
  }
  // Balanced routing stays even, over the rank's own tokens.
  const Router even(v3(16));
  RoutedLoads balanced;
  balanced.echo(2);
  const RoutedLoad load = balanced.load(even, 1, tokens, 8);
  for (std::size_t slot = 32; slot < 48; ++slot) CHECK(load.expert_rows[slot] == doctest::Approx(46 * 8 / 16.0));
}
