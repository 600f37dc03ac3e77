#include "sim/search/predict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/batch/decide.h"
#include "sim/cost/profile.h"

using namespace dbo;

namespace {

Config config_of(const std::string& cluster) {
  return config_from_json(JsonRef(json_document(
      R"({"model": {"preset": "deepseek-v3", "layers": 4}, "parallel": {"data": 72, "expert": 72},
          "workload": {"phase": "decode", "tokens_per_rank": 64, "context_tokens": 1024},
          "execution": {"mode": "graph"})" +
          cluster + "}",
      "test.json")));
}

Prediction predict_first(const Config& config) {
  return predict(config, config.workload.steps.front());
}

bool says(const Prediction& p, const std::string& words) {
  return std::count(p.assumptions.begin(), p.assumptions.end(), words) == 1;
}

}  // namespace

TEST_CASE("predict: a cluster that is not described is nodes of 8 H200, and the prediction says so") {
  const Prediction assumed = predict_first(config_of(""));
  const Prediction stated =
      predict_first(config_of(R"(, "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 9})"));
  const std::string words =
      "The config does not say how the 72 GPUs are laid out: taken as 9 nodes of 8 h200-sxm, joined by cx7-400g.";
  CHECK(assumed.result.step_ns == stated.result.step_ns);
  CHECK(assumed.baseline_result.step_ns == stated.baseline_result.step_ns);
  CHECK(says(assumed, words));
  CHECK_FALSE(says(stated, words));
}

TEST_CASE("predict: SMs that a config asks for and its transport does not take are named") {
  const auto warnings = [](const std::string& overlap) {
    const Config config = config_of(R"(, "overlap": )" + overlap);
    const std::vector<std::string> out = sm_warnings(config.overlap);
    const Prediction p = predict_first(config);
    for (const std::string& warning : out) CHECK(says(p, warning + "."));
    REQUIRE(out.size() <= 1);
    return out.empty() ? std::string() : out.front();
  };
  CHECK(warnings(R"({"comm_sms": 24})") ==
        "/overlap/comm_sms 24 has no effect: \"ll\" sets no SMs aside for communication");
  CHECK(warnings(R"({"transport": "copy-engine", "comm_sms": 8})") ==
        "/overlap/comm_sms 8 has no effect: \"copy-engine\" sets no SMs aside for communication");
  CHECK(warnings(R"({"schedule": "vllm-ht", "comm_sms": 24})") ==
        "/overlap/comm_sms 24 counts as 20: kernels of \"ht\" take no more SMs than they were created with "
        "(/overlap/comm_sms_created)");
  CHECK(warnings(R"({"schedule": "vllm-ht", "comm_sms": 24, "comm_sms_created": 24})").empty());
  CHECK(warnings(R"({"schedule": "vllm-ht", "transport": "lsa-ht", "comm_sms": 24})").empty());
  CHECK(warnings("{}").empty());
}

TEST_CASE("predict: a graph takes no longer than the same launches issued in time") {
  for (const char* schedule : {"vllm-ll", "sglang-decode", "vllm-ht"}) {
    const auto step = [&](const std::string& mode) {
      const std::string transport = std::string(schedule) == "vllm-ht" ? "lsa-ht" : "lsa-ll";
      const Prediction p = predict_first(config_from_json(JsonRef(json_document(
          R"({"model": {"preset": "glm-4.5", "layers": 6}, "parallel": {"data": 8, "expert": 8},
              "workload": {"phase": "decode", "tokens_per_rank": 64, "context_tokens": 1024},
              "overlap": {"schedule": ")" +
              std::string(schedule) + R"(", "transport": ")" + transport + R"("}, "execution": {"mode": ")" + mode +
              R"(", "host": {"launch_us": 0, "graph_launch_us": 0, "record_us": 0, "wait_us": 0, "yield_us": 0}}})",
          "test.json"))));
      return std::pair{p.result.step_ns, p.baseline_result.step_ns};
    };
    CAPTURE(schedule);
    const auto graph = step("graph"), eager = step("eager");
    CHECK(graph.first < eager.first);
    CHECK(graph.second < eager.second);
  }
}

TEST_CASE("predict: a node beyond the scale-up links is modelled as written, with a word on it") {
  const Prediction p = predict_first(config_of(R"(, "cluster": {"gpus_per_node": 72})"));
  CHECK(says(p, "A node of 72 GPUs is taken as one scale-up domain, as the config says, though h200-sxm joins 8."));
  CHECK(p.assumptions.size() ==
        predict_first(config_of(R"(, "cluster": {"gpus_per_node": 8})")).assumptions.size() + 1);
}

namespace {

/// One prompt of `tokens` a rank; nothing where it is more than can be simulated.
std::optional<Prediction> prompt_of(std::int64_t tokens) {
  const std::string t = std::to_string(tokens);
  const Config config = config_from_json(JsonRef(json_document(
      R"({"model": "deepseek-v3", "parallel": {"data": 16},
          "workload": {"ranks": [{"requests": [{"query": )" +
          t + ", \"seq\": " + t + R"(}], "repeat": 16}]}})",
      "test.json")));
  try {
    return predict_first(config);
  } catch (const InputError& error) {
    CHECK(error.pointer() == "/workload");
    CHECK(error.message().starts_with("is more than can be simulated: "));
    CHECK(error.message().ends_with(", an op may take at most 1099 s"));
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("predict: twice the work never takes less, and what the engine's integers cannot hold is refused") {
  std::int64_t step = 0, baseline = 0;
  bool refused = false;
  for (std::int64_t tokens = 1024; tokens < std::int64_t{1} << 30; tokens *= 2) {
    CAPTURE(tokens);
    const auto p = prompt_of(tokens);
    refused = refused || !p;
    CHECK(refused == !p);
    if (!p) continue;
    CHECK(p->result.step_ns >= step);
    CHECK(p->baseline_result.step_ns >= baseline);
    CHECK(p->result.bound.bound_ns <= p->result.period.period_ns);
    step = p->result.step_ns;
    baseline = p->baseline_result.step_ns;
  }
  CHECK(refused);
}

TEST_CASE("predict: stated costs that add up to more than the engine's integers hold are refused") {
  const auto config = [](const std::string& layers) {
    return config_from_json(
        JsonRef(json_document(R"({"model": {"layers": )" + layers + R"(, "dense_layers": 0}, "parallel": {"data": 2},
            "workload": {"phase": "decode", "tokens_per_rank": 64, "context_tokens": 64},
            "costs": {"source": "fixed", "A0_us": 1e9}})",
                              "test.json")));
  };
  // 1000 s a launch: 2 ubatches of 2 layers, and the bound of 2^56 ns is 72057594 s.
  CHECK(predict_first(config("2")).result.step_ns == 4'000'000'000'000);
  CHECK_THROWS_WITH_AS(predict_first(config("65536")),
                       "test.json: /costs: is more than can be simulated: with ops of up to 1000 s the step may take "
                       "longer than 72057594 s, the most there is",
                       InputError);
}

TEST_CASE("predict: the clock is that of the time for which the plan's own step computes, unless it is given") {
  // Every op of a rank's own batch took 140,000 cycles at 1400 MHz without and at 1750 with pauses.
  Config config = config_of(R"(, "overlap": {"schedule": "vllm-ll", "transport": "lsa-ll"})");
  config.costs.source = CostSource::Profile;
  CostSources sources;
  sources.profile.emplace();
  sources.profile->file = "p.json";
  sources.profile->machine.gpus = 2;
  sources.profile->shape = config.model;
  for (const char* op : {"A0", "A1", "S", "FFN"}) {
    for (const bool paused : {false, true}) {
      ProfilePoint point;
      point.op = op;
      point.tokens = 64;
      point.context = op[0] == 'A' ? 1024 : 0;
      point.sms = 132;
      point.precision = config.model.weights;
      point.duty = paused ? 67 : 100;
      point.sm_mhz = paused ? 1750 : 1400;
      point.median_us = 140'000.0 / point.sm_mhz;
      point.repeats = 5;
      sources.profile->points.push_back(point);
    }
  }
  const DecideSettings settings = decide_settings(config);
  const StepBatch& step = config.workload.steps.front();
  for (const bool baseline : {false, true}) {
    const Plan plan = make_step_plan(config, decide(step, baseline ? without_dbo(settings) : settings), baseline);
    const CostTable costs = step_costs(config, plan, !baseline, sources);
    const auto computing = static_cast<double>(compute_ns(plan, costs));
    const double duty = computing / static_cast<double>(simulate_plan({plan, costs}, {}).step_ns);
    CHECK(duty < 1);
    CHECK(costs.sm_mhz == doctest::Approx(1400 + 350 * std::min((1 - duty) / 0.33, 1.0)).epsilon(0.003));
    sources.sm_mhz = 1500;
    CHECK(step_costs(config, plan, !baseline, sources).sm_mhz == 1500);
    // A rest between steps lets the clock rise.
    sources.sm_mhz = 0;
    sources.pause = Ns{20'000'000};
    CHECK(step_costs(config, plan, !baseline, sources).sm_mhz >= costs.sm_mhz);
    sources.pause = Ns{};
  }
}
