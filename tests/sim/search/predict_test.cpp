#include "sim/search/predict.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/json_reader.h"

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

TEST_CASE("predict: a node beyond the scale-up links is modelled as written, with a word on it") {
  const Prediction p = predict_first(config_of(R"(, "cluster": {"gpus_per_node": 72})"));
  CHECK(says(p, "A node of 72 GPUs is taken as one scale-up domain, as the config says, though h200-sxm joins 8."));
  CHECK(p.assumptions.size() ==
        predict_first(config_of(R"(, "cluster": {"gpus_per_node": 8})")).assumptions.size() + 1);
}
