#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/search/predict.h"

using namespace dbo;

namespace {

Config config_of(const std::string& gpu, const std::string& model, const std::string& precision) {
  return config_from_json(JsonRef(json_document(
      R"({"model": {"preset": ")" + model + R"(", "precision": )" + precision + R"(}, "cluster": {"gpu": ")" + gpu +
          R"(", "gpus_per_node": 8, "nodes": 8}, "parallel": {"data": 64, "expert": 64},
          "workload": {"phase": "decode", "tokens_per_rank": 256, "context_tokens": 2000},
          "overlap": {"schedule": "vllm-ll", "transport": "lsa-ll"}, "execution": {"mode": "graph"},
          "costs": {"source": "profile"}})",
      "test.json")));
}

constexpr const char* kBf16 = R"({"weights": "bf16", "expert_weights": "bf16", "kv_cache": "bf16", "combine": "bf16"})";

}  // namespace

TEST_CASE("profile source: without a file a step is priced by the profile that ships") {
  const Config config = config_of("h200-sxm", "deepseek-v3", kBf16);
  Config analytical = config;
  analytical.costs.source = CostSource::Analytical;
  const Prediction measured = predict(config, config.workload.steps.front());
  const Prediction worked_out = predict(analytical, analytical.workload.steps.front());
  CHECK(measured.result.step_ns != worked_out.result.step_ns);
  CHECK(profile_of(config).machine.preset == "h200-sxm");
}

TEST_CASE("profile source: where none ships the error says which there are and what else to do") {
  for (const auto& [gpu, model] : {std::pair{"h100-sxm", "deepseek-v3"}, std::pair{"h200-sxm", "glm-4.5"}}) {
    const Config config = config_of(gpu, model, "{}");
    try {
      (void)predict(config, config.workload.steps.front());
      FAIL("no error");
    } catch (const InputError& error) {
      CHECK(error.pointer() == "/costs");
      CHECK(error.message().find(std::string("no measured profile ships for ") + gpu + " and " + model) == 0);
      CHECK(error.message().find("h200-sxm.deepseek-v3") != std::string::npos);
      CHECK(error.message().find("\"analytical\"") != std::string::npos);
    }
  }
}
