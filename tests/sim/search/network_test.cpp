// Steps of whole configs over both networks: random models, transports, schedules, routings and slow ranks.
#include <doctest/doctest.h>

#include <vector>

#include "sim/base/hash.h"
#include "sim/base/json_reader.h"
#include "sim/search/predict.h"

using namespace dbo;

namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  const char* of(const std::vector<const char*>& texts) {
    return texts[static_cast<std::size_t>(mix_below(seed_, counter_++, texts.size()))];
  }

 private:
  std::uint64_t seed_, counter_ = 0;
};

/// A config but for its network and how slow its slow ranks are.
struct Case {
  std::string model, workload, overlap, rest, cluster;
  int layers = 7, ranks = 8;
  bool slow_compute = false, slow_wire = false;

  Prediction predict_on(const char* network, double slower) const {
    std::string straggler;
    if (slow_compute) straggler += ", \"compute_factor\": " + std::to_string(slower);
    if (slow_wire) straggler += ", \"wire_factor\": " + std::to_string(slower);
    if (!straggler.empty()) straggler = ", \"stragglers\": [{\"ranks\": [3]" + straggler + "}]";
    const std::string text = "{\"model\": {\"preset\": \"" + model + "\", \"layers\": " + std::to_string(layers) +
                             "}, \"parallel\": {\"data\": " + std::to_string(ranks) + "}, \"workload\": " + workload +
                             ", \"overlap\": " + overlap + rest + ", \"cluster\": {" + cluster + straggler +
                             "}, \"network\": \"" + network + "\"}";
    const Config config = config_from_json(JsonRef(json_document(text, "test.json")));
    return predict(config, config.workload.steps.front());
  }
};

Case random_case(std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.model = draw.of({"deepseek-v3", "deepseek-v2-lite", "qwen3-235b-a22b"});
  c.workload = draw.of({R"({"phase": "decode", "tokens_per_rank": 64, "context_tokens": 4096})",
                        R"({"phase": "decode", "tokens_per_rank": 256, "context_tokens": 1024})",
                        R"({"phase": "prefill", "tokens_per_rank": 4096, "context_tokens": 1024})",
                        R"({"phase": "prefill", "tokens_per_rank": 8192, "context_tokens": 4096})"});
  c.overlap = draw.of(
      {R"({"schedule": "vllm-ll", "transport": "ll"})", R"({"schedule": "vllm-ll", "transport": "copy-engine"})",
       R"({"schedule": "sglang-decode", "transport": "lsa-ll"})",
       R"({"schedule": "deepseek-decode", "transport": "ll", "sm_control": "none"})",
       R"({"schedule": "vllm-ht", "transport": "ht"})",
       R"({"schedule": "sglang-prefill", "transport": "nccl", "sm_control": "green-context"})",
       R"({"schedule": "deepseek-prefill", "transport": "lsa-ht", "sm_control": "none"})",
       R"({"schedule": "sequential", "transport": "ll"})", R"({"schedule": "sequential", "transport": "copy-engine"})",
       R"({"schedule": "sequential", "transport": "lsa-ht"})"});
  c.rest = draw.of({"", R"(, "execution": {"mode": "graph"})"});
  c.rest += draw.of({"", R"(, "routing": {"kind": "uniform"})", R"(, "routing": {"kind": "zipf", "alpha": 1.2})",
                     R"(, "routing": {"kind": "zipf", "alpha": 0.7, "per_layer": true})"});
  c.cluster = draw.of({R"("gpu": "h200-sxm", "gpus_per_node": 4, "nodes": 2)",
                       R"("gpu": "h100-sxm", "gpus_per_node": 2, "nodes": 4)",
                       R"("gpu": "gb200-nvl72", "gpus_per_node": 8, "nodes": 1)"});
  const std::string slow = draw.of({"none", "compute", "wire", "both"});
  c.slow_compute = slow == "compute" || slow == "both";
  c.slow_wire = slow == "wire" || slow == "both";
  return c;
}

}  // namespace

TEST_CASE("network: no period is shorter than the bound, over ports and in flows") {
  int exact = 0, means = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    for (const char* network : {"ports", "flows"}) {
      CAPTURE(network);
      const Prediction p = c.predict_on(network, 1.5);
      // Not those of the results: a mean is printed as no less than the bound, and the baseline's are not worked out.
      for (const CostedPlan* costed : {&p.split, &p.baseline}) {
        const Period period = steady_period_time(costed->plan, costed->costs);
        const std::int64_t bound = period_bound(costed->plan, costed->costs).bound_ns;
        CHECK(bound > 0);
        CHECK(period.period_ns >= bound);
        exact += period.exact ? 1 : 0;
        means += period.exact ? 0 : 1;
      }
    }
  }
  MESSAGE("exact periods: " << exact << ", means: " << means);
  CHECK(exact > 0);
  CHECK(means > 0);
}

namespace {

/// To 0.1 %: times are rounded, and another rank may end last.
void check_grows(const Case& c, const char* network) {
  std::int64_t step = 0, baseline = 0;
  for (const double slower : {1.001, 1.05, 1.1, 1.3, 2.0}) {
    CAPTURE(slower);
    const Prediction p = c.predict_on(network, slower);
    CHECK(p.result.step_ns >= step - step / 1000);
    CHECK(p.baseline_result.step_ns >= baseline - baseline / 1000);
    step = p.result.step_ns;
    baseline = p.baseline_result.step_ns;
  }
}

}  // namespace

TEST_CASE("network: a rank that is slower makes no step shorter, over ports and in flows") {
  // Exchanges of both ubatches are under way together, the late rank's last.
  Case both = random_case(0);
  both.model = "deepseek-v3";
  both.workload = R"({"phase": "prefill", "tokens_per_rank": 8192, "context_tokens": 4096})";
  both.overlap = R"({"schedule": "vllm-ll", "transport": "copy-engine"})";
  both.rest = R"(, "execution": {"mode": "graph"})";
  both.cluster = R"("gpus_per_node": 8, "nodes": 2)";
  both.layers = 24;
  both.ranks = 16;
  both.slow_compute = true;
  both.slow_wire = false;
  for (const char* network : {"ports", "flows"}) {
    check_grows(both, network);
    for (std::uint64_t seed = 100; seed < 125; ++seed) {
      CAPTURE(seed);
      const Case c = random_case(seed);
      if (c.slow_compute || c.slow_wire) check_grows(c, network);
    }
  }
}
