#include "sim/cost/memory.h"

#include <algorithm>

#include "sim/cost/work.h"

namespace dbo {
namespace {

constexpr double kBf16 = 2;

/// vLLM measured 3.43 GiB for the 51 default decode graphs of a 61-layer DeepSeek-V3 (its pull request 25779).
constexpr double kGraphBytesPerLayer = 3.43 * 1024 * 1024 * 1024 / 51 / 61;

double bytes_of(Precision precision) {
  return half_bytes(precision) / 2.0;
}

std::int64_t whole(double bytes) {
  return static_cast<std::int64_t>(bytes + 0.5);
}

double attention_weight_bytes(const ModelShape& s, int tensor) {
  const AttentionShape& a = s.attention;
  const double all = parameter_counts(s).attention, h = s.hidden;
  double shared = 0, absorbed = 0;
  if (a.kind == AttentionKind::Mla) {
    // The latent projections are on every GPU; what belongs to heads is cut. Decode keeps k's and v's up-projections a
    // second time, in bf16, to absorb them.
    shared = h * (a.kv_lora_rank + a.qk_rope_head_dim + a.q_lora_rank);
    absorbed = static_cast<double>(a.heads) / tensor * (a.qk_nope_head_dim + a.v_head_dim) * a.kv_lora_rank * kBf16;
  } else if (a.kv_heads < tensor) {
    shared = h * 2 * a.kv_heads * a.head_dim;  // fewer heads than GPUs: each has a copy
  }
  return (shared + (all - shared) / tensor) * bytes_of(s.weights) + absorbed;
}

double weight_bytes(const Plan& plan, int slots) {
  const ModelShape& s = plan.shape;
  const ParameterCounts p = parameter_counts(s);
  const int tensor = plan.tensor_parallel;
  const double moe = s.moe_layers(), dense = s.layers - moe;
  return s.layers * attention_weight_bytes(s, tensor) + dense * p.dense_ffn / tensor * bytes_of(s.weights) +
         moe * (p.shared * bytes_of(s.weights) + p.router * kBf16 +
                slots * p.routed_expert * bytes_of(s.expert_weights)) +
         p.embedding * (s.tie_embeddings ? 1 : 2) / tensor * kBf16;
}

/// Cached tokens of a load's requests. A request cut between two ubatches is in both; its second part holds all.
double cached_tokens(const Load& load, int window) {
  double sum = 0;
  double last_seen = 0, last_seq = -1, last_query = 0;
  for (const UbatchLoad& u : load.ubatches) {
    for (std::size_t r = 0; r < u.seq_lens.size(); ++r) {
      const double seq = u.seq_lens[r], query = u.query_start_loc[r + 1] - u.query_start_loc[r];
      const double seen = window > 0 ? std::min<double>(seq, window) : seq;
      if (r == 0 && seq - query == last_seq && query + last_query > 2) sum -= last_seen;
      sum += seen;
      last_seen = seen;
      last_seq = seq;
      last_query = query;
    }
  }
  return sum;
}

double kv_cache_bytes(const Plan& plan, const Load& load) {
  const ModelShape& s = plan.shape;
  int windowed = 0;
  for (int layer = 0; layer < s.layers; ++layer) windowed += s.attention.has_window(layer) ? 1 : 0;
  double per_token = kv_bytes_per_token(s);
  if (s.attention.kind == AttentionKind::Gqa)
    per_token *= std::max(1.0, static_cast<double>(s.attention.kv_heads) / plan.tensor_parallel) / s.attention.kv_heads;
  return per_token *
         ((s.layers - windowed) * cached_tokens(load, 0) + windowed * cached_tokens(load, s.attention.sliding_window));
}

std::int64_t call_tokens(const Plan& plan, const UbatchLoad& u) {
  return (u.padded + plan.tensor_parallel - 1) / plan.tensor_parallel;
}

/// Rows of the experts' buffers: all that may arrive where rows have slots of their own, those that do arrive
/// elsewhere.
double expert_rows(const Plan& plan, std::int64_t tokens, int slots) {
  const double ranks = plan.world.ranks, sent = static_cast<double>(tokens);
  const bool expert_major = !transport_info(plan.transport).dedup_per_rank;
  return expert_major ? slots * ranks * sent : ranks * sent * plan.shape.moe.top_k / ranks;
}

double activation_bytes(const Plan& plan, const Load& load, int slots) {
  const ModelShape& s = plan.shape;
  const AttentionShape& a = s.attention;
  const double q = a.kind == AttentionKind::Mla ? a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim + a.v_head_dim)
                                                : (2 * a.heads + 2 * a.kv_heads) * a.head_dim;
  double bytes = 0;
  for (const UbatchLoad& u : load.ubatches) {
    // Residual, normed input, output of experts and of the shared expert; queries and attention's output.
    bytes += static_cast<double>(u.padded) * (4 * s.hidden + q / plan.tensor_parallel) * kBf16;
    const double rows = expert_rows(plan, call_tokens(plan, u), slots);
    bytes += rows * (dispatch_bytes(s) + 2 * s.moe.intermediate * kBf16 + s.moe.intermediate + s.hidden * kBf16);
  }
  return bytes;
}

}  // namespace

std::int64_t exchange_buffer_bytes(const Plan& plan, std::int64_t tokens) {
  const ModelShape& s = plan.shape;
  const double h = s.hidden, m = static_cast<double>(tokens), ranks = plan.world.ranks;
  const double experts = s.moe.routed_experts + plan.routing.redundant;
  const double scaled = h + 4 * ((s.hidden + 127) / 128);
  const double payload = std::max(dispatch_bytes(s), combine_bytes(s));
  const double slots = transport_info(plan.transport).handle_slots;
  switch (plan.transport) {
    case Transport::Ll: {
      const double dispatch = 16 + std::max(2 * h, scaled), combine = 2 * h + 4 * ((s.hidden + 127) / 128);
      return whole(2 * std::max(m * dispatch, experts * m * combine) + 2 * experts * m * std::max(dispatch, combine));
    }
    case Transport::Ht: {
      const int sms = plan.sm.comm > 0 ? plan.sm.comm : 20;
      const double channels = sms / 2, row = 2 * h + 2048, ring = 256;
      const double near = channels * std::min(plan.world.ranks_per_node, plan.world.ranks) * ring * row;
      const double far = plan.world.nodes() > 1 ? 2 * channels * plan.world.nodes() * ring / 2 * row : 0;
      return whole(near + far);
    }
    case Transport::LsaHt:
      return whole(slots * ranks * m * payload);
    case Transport::LsaLl:
      return whole(slots * experts * m * payload);
    case Transport::CopyEngine:
    case Transport::Nccl:
      return whole(2 * slots * ranks * m * payload);  // packed on one side, received on the other
  }
  return 0;
}

MemoryUse memory_use(const Plan& plan, const GpuSpec& gpu, int graphs, int twins) {
  MemoryUse use;
  use.hbm_bytes = gpu.hbm_bytes;
  if (!plan.shape.has_dims()) return use;
  const int slots = (plan.shape.moe.routed_experts + plan.routing.redundant) / plan.world.ranks;
  use.weights_bytes = whole(weight_bytes(plan, slots));
  std::int64_t tokens = 0;
  for (const Load& load : plan.loads) {
    use.kv_cache_bytes = std::max(use.kv_cache_bytes, whole(kv_cache_bytes(plan, load)));
    use.activation_bytes = std::max(use.activation_bytes, whole(activation_bytes(plan, load, slots)));
    for (const UbatchLoad& u : load.ubatches) tokens = std::max(tokens, call_tokens(plan, u));
  }
  use.exchange_bytes = exchange_buffer_bytes(plan, tokens);
  if (plan.execution == Execution::Graph) {
    use.graph_bytes = whole(kGraphBytesPerLayer * plan.shape.layers * graphs);
    use.twin_bytes = whole(kGraphBytesPerLayer * plan.shape.layers * twins);
  }
  return use;
}

std::vector<std::string> memory_assumptions() {
  return {
      "Memory counts this step's cached tokens, not the blocks a server reserves; draft layers, the framework's own "
      "memory and fragmentation are left out.",
      "A captured graph takes what vLLM measured a layer (3.43 GiB for 51 graphs of 61 layers)."};
}

}  // namespace dbo
