// What reading a command of vLLM and one of SGLang share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/search/from_serve.h"

namespace dbo {

struct ServeWorkload {
  Phase phase = Phase::Decode;
  bool phase_said = false;  ///< by the command
  std::int64_t tokens = 0;  ///< a data-parallel rank, of a full batch
  std::string tokens_from;  ///< options that say so; empty: assumed
  std::int64_t query_tokens = 1;
  std::int64_t longest = 0;  ///< context the server takes; 0: not said
  std::string longest_from;  ///< the option that says so
};

struct ServeOverlap {
  std::string schedule;
  Transport transport = Transport::Ll;
  int ubatches = 1;
  std::int64_t decode_threshold = 32, prefill_threshold = 512;
  Coordination coordination = Coordination::V1;
  double token_distribution = 0.48;
  int comm_sms = 20, comm_sms_created = 20;
  bool graph = true;
  std::vector<std::int64_t> graph_sizes;  ///< empty: every step has a graph of its own size
};

class ServeReader {
 public:
  static constexpr std::int64_t kMostCount = (1 << 30) - 1;  ///< as in a config

  ServeReader(ServeCommand& command, const ServeHints& hints) : command_(command), hints_(hints) {}

 protected:
  void took(std::string text) { report_.took.push_back(std::move(text)); }
  void assumed(std::string text) { report_.assumed.push_back(std::move(text)); }
  void refused(std::string text) { report_.refused.push_back(std::move(text)); }

  /// A count as the server takes it: from 1 to `most`, with a unit where `readable`. Throws InputError otherwise.
  std::optional<std::int64_t> positive(const std::vector<std::string_view>& names, std::int64_t most = kMostCount,
                                       bool readable = false);
  /// Sizes in tokens or requests. Throws InputError for what is none.
  static std::int64_t graph_size(const std::string& option, const std::string& text);

  void read_model(const std::string& name);
  /// What the name of a checkpoint, `--quantization` and `--kv-cache-dtype` say of the model's precision.
  void read_precision(const std::string& name);
  /// `per_node`: what the command says; 0: nothing.
  void read_cluster(int gpus, int per_node);
  void read_redundant(std::int64_t redundant, const char* from);
  void set_workload(const ServeWorkload& workload);
  FromServe finish(const char* server, std::string_view version, const ServeOverlap& overlap);

  ServeCommand& command_;
  const ServeHints& hints_;
  ModelShape model_;
  GpuSpec gpu_;
  int gpus_ = 1, per_node_ = 1, tensor_ = 1;
  std::int64_t redundant_ = 0;

 private:
  /// Numbers that say nothing of a step but that no server starts with.
  void check_ranges();
  void set_precision(const char* key, Precision value);
  bool read_quantization(std::string_view word, const std::string& from);

  FromServe report_;
  Json model_json_, workload_json_, precision_json_ = Json::object();
};

std::string number_text(std::int64_t value);

FromServe from_vllm(ServeCommand& command, const ServeHints& hints);
FromServe from_sglang(ServeCommand& command, const ServeHints& hints);

}  // namespace dbo
