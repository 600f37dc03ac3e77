// The fully resolved config as JSON.
#include <string>

#include "sim/config/config.h"
#include "sim/model/presets.h"

namespace dbo {
namespace {

/// Microseconds, whole where they are.
Json us_json(Ns time) {
  if (time.count() % 1000 == 0) return time.count() / 1000;
  return static_cast<double>(time.count()) / 1000.0;
}

Json attention_json(const AttentionShape& a) {
  const bool mla = a.kind == AttentionKind::Mla;
  Json out = Json::object();
  out.set("kind", mla ? "mla" : "gqa");
  out.set("heads", a.heads);
  if (mla) {
    out.set("q_lora_rank", a.q_lora_rank);
    out.set("kv_lora_rank", a.kv_lora_rank);
    out.set("qk_nope_head_dim", a.qk_nope_head_dim);
    out.set("qk_rope_head_dim", a.qk_rope_head_dim);
    out.set("v_head_dim", a.v_head_dim);
    if (a.index_heads > 0) {
      Json& index = out.set("sparse_index", Json::object());
      index.set("heads", a.index_heads);
      index.set("head_dim", a.index_head_dim);
      index.set("top_k", a.index_top_k);
    }
  } else {
    out.set("kv_heads", a.kv_heads);
    out.set("head_dim", a.head_dim);
    out.set("qk_norm", a.qk_norm);
    out.set("sliding_window", a.sliding_window);
    out.set("window_period", a.window_period);
  }
  out.set("qkv_bias", a.qkv_bias);
  return out;
}

Json moe_json(const MoeShape& m) {
  static constexpr std::string_view kScoring[] = {"softmax", "sigmoid", "softmax_over_top_k"};
  Json out = Json::object();
  out.set("routed_experts", m.routed_experts);
  out.set("top_k", m.top_k);
  out.set("intermediate", m.intermediate);
  out.set("shared_experts", m.shared_experts);
  out.set("shared_intermediate", m.shared_intermediate);
  out.set("groups", m.groups);
  out.set("group_top_k", m.group_top_k);
  out.set("scoring", kScoring[static_cast<std::size_t>(m.scoring)]);
  out.set("norm_top_k", m.norm_top_k);
  out.set("scaling", m.scaling);
  return out;
}

bool is_preset(const ModelShape& model) {
  for (const std::string_view name : model_names())
    if (name == model.name) return model_preset(name) == model;
  return false;
}

Json model_json(const ModelShape& model) {
  if (is_preset(model)) return model.name;
  Json out = Json::object();
  if (!model.name.empty()) out.set("name", model.name);
  out.set("layers", model.layers);
  out.set("dense_layers", model.dense_layers);
  if (!model.has_dims()) return out;
  out.set("moe_period", model.moe_period);
  out.set("hidden", model.hidden);
  out.set("attention", attention_json(model.attention));
  out.set("moe", moe_json(model.moe));
  out.set("dense_intermediate", model.dense_intermediate);
  out.set("vocab", model.vocab);
  out.set("mtp_layers", model.mtp_layers);
  out.set("tie_embeddings", model.tie_embeddings);
  out.set("max_position", model.max_position);
  Json& precision = out.set("precision", Json::object());
  precision.set("weights", precision_name(model.weights));
  precision.set("expert_weights", precision_name(model.expert_weights));
  precision.set("kv_cache", precision_name(model.kv_cache));
  precision.set("dispatch", precision_name(model.dispatch));
  precision.set("combine", precision_name(model.combine));
  return out;
}

/// The keys of the preset files carry units; a value is written so that reading gives the same number.
Json gpu_json(const GpuSpec& gpu) {
  for (const std::string_view name : gpu_names())
    if (name == gpu.name && gpu_preset(name) == gpu) return gpu.name;
  constexpr double kMebi = 1024.0 * 1024.0, kGibi = 1024.0 * kMebi;
  Json out = Json::object();
  out.set("name", gpu.name);
  out.set("vendor", gpu.amd ? "amd" : "nvidia");
  out.set("sms", gpu.sms);
  out.set("bf16_tflops", gpu.bf16_flops / 1e12);
  out.set("fp8_tflops", gpu.fp8_flops / 1e12);
  out.set("fp4_tflops", gpu.fp4_flops / 1e12);
  out.set("hbm_gb_per_s", gpu.hbm_bytes_per_s / 1e9);
  out.set("hbm_gib", static_cast<double>(gpu.hbm_bytes) / kGibi);
  out.set("l2_mib", static_cast<double>(gpu.l2_bytes) / kMebi);
  out.set("link_gb_per_s", gpu.link_bytes_per_s / 1e9);
  out.set("peer_link_gb_per_s", gpu.peer_link_bytes_per_s / 1e9);
  out.set("link_domain", gpu.link_domain);
  out.set("nic_gb_per_s", gpu.nic_bytes_per_s / 1e9);
  out.set("green_context_granularity", gpu.green_context_granularity);
  out.set("green_context_minimum", gpu.green_context_minimum);
  if (!gpu.source.empty()) out.set("source", gpu.source);
  return out;
}

Json fabric_json(const FabricSpec& fabric) {
  for (const std::string_view name : fabric_names())
    if (name == fabric.name && fabric_preset(name) == fabric) return fabric.name;
  Json out = Json::object();
  out.set("name", fabric.name);
  out.set("nic_gb_per_s", fabric.nic_bytes_per_s / 1e9);
  out.set("latency_us", fabric.latency_s / 1e-6);
  if (fabric.link_domain > 0) out.set("link_domain", fabric.link_domain);
  if (!fabric.source.empty()) out.set("source", fabric.source);
  return out;
}

Json stragglers_json(const std::vector<Straggler>& stragglers) {
  Json out = Json::array();
  for (const Straggler& s : stragglers) {
    Json& one = out.push(Json::object());
    Json& ranks = one.set("ranks", Json::array());
    for (const int rank : s.ranks) ranks.push(rank);
    one.set("compute_factor", s.compute_factor);
    one.set("wire_factor", s.wire_factor);
  }
  return out;
}

Json request_json(const Request& request, std::int64_t count) {
  Json out = Json::object();
  out.set("query", request.query);
  out.set("seq", request.seq);
  if (!request.blocks.empty()) {
    Json& blocks = out.set("blocks", Json::array());
    for (const std::int64_t block : request.blocks) blocks.push(block);
  }
  if (count > 1) out.set("count", count);
  return out;
}

Json rank_json(const RankBatch& rank, std::int64_t repeat) {
  Json out = Json::object();
  Json& requests = out.set("requests", Json::array());
  for (std::size_t i = 0; i < rank.requests.size();) {
    std::size_t end = i + 1;
    while (end < rank.requests.size() && rank.requests[end] == rank.requests[i]) ++end;
    requests.push(request_json(rank.requests[i], static_cast<std::int64_t>(end - i)));
    i = end;
  }
  if (rank.padded_tokens) out.set("padded_tokens", *rank.padded_tokens);
  if (rank.padded_requests) out.set("padded_requests", *rank.padded_requests);
  if (!rank.allow) out.set("allow", false);
  if (repeat > 1) out.set("repeat", repeat);
  return out;
}

Json step_json(const StepBatch& step) {
  Json out = Json::object();
  Json& ranks = out.set("ranks", Json::array());
  for (std::size_t i = 0; i < step.ranks.size();) {
    std::size_t end = i + 1;
    while (end < step.ranks.size() && step.ranks[end] == step.ranks[i]) ++end;
    ranks.push(rank_json(step.ranks[i], static_cast<std::int64_t>(end - i)));
    i = end;
  }
  out.set("block_size", step.block_size);
  out.set("draft_tokens", step.draft_tokens);
  return out;
}

Json uniform_json(const UniformWorkload& w) {
  Json out = Json::object();
  out.set("phase", phase_names()[static_cast<std::size_t>(w.phase)]);
  if (w.phase == Phase::Mixed) {
    out.set("decode_tokens", w.decode_tokens);
    out.set("prefill_tokens", w.prefill_tokens);
  } else {
    out.set("tokens_per_rank", w.phase == Phase::Decode ? w.decode_tokens : w.prefill_tokens);
  }
  out.set("context_tokens", w.context_tokens);
  if (w.phase != Phase::Prefill) out.set("query_tokens", w.query_tokens);
  out.set("context_spread", w.context_spread);
  out.set("token_spread", w.token_spread);
  out.set("seed", w.seed);
  return out;
}

Json workload_json(const WorkloadConfig& workload) {
  if (workload.uniform) return uniform_json(*workload.uniform);
  if (!workload.sequence) return step_json(workload.steps.front());
  Json out = Json::object();
  Json& steps = out.set("steps", Json::array());
  for (const StepBatch& step : workload.steps) steps.push(step_json(step));
  return out;
}

Json routing_json(const Routing& routing) {
  static constexpr std::string_view kKinds[] = {"balanced", "uniform", "zipf", "table"};
  Json out = Json::object();
  out.set("kind", kKinds[static_cast<std::size_t>(routing.kind)]);
  if (routing.kind == RoutingKind::Zipf) out.set("alpha", routing.alpha);
  if (routing.kind == RoutingKind::Table) {
    Json& table = out.set("table", Json::array());
    for (const std::vector<double>& shares : routing.table) {
      Json& row = table.push(Json::array());
      for (const double share : shares) row.push(share);
    }
  }
  out.set("seed", routing.seed);
  out.set("per_layer", routing.per_layer);
  return out;
}

Json overlap_json(const OverlapConfig& overlap) {
  static constexpr std::string_view kSmControls[] = {"limit", "green-context", "none"};
  Json out = Json::object();
  if (overlap.notation) {
    Json& notation = out.set("schedule", Json::object());
    notation.set("compute", overlap.notation->compute);
    notation.set("comm", overlap.notation->comm);
    notation.set("order", overlap.notation->order);
  } else {
    out.set("schedule", overlap.schedule);
  }
  out.set("transport", transport_info(overlap.transport).name);
  out.set("ubatches", overlap.ubatches);
  out.set("decode_token_threshold", overlap.decode_token_threshold);
  out.set("prefill_token_threshold", overlap.prefill_token_threshold);
  out.set("coordination", coordination_name(overlap.coordination));
  out.set("comm_sms", overlap.comm_sms);
  out.set("comm_sms_created", overlap.comm_sms_created);
  out.set("sm_control", kSmControls[static_cast<std::size_t>(overlap.sm_control)]);
  out.set("token_distribution_threshold", overlap.token_distribution_threshold);
  return out;
}

Json execution_json(const ExecutionConfig& execution) {
  Json out = Json::object();
  out.set("mode", execution.mode == Execution::Graph ? "graph" : "eager");
  if (execution.graph_sizes) {
    Json& sizes = out.set("graph_sizes", Json::array());
    for (const std::int64_t size : *execution.graph_sizes) sizes.push(size);
  }
  out.set("host", execution.host);
  return out;
}

Json exchange_json(const FixedCosts::Exchange& exchange, bool combine) {
  Json out = Json::object();
  out.set("send_us", us_json(exchange.send));
  out.set("wire_us", us_json(exchange.wire));
  out.set("recv_us", us_json(exchange.recv));
  if (combine) out.set("copy_us", us_json(exchange.copy));
  return out;
}

Json costs_json(const CostConfig& costs) {
  Json out = Json::object();
  switch (costs.source) {
    case CostSource::Analytical:
      out.set("source", "analytical");
      break;
    case CostSource::Profile:
      out.set("source", "profile");
      if (!costs.profile.empty()) out.set("file", costs.profile);
      break;
    case CostSource::Fixed:
      out.set("source", "fixed");
      out.set("A0_us", us_json(costs.fixed.a0));
      out.set("A1_us", us_json(costs.fixed.a1));
      out.set("MLP_us", us_json(costs.fixed.mlp));
      out.set("S_us", us_json(costs.fixed.s));
      out.set("FFN_us", us_json(costs.fixed.ffn));
      out.set("D", exchange_json(costs.fixed.dispatch, false));
      out.set("C", exchange_json(costs.fixed.combine, true));
      out.set("host_us", us_json(costs.fixed.host));
      break;
  }
  return out;
}

}  // namespace

Json config_to_json(const Config& config) {
  Json out = Json::object();
  out.set("model", model_json(config.model));
  Json& cluster = out.set("cluster", Json::object());
  cluster.set("gpu", gpu_json(config.cluster.gpu));
  cluster.set("gpus_per_node", config.cluster.gpus_per_node);
  cluster.set("nodes", config.cluster.nodes);
  cluster.set("fabric", fabric_json(config.cluster.fabric));
  if (!config.cluster.stragglers.empty()) cluster.set("stragglers", stragglers_json(config.cluster.stragglers));
  Json& parallel = out.set("parallel", Json::object());
  parallel.set("data", config.parallel.data);
  parallel.set("expert", config.parallel.expert);
  parallel.set("tensor", config.parallel.tensor);
  parallel.set("redundant_experts", config.parallel.redundant_experts);
  out.set("workload", workload_json(config.workload));
  out.set("routing", routing_json(config.routing));
  out.set("overlap", overlap_json(config.overlap));
  out.set("execution", execution_json(config.execution));
  out.set("network", config.network == NetworkModel::Ports ? "ports" : "flows");
  out.set("costs", costs_json(config.costs));
  out.set("emulate", config.emulate == Emulate::Auto ? "auto" : "off");
  return out;
}

}  // namespace dbo
