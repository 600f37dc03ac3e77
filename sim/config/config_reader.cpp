// Puts the parts of a config together and checks what holds between them.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "sim/base/error.h"
#include "sim/config/readers.h"
#include "sim/model/presets.h"

namespace dbo {
namespace {

std::string text(std::int64_t value) {
  return std::to_string(value);
}

/// The member `key` of `ref`, or `ref` itself.
JsonRef place(const JsonRef& ref, std::string_view key) {
  const Json* value = ref.value().find(key);
  return value == nullptr ? ref : JsonRef(ref, *value);
}

ParallelConfig read_parallel(const JsonRef& ref) {
  constexpr int kMaxGpus = 1 << 16;
  ObjectReader reader(ref, "an object that describes the parallelism");
  ParallelConfig parallel;
  reader.find("data");
  const auto tensor = reader.find("tensor");
  const auto expert = reader.find("expert");
  const auto redundant = reader.find("redundant_experts");
  reader.done();
  parallel.data = static_cast<int>(reader.require("data").integer(1, kMaxGpus));
  if (tensor) parallel.tensor = static_cast<int>(tensor->integer(1, kMaxGpus));
  const std::int64_t gpus = std::int64_t{parallel.data} * parallel.tensor;
  parallel.expert = static_cast<int>(expert ? expert->integer(1, kMaxGpus) : gpus);
  if (redundant) parallel.redundant_experts = static_cast<int>(redundant->integer(0, kMaxGpus));
  if (gpus != parallel.expert)
    place(ref, "expert")
        .fail("must be data x tensor (" + text(parallel.data) + " x " + text(parallel.tensor) + " = " + text(gpus) +
              "), is " + text(parallel.expert));
  return parallel;
}

/// The most GPUs a node can have that divide into whole nodes: nobody builds one beyond its scale-up links.
int default_gpus_per_node(int gpus, int link_domain) {
  int per_node = std::min(gpus, link_domain);
  while (gpus % per_node != 0) --per_node;
  return per_node;
}

/// GPUs [0, gpus) that are slower than the others. An entry whose factors are 1 says nothing and is left out.
std::vector<Straggler> read_stragglers(const JsonRef& ref, int gpus) {
  constexpr double kMostFactor = 1000;
  std::vector<Straggler> out;
  std::vector<char> named(static_cast<std::size_t>(gpus), 0);
  for (const JsonRef& item : ref.items()) {
    ObjectReader reader(item, "an object that says which ranks are slow");
    reader.find("ranks");
    const auto compute = reader.find("compute_factor"), wire = reader.find("wire_factor");
    reader.done();
    const JsonRef ranks = reader.require("ranks");
    Straggler straggler;
    for (const JsonRef& rank : ranks.items()) {
      const auto number = static_cast<int>(rank.integer(0, gpus - 1));
      if (named[static_cast<std::size_t>(number)]) rank.fail("names rank " + text(number) + " a second time");
      named[static_cast<std::size_t>(number)] = 1;
      straggler.ranks.push_back(number);
    }
    if (straggler.ranks.empty()) ranks.fail("must name at least one rank");
    if (!compute && !wire) item.fail("needs \"compute_factor\" or \"wire_factor\"");
    if (compute) straggler.compute_factor = compute->number(1, kMostFactor);
    if (wire) straggler.wire_factor = wire->number(1, kMostFactor);
    std::sort(straggler.ranks.begin(), straggler.ranks.end());
    if (straggler.compute_factor > 1 || straggler.wire_factor > 1) out.push_back(std::move(straggler));
  }
  return out;
}

void assume_layout(ClusterConfig& cluster, int gpus) {
  cluster.gpus_per_node = default_gpus_per_node(gpus, cluster.link_domain());
  cluster.nodes = gpus / cluster.gpus_per_node;
  cluster.layout_assumed = true;
}

ClusterConfig read_cluster(const std::optional<JsonRef>& ref, const ParallelConfig& parallel) {
  ClusterConfig cluster;
  cluster.gpus_per_node = parallel.expert;
  if (!ref) {
    cluster.gpu = gpu_preset("h200-sxm");
    cluster.fabric = fabric_preset("cx7-400g");
    assume_layout(cluster, parallel.expert);
    return cluster;
  }
  ObjectReader reader(*ref, "an object that describes the cluster");
  const auto gpu = reader.find("gpu");
  cluster.gpu = gpu ? gpu_from_object(*gpu) : gpu_preset("h200-sxm");
  const auto fabric = reader.find("fabric");
  cluster.fabric = fabric ? fabric_from_object(*fabric) : fabric_preset("cx7-400g");
  const auto per_node = reader.find("gpus_per_node");
  const auto nodes = reader.find("nodes");
  const auto stragglers = reader.find("stragglers");
  if (per_node) cluster.gpus_per_node = static_cast<int>(per_node->integer(1, 1 << 16));
  if (nodes) cluster.nodes = static_cast<int>(nodes->integer(1, 1 << 16));
  reader.done();
  if (!per_node && !nodes) assume_layout(cluster, parallel.expert);
  // With one of the two, the other follows.
  if (nodes && !per_node && parallel.expert % cluster.nodes == 0)
    cluster.gpus_per_node = parallel.expert / cluster.nodes;
  if (per_node && !nodes && parallel.expert % cluster.gpus_per_node == 0)
    cluster.nodes = parallel.expert / cluster.gpus_per_node;
  const std::int64_t gpus = std::int64_t{cluster.nodes} * cluster.gpus_per_node;
  if (gpus != parallel.expert)
    ref->fail("nodes x gpus_per_node (" + text(cluster.nodes) + " x " + text(cluster.gpus_per_node) + " = " +
              text(gpus) + ") must be /parallel/expert, is " + text(parallel.expert));
  if (stragglers) cluster.stragglers = read_stragglers(*stragglers, parallel.expert);
  return cluster;
}

ModelShape read_model(const JsonRef& ref, const CostConfig& costs, const ParallelConfig& parallel) {
  ModelShape model = model_from_object(ref);
  if (const Json* hf = ref.value().is_object() ? ref.value().find("hf_config") : nullptr;
      hf != nullptr && ref.value().find("name") == nullptr)
    model.name = hf->as_string();  // as written: a name must not depend on where the file lies
  if (model.has_dims()) return model;
  if (costs.source != CostSource::Fixed)
    ref.fail("must have the model's dimensions (\"hidden\" and so on): layers alone are enough only with fixed costs");
  // Enough of a model for fixed costs: a shared expert, and one routed expert a rank.
  model.moe.routed_experts = parallel.expert;
  model.moe.top_k = 1;
  return model;
}

/// The smallest number of replicas that lets every rank hold as many experts.
int default_redundant(int experts, int ranks) {
  return (ranks - experts % ranks) % ranks;
}

void resolve_redundant(const JsonRef& parallel_ref, const ModelShape& model, ParallelConfig& parallel) {
  const int experts = model.moe.routed_experts;
  if (parallel_ref.value().find("redundant_experts") == nullptr) {
    parallel.redundant_experts = default_redundant(experts, parallel.expert);
    return;
  }
  if ((experts + parallel.redundant_experts) % parallel.expert == 0) return;
  place(parallel_ref, "redundant_experts")
      .fail("with the " + text(experts) + " routed experts must make a multiple of /parallel/expert (" +
            text(parallel.expert) + "), for example " + text(default_redundant(experts, parallel.expert)) + ", is " +
            text(parallel.redundant_experts));
}

void check_tensor(const JsonRef& parallel_ref, const ModelShape& model, const ParallelConfig& parallel) {
  if (model.has_dims() && model.attention.heads % parallel.tensor != 0)
    place(parallel_ref, "tensor")
        .fail("must divide the " + text(model.attention.heads) + " attention heads, is " + text(parallel.tensor));
}

std::vector<double> read_shares(const JsonRef& ref, const ModelShape& model) {
  const std::vector<JsonRef> items = ref.items();
  if (static_cast<int>(items.size()) != model.moe.routed_experts)
    ref.fail("must have a share for each of the " + text(model.moe.routed_experts) + " routed experts, has " +
             text(static_cast<std::int64_t>(items.size())));
  std::vector<double> shares;
  double sum = 0;
  for (const JsonRef& item : items) {
    shares.push_back(item.number(0, 1));
    sum += shares.back();
  }
  // Written shares are rounded; more than this is a row that was not normalised.
  constexpr double kTolerance = 1e-3;
  if (std::abs(sum - 1) > kTolerance) {
    std::string sum_text;
    append_json_number(sum_text, sum);
    ref.fail("must have shares that sum to 1, they sum to " + sum_text);
  }
  return shares;
}

/// One row for all layers, or a row a layer: rows for the MoE layers alone are spread, dense layers having no routing.
std::vector<std::vector<double>> read_table(const JsonRef& ref, const ModelShape& model) {
  std::vector<std::vector<double>> rows;
  for (const JsonRef& row : ref.items()) rows.push_back(read_shares(row, model));
  const auto count = static_cast<int>(rows.size());
  if (count == 1 || count == model.layers) return rows;
  if (count != model.moe_layers())
    ref.fail("must have one row, or one for each of the " + text(model.moe_layers()) + " MoE layers or " +
             text(model.layers) + " layers, has " + text(count));
  std::vector<std::vector<double>> by_layer(static_cast<std::size_t>(model.layers));
  std::size_t next = 0;
  for (int layer = 0; layer < model.layers; ++layer)
    by_layer[static_cast<std::size_t>(layer)] =
        model.is_moe_layer(layer)
            ? rows[next++]
            : std::vector<double>(static_cast<std::size_t>(model.moe.routed_experts), 1.0 / model.moe.routed_experts);
  return by_layer;
}

}  // namespace

std::string path_beside(const std::string& file, const std::string& path) {
  return (std::filesystem::path(file).parent_path() / path).string();
}

std::string Config::profile_path() const {
  return costs.profile.empty() ? "" : path_beside(file, costs.profile);
}

Routing read_routing(const std::optional<JsonRef>& ref, const ModelShape& model) {
  Routing routing;
  if (!ref) return routing;
  ObjectReader reader(*ref, "an object that describes the routing");
  if (const auto value = reader.find("kind"))
    routing.kind = static_cast<RoutingKind>(value->one_of({"balanced", "uniform", "zipf", "table"}, "routing kind"));
  if (routing.kind == RoutingKind::Zipf) routing.alpha = reader.require("alpha").number(0, 16);
  if (routing.kind == RoutingKind::Table) routing.table = read_table(reader.require("table"), model);
  if (const auto value = reader.find("seed")) routing.seed = static_cast<std::uint64_t>(value->count());
  if (const auto value = reader.find("per_layer")) routing.per_layer = value->boolean();
  reader.done();
  return routing;
}

CostConfig read_costs(const std::optional<JsonRef>& ref) {
  CostConfig costs;
  if (!ref) return costs;
  ObjectReader reader(*ref, "an object that says where costs come from");
  costs.source =
      static_cast<CostSource>(reader.require("source").one_of({"analytical", "profile", "fixed"}, "source of costs"));
  switch (costs.source) {
    case CostSource::Analytical:
      break;
    case CostSource::Profile: {
      const auto file = reader.find("file");
      if (!file) break;
      costs.profile = file->string();
      const std::string path = path_beside(ref->file(), costs.profile);
      if (!std::filesystem::is_regular_file(path))
        file->fail("must be the path of a profile, there is no file " + path);
      break;
    }
    case CostSource::Fixed:
      costs.fixed = read_fixed_costs(reader);
      break;
  }
  reader.done();
  return costs;
}

Config load_config(const std::string& path) {
  return config_from_json(JsonRef(load_json(path, {.comments = true})));
}

Config config_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "an object: the config");
  if (reader.has("architectures") || reader.has("model_type"))
    throw InputError(ref.file(), "",
                     "is a Hugging Face config, of a model: name it in a config, as \"model\": {\"hf_config\": FILE}");
  // Every key is known before one is required: a misspelt key is reported as that, not as one that is missing.
  if (const auto schema = reader.find("$schema")) schema->string();  // for editors
  for (const std::string_view key : {"model", "parallel", "workload"}) reader.find(key);
  const auto cluster = reader.find("cluster");
  const auto routing = reader.find("routing");
  const auto overlap = reader.find("overlap");
  const auto execution = reader.find("execution");
  const auto network = reader.find("network");
  const auto costs = reader.find("costs");
  const auto emulate = reader.find("emulate");
  reader.done();
  const JsonRef model = reader.require("model");
  const JsonRef parallel = reader.require("parallel");
  const JsonRef workload = reader.require("workload");

  Config config;
  config.file = ref.file();
  config.costs = read_costs(costs);
  config.parallel = read_parallel(parallel);
  config.model = read_model(model, config.costs, config.parallel);
  resolve_redundant(parallel, config.model, config.parallel);
  check_tensor(parallel, config.model, config.parallel);
  config.cluster = read_cluster(cluster, config.parallel);
  config.routing = read_routing(routing, config.model);
  config.routing.redundant = config.parallel.redundant_experts;
  config.overlap = read_overlap(overlap);
  check_sms(overlap.value_or(ref), config.overlap, config.cluster.gpu);
  config.execution = read_execution(execution);
  if (network) config.network = static_cast<NetworkModel>(network->one_of({"ports", "flows"}, "network model"));
  if (emulate) config.emulate = static_cast<Emulate>(emulate->one_of({"auto", "off"}, "emulate"));
  config.workload = read_workload(workload, config.parallel.data);
  return config;
}

const StepBatch& only_step(const Config& config, std::string_view what) {
  const std::size_t steps = config.workload.steps.size();
  if (steps != 1)
    throw InputError(config.file, "/workload",
                     "is a sequence of " + text(static_cast<std::int64_t>(steps)) + " steps, " + std::string(what) +
                         " works on one: give that step's \"ranks\" as the workload");
  return config.workload.steps.front();
}

DecideSettings decide_settings(const Config& config) {
  const OverlapConfig& overlap = config.overlap;
  DecideSettings settings;
  settings.coordination = overlap.coordination;
  settings.ubatches = overlap.ubatches;
  settings.enabled = !overlap.is_sequential();
  settings.decode_token_threshold = overlap.decode_token_threshold;
  settings.prefill_token_threshold = overlap.prefill_token_threshold;
  settings.token_distribution_threshold = overlap.token_distribution_threshold;
  settings.transport = overlap.transport;
  settings.low_latency = overlap.low_latency;
  settings.tensor = config.parallel.tensor;
  settings.execution = config.execution.mode;
  settings.graph_sizes = config.execution.graph_sizes;
  settings.comm_sms = overlap.comm_sms;
  settings.comm_sms_created = overlap.comm_sms_created;
  settings.sm_control = overlap.sm_control;
  settings.gpu_sms = config.cluster.gpu.sms;
  settings.amd = config.cluster.gpu.amd;
  settings.green_context_granularity = config.cluster.gpu.green_context_granularity;
  settings.green_context_minimum = config.cluster.gpu.green_context_minimum;
  return settings;
}

}  // namespace dbo
