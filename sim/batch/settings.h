// What a server is set to, as far as deciding and splitting a step depend on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/base/settings.h"
#include "sim/base/transport.h"

namespace dbo {

/// Whose rules decide: vLLM's first model runner, its second one, or SGLang.
enum class Coordination : std::uint8_t { V1, Mrv2, Sglang };

std::string_view coordination_name(Coordination coordination);  ///< "v1"
std::vector<std::string_view> coordination_names();

struct DecideSettings {
  Coordination coordination = Coordination::V1;
  int ubatches = 2;
  bool enabled = true;                         ///< false: the server runs without DBO, whatever `ubatches` says
  std::int64_t decode_token_threshold = 32;    ///< vLLM: tokens a rank, inclusive, of uniform decode
  std::int64_t prefill_token_threshold = 512;  ///< the same of everything else
  double token_distribution_threshold = 0.48;  ///< SGLang: share below which a prompt is cut
  Transport transport = Transport::Ll;
  bool low_latency = true;  ///< the schedule has send and receive halves
  int tensor = 1;           ///< GPUs that share a rank's batch

  Execution execution = Execution::Eager;
  /// Sizes of the server's uniform-decode graphs, ascending. Absent: every step, split or not, decode or not, has a
  /// graph of its own size.
  std::optional<std::vector<std::int64_t>> graph_sizes;

  int comm_sms = 20;          ///< SMs asked for, for communication
  int comm_sms_created = 20;  ///< what the comm kernels were created with, where that is a cap
  SmControl sm_control = SmControl::Limit;
  int gpu_sms = 132;
  bool amd = false;
  int green_context_granularity = 8, green_context_minimum = 8;

  /// Whether a step may be split at all.
  bool can_split() const { return enabled && ubatches >= 2; }
};

}  // namespace dbo
