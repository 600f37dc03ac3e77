#include "validate/suite.h"
#include "tests/traces/temp_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"
#include "sim/search/predict.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

/// A profile of a model on which nothing was measured: every cost is analytical.
std::string empty_profile(const std::string& model) {
  Profile profile;
  profile.machine.gpu = "NVIDIA H200";
  profile.machine.preset = "h200-sxm";
  profile.date = "2026-11-30";
  profile.shape = replay_shape(model_preset(model));
  profile.host = HostCosts{};
  static const testing::TempDir folder;
  const std::string path = folder.file(model + ".empty.profile.json");
  write_file(path, pretty_json(profile_to_json(profile)));
  return path;
}

ProfilePoint point(const std::string& op, std::int64_t tokens, std::int64_t context) {
  ProfilePoint p;
  p.op = op;
  p.tokens = tokens;
  p.context = context;
  p.sms = 132;
  p.median_us = 10;
  p.repeats = 5;
  return p;
}

const SuiteEntry& entry_of(const Suite& suite, const std::string& name) {
  const auto found =
      std::find_if(suite.entries.begin(), suite.entries.end(), [&](const SuiteEntry& e) { return e.name == name; });
  REQUIRE(found != suite.entries.end());
  return *found;
}

WayOutcome way(bool graph, double predicted, double measured, double unsplit, double drift) {
  WayOutcome w;
  w.graph = graph;
  w.split = {measured, measured / 100, 20};
  w.unsplit = {unsplit, unsplit / 50, 20};
  w.predicted_split_us = predicted;
  w.predicted_unsplit_us = unsplit;
  w.drift = {drift, drift};
  w.kinds = {{"A1", 4, 10, 8, 0.25}};
  w.windows = {{"D[0]|A[1]", 3, 0.9, 0.8, 0.1}};
  return w;
}

Outcome outcome(const std::string& name, WayOutcome w) {
  Outcome o;
  o.name = name;
  o.key = "0123456789abcdef";
  o.what = "DeepSeek-V3, decode";
  o.device = "NVIDIA H200";
  o.versions = "dbo 0.1.0 (abc), CUDA 13.0";
  o.gpus = 2;
  o.numerics.tokens = 8;
  o.numerics.split_bound = 0.1;
  o.ways = {std::move(w)};
  return o;
}

}  // namespace

TEST_CASE(
    "suite: the default one has 24 configs of two models, both phases, three batch sizes and transports, SM splits") {
  const Suite suite = load_suite("default");
  CHECK(suite.entries.size() == 24);
  std::set<std::string> models;
  std::set<std::pair<bool, std::int64_t>> batches;
  std::set<Transport> transports;
  std::set<int> splits;
  for (const SuiteEntry& entry : suite.entries) {
    const RankBatch& rank = entry.config.workload.steps.front().ranks.front();
    models.insert(entry.config.model.name);
    batches.emplace(rank.requests.front().query > 1, rank.tokens());
    transports.insert(entry.config.overlap.transport);
    if (entry.config.overlap.transport == Transport::LsaHt) splits.insert(entry.config.overlap.comm_sms);
  }
  CHECK(models.size() == 2);
  CHECK(batches.size() == 6);
  CHECK(transports == std::set<Transport>{Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine});
  CHECK(splits == std::set<int>{8, 16, 24});
  const Suite eight = load_suite("ep8");
  for (const SuiteEntry& entry : eight.entries) CHECK(entry.config.cluster.gpus() == 8);
}

TEST_CASE("suite: no batch of the suites that come with the program is one that a calibration measures") {
  for (const char* name : {"default", "held-out", "ep8"}) {
    for (const SuiteEntry& entry : load_suite(name).entries) {
      CAPTURE(entry.name);
      const CalibrationScope scope = scope_of({entry.config}, 8);
      Profile profile;
      profile.shape = entry.config.model;
      for (const CalibrationSetting& s : calibration_points(entry.config.model, scope).settings) {
        for (const OpKind kind : s.ops) {
          ProfilePoint p = point(std::string(op_name(kind)), s.tokens, kind == OpKind::A1 ? s.context : 0);
          p.prefill = s.prefill;
          if (is_comm(kind)) {
            p.transport = s.transport;
            p.ranks = s.ranks;
          }
          profile.points.push_back(std::move(p));
        }
      }
      REQUIRE(!profile.points.empty());
      CHECK(!is_calibration_config(profile, entry.config));
    }
  }
}

TEST_CASE("suite: a batch that was measured is recognised by tokens, context, transport and ranks") {
  const Suite suite = load_suite("default");
  const Config& config = entry_of(suite, "v3-decode-80-ep64-ll").config;
  Profile profile;
  ProfilePoint send = point("D.send", 80, 0);
  send.transport = Transport::LsaLl;
  send.ranks = 64;
  profile.points = {point("A1", 80, 3000), send};
  CHECK(is_calibration_config(profile, config));
  profile.points[0].context = 4096;
  CHECK(!is_calibration_config(profile, config));
  profile.points[0].context = 3000;
  profile.points[1].ranks = 16;
  CHECK(!is_calibration_config(profile, config));
  profile.points[1].ranks = 64;
  profile.points[0].beside = "D+C";
  CHECK(!is_calibration_config(profile, config));
}

TEST_CASE("suite: every config of the default suite and of the drawn one can be predicted for two GPUs and for one") {
  const std::vector<std::string> profiles = {empty_profile("deepseek-v3"), empty_profile("deepseek-v2-lite")};
  std::vector<SuiteEntry> entries = load_suite("default").entries;
  for (SuiteEntry& entry : load_suite("held-out").entries) entries.push_back(std::move(entry));
  REQUIRE(entries.size() == 48);
  for (const SuiteEntry& entry : entries) {
    CAPTURE(entry.name);
    for (const int gpus : {2, 1}) {
      CaseOptions options;
      options.gpus = gpus;
      options.name = entry.name;
      const ValidationCase validated = make_case(entry.config, pick_profile(profiles, entry.config), options);
      CHECK(validated.decision.split);
      CHECK(validated.emulated == (entry.config.cluster.gpus() > gpus));
      REQUIRE(validated.ways.size() == 2);
      CHECK(validated.ways[0].graph);
      for (const PredictedWay& one : validated.ways) {
        CHECK(one.split.result.step_ns > 0);
        CHECK(one.unsplit.result.step_ns > 0);
        CHECK(!one.split.result.trace.ops.empty());
        CHECK(one.split.wires.empty() == !validated.emulated);
      }
    }
  }
}

TEST_CASE("suite: profiles are told apart by model") {
  const Suite suite = load_suite("default");
  const std::vector<std::string> profiles = {empty_profile("deepseek-v3"), empty_profile("deepseek-v2-lite")};
  CHECK(pick_profile(profiles, entry_of(suite, "v3-decode-80-ep64-ll").config) == profiles[0]);
  CHECK(pick_profile(profiles, entry_of(suite, "v2l-decode-80-ep2-ll").config) == profiles[1]);
  CHECK_THROWS_AS(pick_profile({}, suite.entries[0].config), InputError);
  CHECK_THROWS_AS(pick_profile({profiles[1], profiles[1]}, suite.entries[0].config), InputError);
}

TEST_CASE("errors: median, 95th percentile and worst over the configs, raw and as at calibration") {
  // Raw errors: 110/100 - 1 = +10 %, 95/100 - 1 = -5 %, 100/100 - 1 = 0. The second config ran on a machine 5 % slower
  // than at calibration: 95 / (100 / 1.05) - 1 = -0.25 %.
  const std::vector<Outcome> outcomes = {outcome("a", way(true, 110, 100, 200, 1)),
                                         outcome("b", way(true, 95, 100, 200, 1.05)),
                                         outcome("c", way(true, 100, 100, 200, 1))};
  const std::vector<ErrorLine> lines = error_table(outcomes);
  REQUIRE(lines.size() >= 4);
  CHECK(lines[0].what == "step, graph");
  CHECK(lines[0].count == 3);
  CHECK(lines[0].median == doctest::Approx(0.05));
  CHECK(lines[0].p95 == doctest::Approx(0.10));
  CHECK(lines[0].worst == doctest::Approx(0.10));
  CHECK(lines[0].worst_case == "a");
  CHECK(lines[0].spread == doctest::Approx(0.01));
  CHECK(lines[1].what == "step, graph, normalised");
  CHECK(lines[1].median == doctest::Approx(0.0025));
  CHECK(lines[1].worst == doctest::Approx(0.10));
  CHECK(lines[3].what == "gain, graph");
  // Predicted 200/110, measured 200/100: -9.1 %; 200/95: +5.3 %.
  CHECK(lines[3].median == doctest::Approx(200.0 / 95 / 2 - 1));
  CHECK(lines[3].worst == doctest::Approx(1 - 100.0 / 110));
  CHECK(lines[3].spread == doctest::Approx(0.03));
  const auto of = [&](const std::string& what) {
    return std::count_if(lines.begin(), lines.end(), [&](const ErrorLine& line) { return line.what == what; });
  };
  CHECK(of("A1, graph") == 1);
  CHECK(of("window D[0]|A[1], graph") == 1);
  CHECK(error_table({}).empty());
}

TEST_CASE("outcome: its JSON form gives it back, verdict included") {
  Outcome before = outcome("a", way(true, 130, 100, 200, 1));
  before.notes = {"played"};
  before.anchor_before = Anchor{180, 240};
  before.numerics.problems = {"numerics: other bits"};
  const Outcome after = outcome_from_json(JsonRef(wrap_json(outcome_to_json(before), "o")));
  CHECK(after == before);
  CHECK(after.failures() == before.failures());
  // Step +30 %, gain 200/130 against 2.
  REQUIRE(before.failures().size() == 3);
  CHECK(before.failures()[0] == "numerics: other bits");
  CHECK(before.failures()[1] == "graph: step predicted +30.0 % from the measured one (allowed 10.0 %)");
  CHECK(before.failures()[2] == "graph: gain predicted -23.1 % from the measured one (allowed 8.0 %)");
}

TEST_CASE("outcome: a gain of the wrong sign and findings fail, a good prediction passes") {
  CHECK(outcome("a", way(true, 101, 100, 130, 1)).failures().empty());
  WayOutcome wrong = way(false, 100, 100, 105, 1);
  wrong.unsplit.median_us = 99;
  wrong.named = {"F3 late previous event"};
  wrong.order_findings = 2;
  const std::vector<std::string> failures = outcome("a", wrong).failures();
  REQUIRE(failures.size() == 3);
  CHECK(failures[0] == "eager: 2 findings against the planned order");
  CHECK(failures[1] == "eager: predicted a gain of 1.050, measured 0.990: the wrong side of 1");
  CHECK(failures[2] == "eager: F3 late previous event");
  CHECK(Outcome{}.failures() == std::vector<std::string>{"nothing was replayed"});
}

TEST_CASE("suite: tables as text, Markdown and CSV name every config, machine and versions") {
  Outcome failed;
  failed.name = "b";
  failed.numerics.problems = {"cannot run: no memory"};
  const std::vector<Outcome> outcomes = {outcome("a", way(true, 105, 100, 200, 1)), failed};
  const std::string text = suite_text(outcomes), markdown = suite_markdown(outcomes), csv = suite_csv(outcomes);
  CHECK(text.find("1 of 2 configs passed") != std::string::npos);
  CHECK(text.find("cannot run: no memory") != std::string::npos);
  CHECK(markdown.find("2 x NVIDIA H200, dbo 0.1.0 (abc), CUDA 13.0.") == 0);
  CHECK(markdown.find("| a | graph | 105.0 | 100.0 | +5.0 % | +5.0 % | 1.905 | 2.000 | 1.0 % |") != std::string::npos);
  CHECK(markdown.find("| b |") != std::string::npos);
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2);
  CHECK(csv.find("a,\"DeepSeek-V3, decode\",2,0,graph,105.00,100.00,0.01000,0.05000,0.05000") != std::string::npos);
}

TEST_CASE("suite: a file's configs lie over its base; names are unique and fit file names") {
  const testing::TempDir folder;
  const auto load = [&](const std::string& configs) {
    write_file(folder.file("own.suite.json"), R"({"format": 1, "base": {"model": "deepseek-v2-lite",
      "cluster": {"gpus_per_node": 2}, "parallel": {"data": 2, "expert": 2},
      "workload": {"phase": "decode", "tokens_per_rank": 100, "context_tokens": 1000},
      "overlap": {"schedule": "vllm-ll", "transport": "lsa-ll"}}, "configs": [)" +
                                                  configs + "]}");
    return load_suite(folder.file("own.suite.json"));
  };
  const Suite suite =
      load(R"({"name": "a", "config": {}}, {"name": "b", "config": {"workload": {"tokens_per_rank": 50}}})");
  REQUIRE(suite.entries.size() == 2);
  CHECK(suite.entries[0].config.workload.steps.front().ranks.front().tokens() == 100);
  CHECK(suite.entries[1].config.workload.steps.front().ranks.front().tokens() == 50);
  CHECK(suite.entries[1].config.overlap.transport == Transport::LsaLl);
  CHECK_THROWS_WITH_AS(load(R"({"name": "a", "config": {}}, {"name": "a", "config": {}})"),
                       doctest::Contains("/configs/1/name"), InputError);
  CHECK_THROWS_WITH_AS(load(R"({"name": "a/b", "config": {}})"), doctest::Contains("must be letters"), InputError);
  CHECK_THROWS_WITH_AS(load(""), doctest::Contains("is empty"), InputError);
}

TEST_CASE("case: what is not there is played, unless the config or the transport forbids it") {
  const Suite suite = load_suite("default");
  Config config = entry_of(suite, "v3-decode-80-ep64-ll").config;
  const std::string profile = empty_profile("deepseek-v3");
  CaseOptions options;
  options.gpus = 2;
  const ValidationCase played = make_case(config, profile, options);
  CHECK(played.emulated);
  CHECK(played.ranks_replayed() == 1);
  CHECK(std::any_of(played.notes.begin(), played.notes.end(),
                    [](const std::string& note) { return note.find("rank 0 of 64 is replayed") == 0; }));
  config.emulate = Emulate::Off;
  CHECK_THROWS_WITH_AS(make_case(config, profile, options), doctest::Contains("2 GPUs for 64 ranks"), InputError);
  config.emulate = Emulate::Auto;
  config.overlap.transport = Transport::Nccl;
  CHECK_THROWS_WITH_AS(make_case(config, profile, options), doctest::Contains("its peers cannot be played"),
                       InputError);
  config.overlap.transport = Transport::LsaLl;
  config.cluster.stragglers = {{{3}, 1.5, 1}};
  CHECK_THROWS_WITH_AS(make_case(config, profile, options), doctest::Contains("cannot make a GPU slower"), InputError);
  config.cluster.stragglers.clear();
  // DeepEP's kernels are not here; ours stand in for them, and the report says so.
  config.overlap.transport = Transport::Ll;
  const ValidationCase replaced = make_case(config, profile, options);
  CHECK(replaced.config.overlap.transport == Transport::LsaLl);
  CHECK(replaced.notes.front() == "\"ll\" is simulated only: predicted and replayed with \"lsa-ll\" in its place");
}

TEST_CASE("case: steps of all plans take turns, so all are priced at one clock, between those they would have alone") {
  // Computation at two clocks: 100 us at 1400 MHz, 80 at 1750; the un-split step's batch draws more: 1300 MHz.
  Profile profile = load_profile(empty_profile("deepseek-v3"));
  for (const auto& [tokens, mhz] : {std::pair{160, 1400}, {320, 1300}}) {
    for (const char* op : {"A0", "A1", "S", "FFN"}) {
      for (const bool paused : {false, true}) {
        ProfilePoint p;
        p.op = op;
        p.tokens = tokens;
        p.context = op[0] == 'A' ? 3000 : 0;
        p.sms = 132;
        p.duty = paused ? 67 : 100;
        p.sm_mhz = paused ? 1750 : mhz;
        p.median_us = 140'000.0 / p.sm_mhz * tokens / 160;
        p.repeats = 5;
        profile.points.push_back(p);
      }
    }
  }
  static const testing::TempDir folder;
  const std::string path = folder.file("clocks.profile.json");
  write_file(path, pretty_json(profile_to_json(profile)));
  const Config config = entry_of(load_suite("default"), "v3-decode-320-ep64-ll").config;
  CaseOptions options;
  options.gpus = 2;
  const ValidationCase validated = make_case(config, path, options);
  const int mhz = validated.ways.front().split.costs.sm_mhz;
  CHECK(mhz > 1300);
  CHECK(mhz < 1750);
  for (const PredictedWay& way : validated.ways) {
    CHECK(way.split.costs.sm_mhz == mhz);
    CHECK(way.unsplit.costs.sm_mhz == mhz);
  }
  // Told the clock, it predicts for that, and a lower one never makes a step shorter.
  std::int64_t before = INT64_MAX;
  for (const double told : {1200.0, 1400.0, 1700.0}) {
    options.sm_mhz = told;
    const PredictedWay way = make_case(config, path, options).ways.front();
    CHECK(way.split.costs.sm_mhz == static_cast<int>(told));
    CHECK(way.split.result.step_ns < before);
    before = way.split.result.step_ns;
  }
}

TEST_CASE("case: an emulated wire lasts what the cost model says, in the prediction and in the kernels alike") {
  const Suite suite = load_suite("default");
  CaseOptions options;
  options.gpus = 2;
  const ValidationCase validated =
      make_case(entry_of(suite, "v3-decode-320-ep64-ll").config, empty_profile("deepseek-v3"), options);
  const PredictedPlan& split = validated.ways.front().split;
  const Linear linear = linearise(split.plan, split.plan.class_of(0));
  int receives = 0;
  for (std::uint32_t op = 0; op < linear.ops.size(); ++op) {
    const OpKind kind = split.plan.op(linear.ops[op].op).kind;
    if (!is_recv(kind)) {
      CHECK(split.wires[op] == Ns{});
      continue;
    }
    ++receives;
    CHECK(split.wires[op] > Ns{10'000});
    CHECK(split.wires[op] == cost_of(split, linear, op).wire);
  }
  // Two ubatches, six MoE layers, dispatch and combine.
  CHECK(receives == 24);
}

TEST_CASE("case: a rank whose peers are played waits for none of them, however unequal the plan's ranks are") {
  Config config = entry_of(load_suite("default"), "v3-prefill-3072-ep16-ht16").config;
  config.routing.kind = RoutingKind::Zipf;
  config.routing.alpha = 0.6;
  CaseOptions options;
  options.gpus = 1;
  const ValidationCase validated = make_case(config, empty_profile("deepseek-v3"), options);
  REQUIRE(validated.emulated);
  CHECK(std::count_if(validated.notes.begin(), validated.notes.end(),
                      [](const std::string& note) { return note.starts_with("routing is not balanced"); }) == 1);
  for (const PredictedWay& way : validated.ways) {
    for (const PredictedPlan* predicted : {&way.split, &way.unsplit}) {
      for (const Bubble& bubble : predicted->result.bubbles) CHECK(bubble.cause != BubbleCause::Peer);
    }
  }
  // A cluster has them: its first rank waits for the one with most rows.
  const Prediction cluster = predict(validated.config, validated.config.workload.steps.front());
  CHECK(std::any_of(cluster.result.bubbles.begin(), cluster.result.bubbles.end(),
                    [](const Bubble& bubble) { return bubble.cause == BubbleCause::Peer; }));
}
