// The config of a run: what to simulate, with every default resolved and every cross-check done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/fixed_costs.h"
#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/base/model_shape.h"
#include "sim/base/settings.h"
#include "sim/base/transport.h"
#include "sim/batch/batch.h"
#include "sim/batch/settings.h"
#include "sim/batch/workload.h"
#include "sim/model/hardware.h"

namespace dbo {

struct ClusterConfig {
  GpuSpec gpu;
  FabricSpec fabric;
  int nodes = 1;
  int gpus_per_node = 1;
  bool layout_assumed = false;        ///< neither nodes nor gpus_per_node was given
  std::vector<Straggler> stragglers;  ///< no rank twice, none that is as fast as the others

  /// GPUs that share scale-up links: the fabric's, or else the GPU's.
  int link_domain() const { return fabric.link_domain > 0 ? fabric.link_domain : gpu.link_domain; }
  int gpus() const { return nodes * gpus_per_node; }
};

/// data x tensor = expert = the cluster's GPUs.
struct ParallelConfig {
  int data = 1;  ///< ranks that have a batch of their own; each is `tensor` GPUs
  int expert = 1;
  int tensor = 1;
  int redundant_experts = 0;

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct WorkloadConfig {
  std::optional<UniformWorkload> uniform;  ///< the rule, when the batch was given as one
  std::vector<StepBatch> steps;            ///< at least one; each has `parallel.data` ranks
  bool sequence = false;                   ///< given as "steps" or "steps_file": reported step by step and in total

  friend bool operator==(const WorkloadConfig&, const WorkloadConfig&) = default;
};

/// A schedule in notation, as written.
struct NotationConfig {
  std::string compute, comm, order;

  friend bool operator==(const NotationConfig&, const NotationConfig&) = default;
};

struct OverlapConfig {
  std::string schedule = "vllm-ll";  ///< a built-in name; empty when `notation` is there
  std::optional<NotationConfig> notation;
  bool low_latency = true;  ///< send and receive halves; otherwise one comm op
  Transport transport = Transport::Ll;
  int ubatches = 2;
  std::int64_t decode_token_threshold = 32;
  std::int64_t prefill_token_threshold = 512;
  Coordination coordination = Coordination::V1;
  int comm_sms = 20;
  int comm_sms_created = 20;
  SmControl sm_control = SmControl::Limit;
  double token_distribution_threshold = 0.48;

  bool is_sequential() const;  ///< the un-split baseline as a schedule

  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

struct ExecutionConfig {
  Execution mode = Execution::Eager;
  /// Ascending; absent: every step has a graph of its own size.
  std::optional<std::vector<std::int64_t>> graph_sizes;
  /// "cpp", "python" or an object of times, checked; sim/cost's `read_host_costs` turns it into costs.
  Json host = "cpp";

  friend bool operator==(const ExecutionConfig&, const ExecutionConfig&) = default;
};

enum class NetworkModel : std::uint8_t { Ports, Flows };
enum class CostSource : std::uint8_t { Analytical, Profile, Fixed };
enum class Emulate : std::uint8_t { Auto, Off };

struct CostConfig {
  CostSource source = CostSource::Analytical;
  std::string profile;  ///< as written; Profile only
  FixedCosts fixed;     ///< Fixed only

  friend bool operator==(const CostConfig&, const CostConfig&) = default;
};

struct Config {
  std::string file;  ///< what messages call it; relative paths are relative to its folder
  ModelShape model;
  ClusterConfig cluster;
  ParallelConfig parallel;
  WorkloadConfig workload;
  Routing routing;  ///< `redundant` is the resolved parallel.redundant_experts
  OverlapConfig overlap;
  ExecutionConfig execution;
  NetworkModel network = NetworkModel::Ports;
  CostConfig costs;
  Emulate emulate = Emulate::Auto;

  std::string profile_path() const;  ///< of costs.profile, from where the program runs; empty: one that ships
};

/// Reads a config file (comments allowed). Throws InputError with file, pointer, value, what is allowed and the nearest
/// known name: for what is malformed, for unknown keys, and for values that contradict each other. Every file it names
/// is read now, but a cost profile, which only has to exist.
Config load_config(const std::string& path);
Config config_from_json(const JsonRef& ref);

/// The config with every default written out; reading it gives the same config. Presets that were not changed stay
/// names; ranks and requests that repeat are counted; paths stay as written.
Json config_to_json(const Config& config);

/// The step of a workload that is one; `what` works on one step. Throws InputError for a sequence of several.
const StepBatch& only_step(const Config& config, std::string_view what);

/// What deciding and splitting need of it.
DecideSettings decide_settings(const Config& config);

}  // namespace dbo
