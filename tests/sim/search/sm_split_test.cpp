#include "sim/search/sm_split.h"

#include <doctest/doctest.h>

#include "sim/base/json_reader.h"
#include "sim/config/config.h"
#include "sim/search/predict.h"

using namespace dbo;

namespace {

Prediction predicted(int nodes, const std::string& overlap, const std::string& network = "ports") {
  const std::string gpus = std::to_string(nodes * 8);
  const std::string text = R"({"model": {"preset": "deepseek-v3", "layers": 8},
    "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": )" +
                           std::to_string(nodes) + R"(}, "parallel": {"data": )" + gpus + R"(, "expert": )" + gpus +
                           R"(}, "workload": {"phase": "prefill", "tokens_per_rank": 8192, "context_tokens": 4096},
    "routing": {"kind": "zipf", "alpha": 0.7}, "network": ")" +
                           network + R"(", "overlap": )" + overlap + "}";
  const Config config = config_from_json(JsonRef(json_document(std::string_view(text), "t.json")));
  return predict(config, config.workload.steps.front());
}

}  // namespace

TEST_CASE("sm_split: the more nodes, the fewer SMs are of use") {
  // DeepEP on H200 and H100: near 1 / SMs, then flat from about 20 SMs inside a node, 12 to 16 over four, 4 over eight.
  const std::string overlap = R"({"schedule": "vllm-ht", "transport": "ht", "comm_sms": 20, "comm_sms_created": 20})";
  const auto knee = [&](int nodes) { return predicted(nodes, overlap).sm_split->knee(); };
  CHECK(knee(1).value_or(0) >= 16);
  CHECK(knee(1).value_or(0) <= 24);
  CHECK(knee(4).value_or(0) >= 8);
  CHECK(knee(4).value_or(0) <= 16);
  CHECK(knee(8).value_or(0) <= knee(4).value_or(0));
}

TEST_CASE("sm_split: communication gets no slower with SMs, compute no faster; they cross once") {
  const Prediction p =
      predicted(2, R"({"schedule": "vllm-ht", "transport": "ht", "comm_sms": 20, "comm_sms_created": 20})");
  REQUIRE(p.sm_split.has_value());
  const std::vector<SmSplitPoint>& points = p.sm_split->points;
  CHECK(points.size() == 24);
  for (std::size_t i = 1; i < points.size(); ++i) {
    CHECK(points[i].comm_ns <= points[i - 1].comm_ns);
    CHECK(points[i].compute_ns >= points[i - 1].compute_ns);
  }
  const auto crossover = p.sm_split->crossover();
  REQUIRE(crossover.has_value());
  for (const SmSplitPoint& point : points) CHECK((point.comm_sms >= *crossover) == (point.comm_ns <= point.compute_ns));
}

TEST_CASE("sm_split: green contexts come in the hardware's steps, and what shares all SMs has no split") {
  const Prediction green =
      predicted(1, R"({"schedule": "vllm-ht", "transport": "lsa-ht", "comm_sms": 16, "sm_control": "green-context"})");
  REQUIRE(green.sm_split.has_value());
  for (const SmSplitPoint& point : green.sm_split->points) CHECK(point.comm_sms % 8 == 0);
  CHECK_FALSE(predicted(1, R"({"schedule": "vllm-ht", "transport": "lsa-ht", "sm_control": "none"})").sm_split);
  CHECK_FALSE(predicted(1, R"({"schedule": "vllm-ll", "transport": "ll"})").sm_split);
}

TEST_CASE("network: pairwise flows change what skewed exchanges take, and say so") {
  const std::string overlap = R"({"schedule": "vllm-ll", "transport": "ll"})";
  const Prediction ports = predicted(2, overlap), flows = predicted(2, overlap, "flows");
  CHECK(flows.result.step_ns != ports.result.step_ns);
  CHECK(flows.baseline_result.step_ns != ports.baseline_result.step_ns);
  // Within what sharing ports with calls of ranks that are ahead costs, and what waiting for one's own senders gains.
  CHECK(flows.result.step_ns > ports.result.step_ns * 8 / 10);
  CHECK(flows.result.step_ns < ports.result.step_ns * 11 / 10);
  const auto says = [](const Prediction& p) {
    for (const std::string& text : p.assumptions)
      if (text.find("pairwise flows") != std::string::npos) return true;
    return false;
  };
  CHECK(says(flows));
  CHECK_FALSE(says(ports));
}
