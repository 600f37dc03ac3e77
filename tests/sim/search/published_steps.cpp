#include "tests/sim/search/published_steps.h"

#include "sim/base/json_reader.h"
#include "sim/config/config.h"
#include "sim/search/predict.h"

namespace dbo::published {

std::vector<StepRow> read_steps(const std::string& path, std::optional<double> alpha) {
  ObjectReader file{JsonRef(load_json(path))};
  std::vector<StepRow> out;
  for (const JsonRef& ref : file.require("rows").items()) {
    ObjectReader row(ref);
    const std::string name = row.require("name").string(), source = row.require("source").string();
    Config config = config_from_json(row.require("config"));
    if (alpha && config.routing.kind != RoutingKind::Zipf) continue;
    if (alpha) config.routing.alpha = *alpha;
    const Prediction prediction = predict(config, config.workload.steps.front());
    const auto add = [&](std::string_view key, std::string_view quantity, std::string_view unit, double predicted) {
      if (const auto published = row.find(key))
        out.push_back({name, source, std::string(quantity), std::string(unit), published->number(0, 1e12), predicted});
    };
    const double node = config.cluster.gpus_per_node;
    // Of all calls of the rank that ends last, exchanges of the MoE layers.
    std::int64_t waited = 0;
    for (const Bubble& bubble : prediction.result.bubbles)
      if (bubble.lane == kCommLane && bubble.cause == BubbleCause::Peer) waited += bubble.ns;
    const double calls = 2.0 * config.model.moe_layers() * prediction.decision.ubatches;
    add("call_wait_us", "wait of a call for peers", "us", static_cast<double>(waited) / 1000 / calls);
    add("period_us", "layer", "us", static_cast<double>(prediction.result.period.period_ns) / 1000);
    add("step_us", "step", "us", static_cast<double>(prediction.result.step_ns) / 1000);
    add("gain", "gain", "x", prediction.speedup());
    add("baseline_tokens_per_s_per_node", "one batch", "tokens/s/node",
        prediction.tokens_per_s_per_gpu(prediction.baseline_result) * node);
    add("tokens_per_s_per_node", "two batches", "tokens/s/node",
        prediction.tokens_per_s_per_gpu(prediction.result) * node);
  }
  return out;
}

}  // namespace dbo::published
