#include "sim/cost/work.h"

#include <algorithm>

namespace dbo {
namespace {

using Kind = KernelWork::Kind;

constexpr double kBf16 = 2;  // bytes of an activation

double bytes_of(Precision precision) {
  return half_bytes(precision) / 2.0;
}

/// Bytes of one weight, with the fp32 scale of each 128 x 128 block.
double weight_bytes_of(Precision precision) {
  const double scale = precision == Precision::Fp8 || precision == Precision::Fp4 ? 4.0 / (128 * 128) : 0;
  return bytes_of(precision) + scale;
}

/// GEMMs on quantised weights read quantised activations; a kernel before them writes those.
Precision activation_of(Precision weights) {
  return weights == Precision::Fp4 ? Precision::Bf16 : weights;
}

class OpWork {
 public:
  explicit OpWork(const OpContext& context) : c_(context), s_(*context.shape) {}

  std::vector<KernelWork> take() { return std::move(out_); }

  void a0();
  void a1();
  void mlp();
  void shared();
  void dense();
  void embedding();
  void head();

 private:
  KernelWork& add(Kind kind, std::string_view name) {
    KernelWork& work = out_.emplace_back();
    work.kind = kind;
    work.name = name;
    return work;
  }
  void memory(std::string_view name, double bytes, int kernels = 1) {
    KernelWork& work = add(Kind::Memory, name);
    work.act_bytes = bytes;
    work.kernels = kernels;
  }
  void gemm(std::string_view name, double m, double k, double n, Precision precision) {
    if (m <= 0) return;
    KernelWork& work = add(Kind::Gemm, name);
    work.m = m;
    work.n = n;
    work.k = k;
    work.precision = precision;
    work.flops = 2 * m * n * k;
    work.weight_bytes = n * k * weight_bytes_of(precision);
    work.act_bytes = m * k * bytes_of(activation_of(precision)) + m * n * kBf16;
  }
  void grouped(std::string_view name, double k, double n);
  void heads_gemm(std::string_view name, double m, double k, double n);
  /// Residual add and norm: two reads, two writes.
  void norm(std::string_view name) { memory(name, c_.tokens * s_.hidden * kBf16 * 4); }
  void quantise(std::string_view name, double elements) {
    if (s_.weights == Precision::Fp8) memory(name, elements * (kBf16 + 1));
  }
  void swiglu(double rows, double width, Precision precision) {
    add(Kind::Activation, "swiglu").act_bytes = rows * width * (2 * kBf16 + bytes_of(activation_of(precision)));
  }
  double heads() const { return static_cast<double>(s_.attention.heads) / c_.tensor_parallel; }
  double kv_heads() const { return std::max(static_cast<double>(s_.attention.kv_heads) / c_.tensor_parallel, 1.0); }
  const AttentionLoad& core_load() const { return s_.attention.index_top_k > 0 ? c_.sparse : c_.attention; }
  void mla_a0();
  void gqa_a0();
  void indexer();
  void mla_core();
  void gqa_core();
  void tensor(Kind kind, std::string_view name) {
    if (c_.tensor_parallel > 1) add(kind, name).act_bytes = c_.tokens * s_.hidden * kBf16;
  }

  const OpContext& c_;
  const ModelShape& s_;
  std::vector<KernelWork> out_;
};

/// One [m, k] x [k, n] product for each head, in bf16.
void OpWork::heads_gemm(std::string_view name, double m, double k, double n) {
  if (m <= 0) return;
  KernelWork& work = add(Kind::BatchedGemm, name);
  work.flops = 2 * m * heads() * k * n;
  work.weight_bytes = heads() * k * n * kBf16;
  work.act_bytes = m * heads() * (k + n) * kBf16;
}

void OpWork::grouped(std::string_view name, double k, double n) {
  KernelWork& work = add(c_.expert_major ? Kind::MaskedGemm : Kind::GroupedGemm, name);
  work.precision = s_.expert_weights;
  work.n = n;
  work.k = k;
  work.rows.assign(c_.expert_rows.begin(), c_.expert_rows.end());
  double rows = 0, used = 0;
  for (const double r : work.rows) {
    rows += r;
    used += std::min(r, 1.0);  // an expert without rows reads no weights; less than one row is a chance of one
  }
  work.flops = 2 * rows * n * k;
  work.weight_bytes = used * n * k * weight_bytes_of(work.precision);
  work.act_bytes = rows * (k * bytes_of(activation_of(work.precision)) + n * kBf16);
}

void OpWork::mla_a0() {
  const AttentionShape& a = s_.attention;
  const double t = c_.tokens, latent = a.kv_lora_rank + a.qk_rope_head_dim;
  const double q_dim = heads() * (a.qk_nope_head_dim + a.qk_rope_head_dim);
  if (a.q_lora_rank > 0) {
    gemm("qkv_a", t, s_.hidden, a.q_lora_rank + latent, s_.weights);
    memory("q, kv norm", t * (a.q_lora_rank + latent) * kBf16 * 2);
    quantise("quantise q", t * a.q_lora_rank);
    gemm("q_b", t, a.q_lora_rank, q_dim, s_.weights);
  } else {
    gemm("q, kv_a", t, s_.hidden, q_dim + latent, s_.weights);
    memory("kv norm", t * latent * kBf16 * 2);
  }
  if (a.index_top_k > 0) indexer();
  const AttentionLoad& load = core_load();
  gemm("kv_b", load.prefill_context, a.kv_lora_rank, heads() * (a.qk_nope_head_dim + a.v_head_dim), s_.weights);
  heads_gemm("absorb", load.decode_tokens, a.qk_nope_head_dim, a.kv_lora_rank);
  // Rotates q's rope part in place; prefill writes whole keys for every head, decode the latent into the cache.
  const double rope = t * heads() * a.qk_rope_head_dim * kBf16 * 2 + t * latent * kBf16 * 2;
  const double keys = load.prefill_context * heads() * (a.qk_nope_head_dim + a.qk_rope_head_dim) * kBf16;
  memory("rope, cache", rope + keys, 2);
}

/// DeepSeek-V3.2's lightning indexer: projections, scores of every cached token, top-k.
void OpWork::indexer() {
  const AttentionShape& a = s_.attention;
  const double width = static_cast<double>(a.index_heads) * a.index_head_dim;
  gemm("index q", c_.tokens, a.q_lora_rank, width, s_.weights);
  gemm("index k, weights", c_.tokens, s_.hidden, a.index_head_dim + a.index_heads, s_.weights);
  const double pairs = c_.attention.decode_pairs + c_.attention.prefill_pairs;
  KernelWork& scores = add(Kind::PrefillCore, "index scores");
  scores.precision = Precision::Fp8;
  scores.flops = pairs * width * 2;
  scores.weight_bytes = (c_.attention.decode_cache + c_.attention.prefill_context) * (a.index_head_dim + 4);
  memory("index top-k", pairs * 4 * 2);
}

void OpWork::gqa_a0() {
  const AttentionShape& a = s_.attention;
  const double width = (heads() + 2 * kv_heads()) * a.head_dim;
  gemm("qkv", c_.tokens, s_.hidden, width, s_.weights);
  memory("rope, cache", c_.tokens * width * kBf16 * 2, a.qk_norm ? 2 : 1);
}

void OpWork::a0() {
  tensor(Kind::TensorGather, "gather tokens");
  norm("add, norm");
  if (s_.attention.kind == AttentionKind::Mla) {
    mla_a0();
  } else {
    gqa_a0();
  }
}

void OpWork::mla_core() {
  const AttentionShape& a = s_.attention;
  const AttentionLoad& load = core_load();
  const double latent = a.kv_lora_rank + a.qk_rope_head_dim;
  if (load.decode_tokens > 0) {
    KernelWork& core = add(Kind::DecodeCore, "attention");
    core.flops = load.decode_pairs * heads() * 2 * (latent + a.kv_lora_rank);
    core.weight_bytes = load.decode_cache * latent * bytes_of(s_.kv_cache);
    core.act_bytes = load.decode_tokens * heads() * (latent + a.kv_lora_rank) * kBf16;
    // Part of the requests is split over SMs and put together again from fp32.
    memory("attention combine", load.decode_tokens * heads() * a.kv_lora_rank * 3);
    heads_gemm("v up", load.decode_tokens, a.kv_lora_rank, a.v_head_dim);
  }
  if (load.prefill_tokens > 0) {
    KernelWork& core = add(Kind::PrefillCore, "attention");
    const double qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    core.flops = load.prefill_pairs * heads() * 2 * (qk + a.v_head_dim);
    core.act_bytes =
        (load.prefill_tokens * (qk + a.v_head_dim) + load.prefill_context * (qk + a.v_head_dim)) * heads() * kBf16;
  }
}

void OpWork::gqa_core() {
  const AttentionShape& a = s_.attention;
  const AttentionLoad& load = c_.attention;
  const double cache = 2 * kv_heads() * a.head_dim * bytes_of(s_.kv_cache);
  if (load.decode_tokens > 0) {
    KernelWork& core = add(Kind::DecodeCore, "attention");
    core.flops = load.decode_pairs * heads() * 4 * a.head_dim;
    core.weight_bytes = load.decode_cache * cache;
    core.act_bytes = load.decode_tokens * heads() * 2 * a.head_dim * kBf16;
  }
  if (load.prefill_tokens > 0) {
    KernelWork& core = add(Kind::PrefillCore, "attention");
    core.flops = load.prefill_pairs * heads() * 4 * a.head_dim;
    core.weight_bytes = load.prefill_context * cache;
    core.act_bytes = load.prefill_tokens * heads() * 2 * a.head_dim * kBf16;
  }
}

void OpWork::a1() {
  const AttentionShape& a = s_.attention;
  double out = heads() * a.head_dim;
  if (a.kind == AttentionKind::Mla) {
    mla_core();
    out = heads() * a.v_head_dim;
  } else {
    gqa_core();
  }
  quantise("quantise o", c_.tokens * out);
  gemm("o", c_.tokens, out, s_.hidden, s_.weights);
  tensor(Kind::TensorReduce, "reduce o");
  norm("add, norm");
  if (!c_.moe_layer) return;
  gemm("router", c_.tokens, s_.hidden, s_.moe.routed_experts, Precision::Bf16);
  KernelWork& top_k = add(Kind::TopK, "top-k");
  top_k.tokens = c_.tokens;
  top_k.act_bytes = c_.tokens * s_.moe.routed_experts * 4;
}

void OpWork::mlp() {
  const double h = s_.hidden, width = s_.moe.intermediate;
  double rows = 0;
  for (const double r : c_.expert_rows) rows += r;
  if (rows <= 0) return;
  const double payload = dispatch_bytes(s_);
  if (!c_.expert_major) {
    KernelWork& index = add(Kind::ExpertIndex, "count, map");
    index.tokens = c_.received;
    index.kernels = 2;
    memory("expand", (c_.received + rows) * payload);
  }
  grouped("gate, up", h, 2 * width);
  swiglu(rows, width, s_.expert_weights);
  grouped("down", width, h);
  if (!c_.expert_major) memory("reduce", (rows + c_.received) * h * kBf16);
}

void OpWork::shared() {
  const double t = c_.share_tokens, width = s_.moe.shared_intermediate;
  if (t <= 0) return;
  quantise("quantise x", t * s_.hidden);
  gemm("gate, up", t, s_.hidden, 2 * width, s_.weights);
  swiglu(t, width, s_.weights);
  gemm("down", t, width, s_.hidden, s_.weights);
}

void OpWork::dense() {
  const double t = c_.tokens, width = static_cast<double>(s_.dense_intermediate) / c_.tensor_parallel;
  quantise("quantise x", t * s_.hidden);
  gemm("gate, up", t, s_.hidden, 2 * width, s_.weights);
  swiglu(t, width, s_.weights);
  gemm("down", t, width, s_.hidden, s_.weights);
  tensor(Kind::TensorReduce, "reduce ffn");
}

void OpWork::embedding() {
  memory("embedding", c_.tokens * s_.hidden * kBf16 * 2);
}

void OpWork::head() {
  // Decode needs logits of every token, prefill of each prompt's last.
  const double t = c_.attention.decode_tokens + c_.attention.prefill_requests;
  norm("final norm");
  gemm("logits", t, s_.hidden, static_cast<double>(s_.vocab) / c_.tensor_parallel, Precision::Bf16);
}

}  // namespace

AttentionLoad attention_load(const UbatchLoad& load, int window) {
  AttentionLoad out;
  for (std::size_t r = 0; r < load.seq_lens.size(); ++r) {
    const double q = load.query_start_loc[r + 1] - load.query_start_loc[r], seq = load.seq_lens[r];
    if (q <= 0) continue;
    // Queries see seq - q + 1 to seq tokens, each at most the window.
    double pairs = q * (seq - q) + q * (q + 1) / 2, seen = seq;
    if (window > 0 && seq > window) {
      const double short_queries = std::max(std::min(q, window - (seq - q)), 0.0);
      pairs = short_queries * (seq - q) + short_queries * (short_queries + 1) / 2 + (q - short_queries) * window;
      seen = std::min(seq, window + q - 1);
    }
    if (q <= kDecodeQueries && (seq > q || q == 1)) {
      out.decode_requests += 1;
      out.decode_tokens += q;
      out.decode_pairs += pairs;
      out.decode_cache += seen;
    } else {
      out.prefill_requests += 1;
      out.prefill_tokens += q;
      out.prefill_pairs += pairs;
      out.prefill_context += seen;
    }
  }
  return out;
}

AttentionLoad sparse_attention_load(const UbatchLoad& load, int top_k) {
  const AttentionLoad all = attention_load(load, 0);
  AttentionLoad out = attention_load(load, top_k);
  out.decode_requests += out.prefill_requests;
  out.decode_tokens += out.prefill_tokens;
  out.decode_pairs += out.prefill_pairs;
  out.decode_cache = all.decode_cache + all.prefill_context;
  out.prefill_requests = out.prefill_tokens = out.prefill_pairs = out.prefill_context = 0;
  return out;
}

std::vector<KernelWork> op_work(OpKind kind, const OpContext& context) {
  OpWork work(context);
  switch (kind) {
    case OpKind::A0:
      work.a0();
      break;
    case OpKind::A1:
      work.a1();
      break;
    case OpKind::MLP:
      work.mlp();
      break;
    case OpKind::S:
      work.shared();
      break;
    case OpKind::FFN:
      work.dense();
      break;
    case OpKind::EMB:
      work.embedding();
      break;
    case OpKind::HEAD:
      work.head();
      break;
    case OpKind::D:
    case OpKind::DSend:
    case OpKind::DWire:
    case OpKind::DRecv:
    case OpKind::C:
    case OpKind::CSend:
    case OpKind::CWire:
    case OpKind::CRecv:
    case OpKind::CCopy:
    case OpKind::Other:
      break;
  }
  return work.take();
}

ParameterCounts parameter_counts(const ModelShape& s) {
  const AttentionShape& a = s.attention;
  const double h = s.hidden, heads = a.heads;
  ParameterCounts p;
  if (a.kind == AttentionKind::Mla) {
    const double qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    p.attention = a.q_lora_rank > 0 ? a.q_lora_rank * (h + heads * qk) : h * heads * qk;
    p.attention += h * (a.kv_lora_rank + a.qk_rope_head_dim);
    p.attention += a.kv_lora_rank * heads * (a.qk_nope_head_dim + a.v_head_dim) + heads * a.v_head_dim * h;
    if (a.index_top_k > 0) {
      const double width = static_cast<double>(a.index_heads) * a.index_head_dim;
      p.attention += a.q_lora_rank * width + h * (a.index_head_dim + a.index_heads);
    }
  } else {
    p.attention = h * (2 * heads + 2 * a.kv_heads) * a.head_dim;
  }
  p.dense_ffn = 3 * h * s.dense_intermediate;
  p.routed_expert = 3 * h * s.moe.intermediate;
  p.shared = 3 * h * s.moe.shared_intermediate;
  p.router = h * s.moe.routed_experts;
  p.embedding = h * s.vocab;
  const double moe = s.moe_layers(), dense = s.layers - moe;
  const double both = s.layers * p.attention + dense * p.dense_ffn + moe * (p.shared + p.router) +
                      p.embedding * (s.tie_embeddings ? 1 : 2);
  p.total = both + moe * p.routed_expert * s.moe.routed_experts;
  p.active = both + moe * p.routed_expert * s.moe.top_k;
  return p;
}

double kv_bytes_per_token(const ModelShape& s) {
  const AttentionShape& a = s.attention;
  const double bytes = bytes_of(s.kv_cache);
  if (a.kind == AttentionKind::Gqa) return 2.0 * a.kv_heads * a.head_dim * bytes;
  const double index = a.index_top_k > 0 ? a.index_head_dim + 4 : 0;  // fp8 keys of the indexer with a scale
  return (a.kv_lora_rank + a.qk_rope_head_dim) * bytes + index;
}

namespace {

double payload_bytes(int hidden, Precision precision) {
  const bool scaled = precision == Precision::Fp8 || precision == Precision::Fp4;
  return hidden * bytes_of(precision) + (scaled ? 4.0 * ((hidden + 127) / 128) : 0);
}

}  // namespace

double dispatch_bytes(const ModelShape& shape) {
  return payload_bytes(shape.hidden, shape.dispatch);
}

double combine_bytes(const ModelShape& shape) {
  return payload_bytes(shape.hidden, shape.combine);
}

}  // namespace dbo
