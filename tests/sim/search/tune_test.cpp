#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/model/presets.h"
#include "sim/search/serving_flags.h"
#include "sim/search/tune_report.h"

using namespace dbo;

namespace {

/// DeepSeek-V2-Lite on 2 x 8 H100 over DeepEP: small, and split steps of large batches pay.
Config config_of(const std::string& workload, const std::string& overlap = R"("schedule": "vllm-ll")") {
  return config_from_json(JsonRef(json_document(
      R"({"model": "deepseek-v2-lite", "cluster": {"gpu": "h100-sxm", "gpus_per_node": 8, "nodes": 2},
          "parallel": {"data": 16, "expert": 16}, "workload": {)" +
          workload + R"(}, "overlap": {)" + overlap + R"(}, "execution": {"mode": "graph"}})",
      "test.json")));
}

const char* const kDecode = R"("phase": "decode", "tokens_per_rank": 256, "context_tokens": 1024)";

std::vector<TuneResult> evaluate(const Config& config, const TuneGrid& grid) {
  TuneEvaluator evaluator(config);
  std::vector<TuneResult> results;
  for (const TunePoint& point : grid.points) results.push_back(evaluator.evaluate(point));
  return results;
}

/// The setting of a crossover at a batch, and the same server with splitting off.
std::pair<TunePoint, TunePoint> on_and_off(const Crossover& c, std::int64_t tokens) {
  TunePoint on = c.setting;
  on.phase = c.phase;
  on.tokens = tokens;
  TunePoint off = on;
  off.schedule = "sequential";
  off.ubatches = 1;
  off.comm_sms = 0;
  off.sm_control = SmControl::Limit;
  return {on, off};
}

TuneLists small_lists() {
  TuneLists lists;
  lists.tokens = {32, 256, 1024};
  lists.comm_sms = {8, 20};
  return lists;
}

}  // namespace

TEST_CASE("tune_grid: the un-split step with each transport is a point of every batch") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  for (const std::int64_t tokens : {32, 256, 1024})
    for (const Transport transport : {Transport::Ht, Transport::Ll})
      CHECK(std::count_if(grid.points.begin(), grid.points.end(), [&](const TunePoint& p) {
              return !p.split() && p.tokens == tokens && p.transport == transport;
            }) == 1);
  // ht: two controls, two counts, three schedules, and un-split; ll sets no SMs aside: three schedules, and un-split.
  CHECK(grid.points.size() == 3 * (2 * 2 * 3 + 1 + 3 + 1));
  std::size_t covered = 0;
  for (const TuneGroup& group : grid.groups) {
    CHECK(group.first == covered);
    covered = group.end;
  }
  CHECK(covered == grid.points.size());
}

TEST_CASE("tune_grid: what cannot be is left out and says why") {
  TuneLists lists = small_lists();
  lists.ubatches = {2, 3};
  lists.comm_sms = {7, 20, 24};
  const TuneGrid grid = make_tune_grid(config_of(kDecode), lists);
  std::set<std::string> what;
  for (const LeftOut& l : grid.left_out) what.insert(l.what);
  CHECK(what.count("3 ubatches with ht") == 1);
  CHECK(what.count("3 ubatches with ll") == 1);
  CHECK(what.count("24 comm SMs with ht") == 1);  // created with 20
  CHECK(what.count("7 comm SMs with ht") == 1);   // odd
  for (const TunePoint& p : grid.points) CHECK((p.ubatches <= 2 && (p.comm_sms == 0 || p.comm_sms == 20)));
}

TEST_CASE("tune_grid: lists survive JSON, and lists a config cannot follow are refused") {
  const TuneGrid grid = make_tune_grid(config_of(kDecode), small_lists());
  const Json json = tune_lists_to_json(grid.lists);
  const TuneGrid again = make_tune_grid(config_of(kDecode), tune_lists_from_json(JsonRef(wrap_json(json, "t"))));
  CHECK(again.points == grid.points);
  const Config listed = config_of(R"("ranks": [{"requests": [{"query": 1, "seq": 64, "count": 64}], "repeat": 16}])");
  CHECK_THROWS_AS(make_tune_grid(listed, small_lists()), InputError);
  CHECK(!make_tune_grid(listed, {}).points.empty());
  TuneLists gpus;
  gpus.expert_parallel = {12};
  CHECK_THROWS_WITH_AS(make_tune_grid(config_of(kDecode), gpus),
                       "--ep 12: must be whole nodes of 8 GPUs and a multiple of 1 tensor-parallel ranks", InputError);
}

TEST_CASE("tune_point: a point is what predict says of its config, whatever was evaluated before it") {
  Config config;
  SUBCASE("balanced routing") {
    config = config_of(kDecode);
  }
  SUBCASE("drawn routing that differs by layer") {
    config =
        config_of(kDecode, R"("schedule": "vllm-ll"}, "routing": {"kind": "zipf", "alpha": 0.6, "per_layer": true)");
  }
  SUBCASE("a clock that the schedule has a part in") {
    config = config_of(kDecode, R"("schedule": "vllm-ll", "transport": "lsa-ll"}, "costs": {"source": "profile")");
    config.cluster.gpu = gpu_preset("h200-sxm");
  }
  TuneLists lists = small_lists();
  lists.tokens = {256};
  lists.expert_parallel = {8, 16};
  const TuneGrid grid = make_tune_grid(config, lists);
  TuneEvaluator evaluator(config);
  for (const TunePoint& point : grid.points) {
    CAPTURE(point.schedule);
    CAPTURE(point.gpus);
    CAPTURE(point.comm_sms);
    const TuneResult result = evaluator.evaluate(point);
    const Config own = evaluator.config_of(point);
    StepOptions options;
    options.details = false;
    const Prediction p = predict(own, own.workload.steps.front(), options);
    REQUIRE(p.decision.split == point.split());
    CHECK(result.step_ns == p.result.step_ns);
    CHECK(result.memory_bytes == p.memory->total_bytes());
    CHECK((result.status == TuneStatus::Ok) == p.memory->fits());
  }
}

TEST_CASE("tune_point: the config that is written for a point gives its step when it is read back") {
  TuneLists lists = small_lists();
  lists.tokens = {256};
  lists.transports = {Transport::Ll, Transport::Ht, Transport::LsaLl, Transport::LsaHt, Transport::CopyEngine};
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, lists);
  TuneEvaluator evaluator(config);
  for (const TunePoint& point : grid.points) {
    CAPTURE(point.schedule);
    CAPTURE(transport_info(point.transport).name);
    CAPTURE(point.comm_sms);
    const Json written = config_to_json(evaluator.config_of(point));
    const Config read = config_from_json(JsonRef(wrap_json(written, "best.json")));
    StepOptions options;
    options.details = false;
    CHECK(predict(read, read.workload.steps.front(), options).result.step_ns == evaluator.evaluate(point).step_ns);
  }
}

TEST_CASE("tune_point: the order of evaluation does not matter") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  const std::vector<TuneResult> forward = evaluate(config, grid);
  TuneEvaluator evaluator(config);
  for (std::size_t i = grid.points.size(); i-- > 0;) CHECK(evaluator.evaluate(grid.points[i]) == forward[i]);
}

TEST_CASE("tune_point: costs that are off move the step the same way") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  TuneEvaluator evaluator(config);
  const std::int64_t step = evaluator.evaluate(grid.points[1]).step_ns;
  CHECK(evaluator.evaluate(grid.points[1], {1.1, 1.1}).step_ns > step);
  CHECK(evaluator.evaluate(grid.points[1], {1.0, 0.9}).step_ns <= step);
  CHECK(evaluator.evaluate(grid.points[1], {0.9, 1.0}).step_ns < step);
  CHECK(evaluator.evaluate(grid.points[1]).step_ns == step);
}

TEST_CASE("tune_report: best, Pareto front and gains are those of the points") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, {});
  const std::vector<TuneResult> results = evaluate(config, grid);
  const TuneReport report = make_tune_report(config, grid, results, {});
  REQUIRE(report.best);
  for (std::size_t i = 0; i < grid.points.size(); ++i) {
    if (results[i].status != TuneStatus::Ok) continue;
    // Tokens of 16 ranks over 16 GPUs.
    const double throughput =
        static_cast<double>(grid.points[i].tokens) * 1e9 / static_cast<double>(results[i].step_ns);
    CHECK(report.throughput[i] == doctest::Approx(throughput));
    CHECK(report.throughput[i] <= report.throughput[*report.best]);
    bool dominated = false;
    for (const std::size_t p : report.pareto)
      dominated =
          dominated || (results[p].step_ns <= results[i].step_ns && report.throughput[p] >= report.throughput[i]);
    CHECK(dominated);
  }
  for (std::size_t p = 1; p < report.pareto.size(); ++p) {
    CHECK(results[report.pareto[p]].step_ns > results[report.pareto[p - 1]].step_ns);
    CHECK(report.throughput[report.pareto[p]] > report.throughput[report.pareto[p - 1]]);
  }
  for (const Gain& gain : report.gains) {
    std::int64_t split = INT64_MAX, unsplit = INT64_MAX;
    for (std::size_t i = 0; i < grid.points.size(); ++i) {
      if (grid.points[i].tokens != gain.tokens || results[i].status != TuneStatus::Ok) continue;
      std::int64_t& least = grid.points[i].split() ? split : unsplit;
      least = std::min(least, results[i].step_ns);
    }
    CHECK(gain.split_ns == split);
    CHECK(gain.unsplit_ns == unsplit);
  }
}

TEST_CASE("tune_report: a server is told only what it can be told") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  // The best settings of the sweep, were they those of no server: shared SMs other than DeepEP's own, and green
  // contexts.
  std::vector<TuneResult> results = evaluate(config, grid);
  for (std::size_t i = 0; i < grid.points.size(); ++i)
    if (grid.points[i].split() && grid.points[i].sm_control == SmControl::None) results[i].step_ns = 1000;
  for (const Advice& advice : make_tune_report(config, grid, results, {}).advice) {
    REQUIRE(advice.setting);
    CHECK((advice.setting->sm_control == SmControl::None) == (advice.server == "vLLM"));
    if (advice.server == "vLLM") CHECK(advice.setting->comm_sms == 20);
  }
  // Of our own transports no server has one.
  TuneLists ours = small_lists();
  ours.transports = {Transport::LsaLl, Transport::LsaHt};
  const TuneGrid other = make_tune_grid(config, ours);
  for (const Advice& advice : make_tune_report(config, other, evaluate(config, other), {}).advice) {
    CHECK(!advice.on);
    CHECK(advice.reason.find("none of the transports tried") != std::string::npos);
  }
}

TEST_CASE("tune_report: SGLang's other phase runs with the transport it takes for that phase") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  const TuneReport report = make_tune_report(config, grid, evaluate(config, grid), {});
  const Advice& sglang = report.advice[1];
  REQUIRE(sglang.setting->transport == Transport::Ll);
  TuneEvaluator evaluator(config);
  TunePoint prefill = *sglang.setting;
  prefill.phase = Phase::Prefill;
  prefill.tokens = 4096;
  prefill.transport = Transport::Ht;
  prefill.comm_sms = 20;
  prefill.schedule = "sglang-prefill";
  const Crossover& c = sglang.crossovers[1];
  const auto at = std::find_if(c.gains.begin(), c.gains.end(), [](const Gain& g) { return g.tokens == 4096; });
  REQUIRE(at != c.gains.end());
  CHECK(at->split_ns == evaluator.evaluate(prefill).step_ns);
}

TEST_CASE("tune_report: a limit on the step leaves the best within it") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, {});
  const std::vector<TuneResult> results = evaluate(config, grid);
  const TuneReport all = make_tune_report(config, grid, results, {});
  TuneGoal goal;
  goal.max_step_ns = results[*all.best].step_ns - 1;
  const TuneReport limited = make_tune_report(config, grid, results, goal);
  REQUIRE(limited.best);
  CHECK(results[*limited.best].step_ns <= goal.max_step_ns);
  CHECK(limited.throughput[*limited.best] < all.throughput[*all.best]);
  goal.max_step_ns = 1;
  CHECK(!make_tune_report(config, grid, results, goal).best);
}

TEST_CASE("tune_report: the crossover is the least batch from which splitting pays, to the token") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  const TuneReport report = make_tune_report(config, grid, evaluate(config, grid), {});
  int bisected = 0;
  for (const Advice& advice : report.advice) {
    for (const Crossover& c : advice.crossovers) {
      if (!c.tokens || c.always) continue;
      ++bisected;
      TuneEvaluator evaluator(config);
      const auto pays = [&](std::int64_t tokens) {
        const auto [on, off] = on_and_off(c, tokens);
        return evaluator.evaluate(on).step_ns < evaluator.evaluate(off).step_ns;
      };
      CHECK(pays(*c.tokens));
      CHECK(!pays(*c.tokens - 1));
    }
  }
  CHECK(bisected > 0);
}

TEST_CASE("tune_report: a batch between the usual ones that memory just holds is looked at too") {
  const Config config = config_from_json(JsonRef(json_document(R"({
    "model": "deepseek-v3", "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 4},
    "parallel": {"data": 32, "expert": 32},
    "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 8000},
    "overlap": {"schedule": "vllm-ll"}, "execution": {"mode": "graph"}})",
                                                               "test.json")));
  const TuneGrid grid = make_tune_grid(config, small_lists());
  const TuneReport report = make_tune_report(config, grid, evaluate(config, grid), {});
  TuneEvaluator evaluator(config);
  int looked = 0;
  for (const Advice& advice : report.advice) {
    for (const Crossover& c : advice.crossovers) {
      if (c.phase != Phase::Decode) continue;
      ++looked;
      const auto fits = [&](std::int64_t tokens) {
        const auto [on, off] = on_and_off(c, tokens);
        return evaluator.evaluate(on).status == TuneStatus::Ok && evaluator.evaluate(off).status == TuneStatus::Ok;
      };
      REQUIRE(!c.gains.empty());
      const std::int64_t most = c.gains.back().tokens;
      CHECK(most > 128);
      CHECK(most < 192);  // the next usual batch
      CHECK(fits(most));
      CHECK(!fits(most + 1));
      // From there on alone it pays.
      REQUIRE(c.tokens);
      CHECK(*c.tokens > 128);
    }
  }
  CHECK(looked > 0);
}

TEST_CASE("tune_report: how sure is a range around the gain, and stated costs are taken as they are") {
  const Config config = config_of(kDecode);
  const TuneGrid grid = make_tune_grid(config, small_lists());
  for (const Advice& advice : make_tune_report(config, grid, evaluate(config, grid), {}).advice) {
    REQUIRE(advice.setting);
    CHECK(advice.sureness.spread == 0.13);
    CHECK(advice.sureness.least < advice.sureness.gain);
    CHECK(advice.sureness.gain < advice.sureness.most);
    CHECK(advice.on == (advice.sureness.gain > 1));
    // With skewed experts: what the same config with that routing comes to.
    REQUIRE(advice.sureness.skewed);
    Config skewed = config;
    skewed.routing.kind = RoutingKind::Zipf;
    skewed.routing.alpha = kSkewAlpha;
    skewed.routing.seed = kSkewSeed;
    TuneEvaluator evaluator(skewed);
    const auto unsplit = static_cast<double>(evaluator.evaluate(*advice.unsplit).step_ns);
    CHECK(*advice.sureness.skewed == unsplit / static_cast<double>(evaluator.evaluate(*advice.setting).step_ns));
    CHECK(*advice.sureness.skewed != advice.sureness.gain);
    CHECK(advice_text(advice).find("with experts as skewed as SGLang's (zipf 0.69)") != std::string::npos);
  }
  // An advice is sure only where skew does not turn it.
  Sureness s{.spread = 0.13, .gain = 1.2, .least = 1.1, .most = 1.3, .skewed = {}};
  CHECK(s.sure());
  s.skewed = 0.9;
  CHECK(!s.sure());
  // A config that says how experts are loaded is taken at its word.
  const Config zipf = config_of(kDecode, R"("schedule": "vllm-ll"}, "routing": {"kind": "zipf", "alpha": 0.6)");
  for (const Advice& advice : make_tune_report(zipf, grid, evaluate(zipf, grid), {}).advice)
    CHECK(!advice.sureness.skewed);
  const Config fixed = config_from_json(JsonRef(json_document(
      R"({"model": {"layers": 4, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024},
          "costs": {"source": "fixed", "A1_us": 100, "MLP_us": 80, "D": {"wire_us": 60}, "C": {"wire_us": 70}}})",
      "fixed.json")));
  CHECK(cost_spread(fixed) == 0);
  CHECK(cost_spread(config_of(R"("phase": "prefill", "tokens_per_rank": 4096, "context_tokens": 1024)")) == 0.28);
  const TuneGrid one = make_tune_grid(fixed, {});
  const TuneReport report = make_tune_report(fixed, one, evaluate(fixed, one), {});
  REQUIRE(report.best_split);
  // 2 (100 + 80) against 2 (100 + 60 + 80 + 70) a layer.
  CHECK(report.advice[0].on);
  CHECK(report.advice[0].crossovers.empty());
}

TEST_CASE("serving_flags: an advice to split gives the flags of its setting, one not to gives none") {
  const Config config = config_of(kDecode);
  Advice advice;
  advice.server = "vLLM";
  advice.on = true;
  advice.setting = TunePoint{.phase = Phase::Decode,
                             .tokens = 256,
                             .context = 1024,
                             .gpus = 16,
                             .transport = Transport::Ht,
                             .ubatches = 2,
                             .sm_control = SmControl::Limit,
                             .comm_sms = 16,
                             .schedule = "vllm-ht"};
  advice.unsplit = advice.setting;
  advice.crossovers = {{Phase::Decode, 57, false, {}}, {Phase::Prefill, std::nullopt, false, {}}};
  const ServingFlags flags = serving_flags(config, advice);
  CHECK(flags.line() ==
        "VLLM_DBO_COMM_SMS=16 vllm serve MODEL --data-parallel-size 16 --enable-expert-parallel --all2all-backend "
        "deepep_high_throughput --enable-dbo --dbo-decode-token-threshold 57 --dbo-prefill-token-threshold 1000000");
  advice.setting->transport = Transport::Ll;
  advice.setting->comm_sms = 0;
  CHECK(serving_flags(config, advice).env.empty());
  advice.setting->transport = Transport::Ht;
  advice.setting->sm_control = SmControl::None;
  CHECK(serving_flags(config, advice).env == std::vector<std::string>{"VLLM_DBO_COMM_SMS=0"});
  advice.setting->transport = Transport::Ll;
  CHECK(serving_flags(config, advice).line().find("deepep_low_latency") != std::string::npos);
  advice.server = "SGLang";
  CHECK(serving_flags(config, advice).line() ==
        "python3 -m sglang.launch_server --model-path MODEL --tp-size 16 --dp-size 16 --enable-dp-attention "
        "--moe-a2a-backend deepep --deepep-mode auto --enable-two-batch-overlap");
  advice.on = false;
  CHECK(serving_flags(config, advice).command.empty());
  CHECK(serving_flags(config, advice).where_it_pays.empty());  // it has no thresholds
  // vLLM's thresholds leave this batch whole, and split those that pay.
  advice.server = "vLLM";
  advice.crossovers = {{Phase::Decode, std::nullopt, false, {}}, {Phase::Prefill, 257, false, {}}};
  CHECK(serving_flags(config, advice).command.empty());
  CHECK(serving_flags(config, advice).where_it_pays ==
        "vllm serve MODEL --data-parallel-size 16 --enable-expert-parallel --all2all-backend deepep_low_latency "
        "--enable-dbo --dbo-decode-token-threshold 1000000 --dbo-prefill-token-threshold 257");
  advice.crossovers[1].tokens.reset();
  CHECK(serving_flags(config, advice).where_it_pays.empty());
  CHECK(!serving_flags(config, advice).version.empty());
}
