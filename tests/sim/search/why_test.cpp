#include "sim/search/why.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"

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
