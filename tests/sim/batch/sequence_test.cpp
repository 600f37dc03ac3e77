#include "sim/batch/sequence.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/sim/batch/steps.h"

using namespace dbo;

namespace {

/// Split steps cost 60 + 2 a token of the largest rank, others 6 a token; without a graph, 5 more.
Ns price(const StepBatch& step, const DecideSettings& settings) {
  const Decision decision = decide(step, settings);
  std::int64_t most = 0;
  for (const RankBatch& rank : step.ranks) most = std::max(most, rank.tokens());
  return Ns{(decision.split ? 60 + 2 * most : 6 * most) + (decision.graph.mode == GraphMode::Full ? 0 : 5)};
}

PriceStep pricer(const std::vector<StepBatch>& steps, int* calls = nullptr) {
  return [&steps, calls](std::size_t index, const DecideSettings& settings) {
    if (calls != nullptr) ++*calls;
    return price(steps[index], settings);
  };
}

StepBatch even(int tokens) {
  return step_of({decodes(tokens), decodes(tokens)});
}

}  // namespace

TEST_CASE("sequence: steps are counted by reason, with graph hits and tokens") {
  const std::vector<StepBatch> steps = {even(64), even(8), step_of({decodes(64), RankBatch{}}), even(64)};
  const SequenceReport report = report_sequence(steps, with_graphs(defaults(Coordination::V1), {8, 64}));
  CHECK(report.split() == 2);
  const auto counts = report.by_reason();
  CHECK(counts[static_cast<std::size_t>(Reason::BelowThreshold)] == 1);
  CHECK(counts[static_cast<std::size_t>(Reason::IdleRank)] == 1);
  // The idle step would want the un-split graph of 64, which is captured as ubatches.
  CHECK(report.graph_hits() == 3);
  CHECK(report.tokens() == 128 + 16 + 64 + 128);
  const Json total = sequence_total_json(report, 2, std::nullopt);
  CHECK(compact_json(total) ==
        R"({"steps":4,"split":2,"refused":{"idle-rank":1,"below-threshold":1},"graph_hits":3,"tokens":336})");
}

TEST_CASE("sequence: throughput with and without DBO is tokens over the sum of times") {
  const std::vector<StepBatch> steps = {even(64), even(8)};
  const DecideSettings settings = defaults(Coordination::V1);
  SequenceReport report = report_sequence(steps, settings);
  price_sequence(report, settings, pricer(steps));
  // Split: 60 + 128 + 5; not: 48 + 5. Without DBO: 384 + 5 and 48 + 5.
  CHECK(report.steps[0].time == Ns{193});
  CHECK(report.steps[0].baseline == Ns{389});
  CHECK(report.time() == Ns{246});
  CHECK(report.baseline() == Ns{442});
  const Json total = sequence_total_json(report, 4, std::nullopt);
  CHECK(total.find("tokens_per_s")->as_number() == doctest::Approx(144e9 / 246));
  CHECK(total.find("tokens_per_s_per_gpu")->as_number() == doctest::Approx(144e9 / 246 / 4));
  CHECK(total.find("baseline_tokens_per_s")->as_number() == doctest::Approx(144e9 / 442));
  Json step = Json::object();
  add_step_json(step, report.steps[1], 1, true);
  CHECK(compact_json(step) == R"({"step":1,"tokens":16,"step_ns":53,"baseline_step_ns":53})");
}

TEST_CASE("sequence: the best thresholds split what gains and nothing else") {
  // Splitting gains when 4 tokens > 60: from 16 tokens a rank on.
  std::vector<StepBatch> steps;
  for (int tokens = 4; tokens <= 40; tokens += 4) steps.push_back(even(tokens));
  const DecideSettings settings = defaults(Coordination::V1);
  int calls = 0;
  const auto best = best_thresholds(steps, settings, pricer(steps, &calls));
  REQUIRE(best.has_value());
  CHECK(best->decode == 13);  // between 12, which loses, and 16, which gains; the lowest of equals
  CHECK(best->prefill == 512);
  CHECK(best->split == 7);
  Ns total{};
  for (const StepBatch& step : steps) {
    DecideSettings chosen = settings;
    chosen.decode_token_threshold = best->decode;
    total += price(step, chosen);
  }
  CHECK(best->time == total);
  CHECK(calls <= 2 * static_cast<int>(steps.size()));
}

TEST_CASE("sequence: both thresholds are searched, and the ones set stay on a tie") {
  const std::vector<StepBatch> steps = {even(64), step_of({rank_of({100}), rank_of({120})}),
                                        step_of({rank_of({10}), rank_of({11})})};
  const DecideSettings settings = defaults(Coordination::Mrv2);
  const auto best = best_thresholds(steps, settings, pricer(steps));
  CHECK(best->decode == 32);   // 64 tokens are split already
  CHECK(best->prefill == 11);  // 100 and 120 gain; 10 and 11 would lose, and the smallest rank counts
  const std::vector<StepBatch> none = {even(64)};
  CHECK(best_thresholds(none, settings, pricer(none))->decode == 32);
  CHECK_FALSE(best_thresholds(steps, defaults(Coordination::Sglang), pricer(steps)).has_value());
}

TEST_CASE("sequence: a threshold above a graph's size brings its un-split graph back") {
  // 31 tokens pad to the graph of 32. Split it gains nothing here: 60 + 62 against 186, so make splitting costly.
  const std::vector<StepBatch> steps = {even(31)};
  DecideSettings settings = with_graphs(defaults(Coordination::V1), {16, 32});
  const PriceStep costly = [&](std::size_t index, const DecideSettings& s) {
    const Decision decision = decide(steps[index], s);
    return Ns{(decision.split ? 1000 : 100) + (decision.graph.mode == GraphMode::Full ? 0 : 50)};
  };
  const auto best = best_thresholds(steps, settings, costly);
  CHECK(best->decode == 33);
  CHECK(best->time == Ns{100});
}

TEST_CASE("sequence: one line a step, to be found by grep") {
  const StepBatch step = step_of({decodes(64), decodes(31)});
  CHECK(step_log_line(7, step, decide(step, defaults(Coordination::V1))) ==
        "dbo step=7 split=0 reason=below-threshold ubatches=1 votes=1/2 tokens=95 min=31 max=64 padded=none graph=none "
        "comm_sms=0 compute_sms=132 text=\"rank 1 has 31 tokens of uniform decode, below decode_token_threshold 32\"");
  const StepBatch good = even(64);
  CHECK(step_log_line(0, good, decide(good, with_graphs(defaults(Coordination::V1), {64})))
            .starts_with("dbo step=0 split=1 reason=split ubatches=2 votes=2/2 tokens=128 min=64 max=64 padded=64 "
                         "graph=full:64 "));
}
