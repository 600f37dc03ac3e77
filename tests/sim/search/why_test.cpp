#include "sim/search/why.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/engine.h"
#include "sim/search/tune_point.h"

using namespace dbo;

namespace {

Config config_of(const std::string& text) {
  return config_from_json(JsonRef(json_document(text, "test.json")));
}

std::string deepseek(int tokens, const std::string& schedule, const std::string& transport) {
  return R"({"model": "deepseek-v3", "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 2},
             "parallel": {"data": 16, "expert": 16},
             "workload": {"phase": "decode", "tokens_per_rank": )" +
         std::to_string(tokens) + R"(, "context_tokens": 4096}, "overlap": {"schedule": ")" + schedule +
         R"(", "transport": ")" + transport + R"(", "decode_token_threshold": 2}, "execution": {"mode": "graph"}})";
}

Prediction predicted(const Config& config) {
  return predict(config, config.workload.steps.front());
}

const WhatIf& find(const Why& why, const std::string& what) {
  const auto found =
      std::find_if(why.what_ifs.begin(), why.what_ifs.end(), [&](const WhatIf& w) { return w.what == what; });
  REQUIRE_MESSAGE(found != why.what_ifs.end(), what);
  return *found;
}

}  // namespace

TEST_CASE("why: what would be without communication, and without compute, worked out by hand") {
  // A 100, D 60, MLP 80, C 70, S 20, two layers, vllm-ll: 850. Compute alone is 2 x 2 x (100 + 80 + 20); of the wires
  // one at a time is under way: 2 x 2 x (60 + 70).
  const Config config = config_of(
      R"({"model": {"layers": 2, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024},
          "costs": {"source": "fixed", "A1_us": 100, "MLP_us": 80, "S_us": 20, "D": {"wire_us": 60},
                    "C": {"wire_us": 70}}})");
  const Why why = explain(config, predicted(config));
  CHECK(find(why, "communication took no time").step_ns == 800000);
  CHECK(find(why, "compute took no time").step_ns == 520000);
  CHECK(std::count(why.sentences.begin(), why.sentences.end(),
                   "If communication took no time, 800.0 us; if compute took no time, 520.0 us; if the host and the "
                   "gaps between kernels took no time, 850.0 us.") == 1);
  // Serial: 2 A + 2 D + 2 MLP + max(2 C, 2 S) = 620 a layer, 1240; 1240 / 850 = 1.459.
  CHECK(why.sentences.front() ==
        "The step takes 850.0 us: split in 2 it gives 45.9 % more tokens a second than un-split (1.24 ms).");
}

TEST_CASE("why: every number of a what-if is that of its config simulated") {
  const Config config = config_of(deepseek(256, "vllm-ll", "ll"));
  const Why why = explain(config, predicted(config));
  struct Case {
    std::string what;
    Config config;
  };
  Config alone = config_of(deepseek(256, "vllm-ht", "ht"));
  alone.overlap.ubatches = 1;
  for (const Case& c : {Case{"128 tokens a rank", config_of(deepseek(128, "vllm-ll", "ll"))},
                        Case{"512 tokens a rank", config_of(deepseek(512, "vllm-ll", "ll"))},
                        Case{"sglang-decode over ll", config_of(deepseek(256, "sglang-decode", "ll"))},
                        Case{"vllm-ht over ht with 20 comm SMs", config_of(deepseek(256, "vllm-ht", "ht"))},
                        Case{"un-split over ht", alone}}) {
    CAPTURE(c.what);
    const Prediction p = predicted(c.config);
    const WhatIf& w = find(why, c.what);
    CHECK(w.step_ns == p.result.step_ns);
    CHECK(w.throughput == doctest::Approx(p.tokens_per_s_per_gpu(p.result)));
    CHECK(w.runs == p.memory->fits());
  }
}

TEST_CASE("why: what would help most is the best setting that fits") {
  const Config config = config_of(deepseek(256, "vllm-ll", "ll"));
  const Prediction p = predicted(config);
  const Why why = explain(config, p);
  const WhatIf* best = nullptr;
  for (const WhatIf& w : why.what_ifs)
    if (w.setting && w.runs && (best == nullptr || w.throughput > best->throughput)) best = &w;
  REQUIRE(best != nullptr);
  REQUIRE(best->throughput > p.tokens_per_s_per_gpu(p.result));
  CHECK(why.sentences.back().find("what would help most is " + best->what + " (") != std::string::npos);
  // At its own best setting there is nothing to say but that.
  const Config alone = config_of(
      R"({"model": {"layers": 4, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024},
          "costs": {"source": "fixed", "A1_us": 100, "MLP_us": 80, "S_us": 20, "D": {"wire_us": 60},
                    "C": {"wire_us": 70}}})");
  CHECK(explain(alone, predicted(alone)).sentences.back() == "Of 3 other settings simulated, none is better.");
}

TEST_CASE("why: a step that is not split says why, and what splitting would give") {
  Config config = config_of(deepseek(256, "vllm-ll", "ll"));
  config.overlap.decode_token_threshold = 300;
  const Prediction p = predicted(config);
  REQUIRE(!p.decision.split);
  const Why why = explain(config, p);
  CHECK(why.sentences.front().find("it is not split, as " + p.decision.reason_text) != std::string::npos);
  const Config split = config_of(deepseek(256, "vllm-ll", "ll"));
  CHECK(find(why, "vllm-ll over ll").step_ns == predicted(split).result.step_ns);
}

TEST_CASE("why: what splitting saves and costs adds up to the difference, part by part, until nothing is left") {
  struct Case {
    std::string what;
    Config config;
  };
  const auto flows = [](std::string text) { return text.replace(text.rfind('}'), 1, R"(, "network": "flows"})"); };
  const auto routed = [](std::string text) {
    return text.replace(text.rfind('}'), 1, R"(, "routing": {"kind": "zipf", "alpha": 0.5}})");
  };
  const auto eager = [](std::string text) {
    return text.replace(text.find(R"("graph")"), 7, R"("eager", "host": "python")");
  };
  const auto controlled = [](std::string text, const std::string& control) {
    const std::string transport = R"("transport": ")";
    return text.insert(text.find(transport), R"("sm_control": ")" + control + R"(", )");
  };
  std::vector<Case> cases;
  for (const int tokens : {16, 64, 128, 256, 512})
    cases.push_back({"low latency " + std::to_string(tokens), config_of(deepseek(tokens, "vllm-ll", "ll"))});
  cases.push_back({"flows", config_of(flows(deepseek(64, "sglang-decode", "ll")))});
  cases.push_back({"zipf", config_of(routed(deepseek(64, "vllm-ll", "ll")))});
  cases.push_back({"eager", config_of(eager(deepseek(64, "vllm-ll", "ll")))});
  for (const char* control : {"limit", "green-context", "none"})
    cases.push_back({control, config_of(controlled(deepseek(64, "vllm-ht", "ht"), control))});
  cases.push_back({"copy engines", config_of(deepseek(128, "vllm-ht", "copy-engine"))});
  cases.push_back(
      {"fixed", config_of(R"({"model": {"layers": 3, "dense_layers": 1}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024},
          "costs": {"source": "fixed", "A0_us": 7, "A1_us": 100, "MLP_us": 80, "S_us": 20, "FFN_us": 11,
                    "D": {"send_us": 3, "wire_us": 60, "recv_us": 2}, "C": {"wire_us": 70}, "host_us": 9}})")});
  int losses = 0;
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const Prediction p = predicted(c.config);
    REQUIRE(p.decision.split);
    const std::int64_t difference = p.result.step_ns - p.baseline_result.step_ns;
    losses += difference > 0 ? 1 : 0;
    const Why why = explain(c.config, p);
    REQUIRE(!why.parts.empty());
    std::int64_t sum = 0, split = p.result.step_ns, unsplit = p.baseline_result.step_ns;
    for (const SplitPart& part : why.parts) {
      CAPTURE(part.what);
      sum += part.ns;
      // Each part is what both steps lose by its own what-if.
      CHECK(part.ns == (split - part.split_ns) - (unsplit - part.unsplit_ns));
      split = part.split_ns;
      unsplit = part.unsplit_ns;
    }
    CHECK(sum == difference);
    CHECK(split == 0);
    CHECK(unsplit == 0);
    CHECK(why.sentences[1].starts_with("Splitting "));
  }
  CHECK(losses >= 6);
}

TEST_CASE("why: each part is a run with that alone taken away besides") {
  // A 100, D 60, MLP 80, C 70, S 20, two layers: split 850, un-split 1240; without communication both take 800, as
  // fixed costs give each half of the batch half of the time.
  const Config fixed = config_of(
      R"({"model": {"layers": 2, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024},
          "costs": {"source": "fixed", "A1_us": 100, "MLP_us": 80, "S_us": 20, "D": {"wire_us": 60},
                    "C": {"wire_us": 70}}})");
  const Why why = explain(fixed, predicted(fixed));
  CHECK(why.parts.front().what == "waiting for communication");
  CHECK(why.parts.front().ns == -390000);
  CHECK(why.parts.front().split_ns == 800000);
  CHECK(why.parts.front().unsplit_ns == 800000);
  CHECK(why.sentences[1] == "Splitting saves 390.0 us on waiting for communication: 390.0 us less in all.");
  for (std::size_t i = 1; i < why.parts.size(); ++i) CHECK(why.parts[i].ns == 0);
  // Of a real step: the first two parts, worked out with the engine here.
  const Config config = config_of(deepseek(256, "vllm-ht", "ht"));
  const Prediction p = predicted(config);
  CostTable split = p.split.costs, unsplit = p.baseline.costs;
  split.machine = unsplit.machine = {};
  const std::int64_t split_alone = run_engine(p.split.plan, split).step();
  const std::int64_t unsplit_alone = run_engine(p.baseline.plan, unsplit).step();
  const std::vector<SplitPart> parts = split_parts(config, p);
  CHECK(parts[0].what == "ops that slow each other side by side");
  CHECK(parts[0].split_ns == split_alone);
  CHECK(parts[0].unsplit_ns == unsplit_alone);
  CHECK(parts[0].ns == (p.result.step_ns - split_alone) - (p.baseline_result.step_ns - unsplit_alone));
  CHECK(parts[1].what == "waiting for communication");
  CHECK(parts[1].split_ns == run_engine(p.split.plan, scaled_costs(split, p.split.plan, {1, 0})).step());
  // And the SMs: the same plan with compute on all of them, priced anew, has nothing of that part left.
  const auto sms = std::find_if(parts.begin(), parts.end(),
                                [](const SplitPart& part) { return part.what == "SMs set aside for communication"; });
  REQUIRE(sms != parts.end());
  CHECK(sms->ns > 0);
  CHECK(sms->unsplit_ns == (sms - 1)->unsplit_ns);
}

TEST_CASE("why: a step that is not split has no difference to explain") {
  Config config = config_of(deepseek(256, "vllm-ll", "ll"));
  config.overlap.decode_token_threshold = 300;
  CHECK(explain(config, predicted(config)).parts.empty());
}
