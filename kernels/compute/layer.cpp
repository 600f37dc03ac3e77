#include "kernels/compute/layer.h"

#include <algorithm>
#include <cmath>

#include "kernels/compute/grouped_choice.h"
#include "kernels/compute/hash.h"
#include "kernels/compute/limits.h"

namespace dbo::kernels {

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::int64_t blocks_of(std::int64_t n) {
  return (n + kScaleBlock - 1) / kScaleBlock;
}

bool is_mla(const LayerDims& d) {
  return d.attention.kind == AttentionKind::Mla;
}

/// Fills a layout in the order of the enumeration.
class Builder {
 public:
  explicit Builder(WeightLayout& layout) : layout_(layout) {}

  /// Rows of `in` elements; values so that a product with inputs of variance one has variance one.
  void matrix(Tensor t, std::int64_t rows, std::int64_t in, int experts = 0) {
    const std::int64_t one = rows * in;
    add(t, {.count = experts > 0 ? experts * one : one,
            .per_expert = experts > 0 ? one : 0,
            .columns = in,
            .scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(in)))});
  }
  /// The same of e4m3, any code but NaN about as likely, and in `scales` a number for each 128 x 128.
  void fp8_matrix(Tensor t, Tensor scales, std::int64_t rows, std::int64_t in, int experts) {
    const std::int64_t one = rows * in, blocks = blocks_of(in), scales_one = blocks_of(rows) * blocks;
    add(t, {.count = experts * one, .per_expert = one, .columns = in, .type = NumberType::E4m3, .scale = kFp8Max});
    // Blocks differ by up to 1.7, so that a wrong one shows; the mean square of 0.75 + 0.25 u is 0.583.
    const auto unit = static_cast<float>(std::sqrt(3.0 / 0.583 / static_cast<double>(in)) / 448.0);
    add(scales, {.count = experts * scales_one,
                 .per_expert = scales_one,
                 .columns = blocks,
                 .type = NumberType::Float,
                 .scale = 0.25f * unit,
                 .offset = 0.75f * unit});
  }
  void norm(Tensor t, std::int64_t width) { add(t, {.count = width, .scale = 0.1f, .offset = 1.0f}); }
  void add(Tensor t, TensorPlace place) {
    if (place.count == 0) return;
    place.offset_bytes = used_;
    layout_.place[static_cast<std::size_t>(t)] = place;
    used_ += (place.count * number_bytes(place.type) + 255) / 256 * 256;
    layout_.bytes = (used_ + kMiB - 1) / kMiB * kMiB;
  }

 private:
  WeightLayout& layout_;
  std::int64_t used_ = 0;
};

void add_attention(const LayerDims& d, Builder& b) {
  const AttentionShape& a = d.attention;
  b.norm(Tensor::AttentionNorm, d.hidden);
  b.matrix(Tensor::QkvIn, qkv_columns(d), d.hidden);
  if (is_mla(d)) {
    if (a.q_lora_rank > 0) b.norm(Tensor::QNorm, a.q_lora_rank);
    b.norm(Tensor::KvNorm, kMlaLatent);
    if (a.q_lora_rank > 0) b.matrix(Tensor::QUp, std::int64_t{a.heads} * kMlaQk, a.q_lora_rank);
    b.matrix(Tensor::KvUp, std::int64_t{a.heads} * (kMlaNope + kMlaV), kMlaLatent);
  } else {
    if (a.qkv_bias) b.add(Tensor::QkvBias, {.count = qkv_columns(d), .scale = 0.1f});
    if (a.qk_norm) {
      b.norm(Tensor::QNorm, kGqaHeadDim);
      b.norm(Tensor::KvNorm, kGqaHeadDim);
    }
  }
  b.matrix(Tensor::AttentionOut, d.hidden, std::int64_t{a.heads} * 128);
  b.norm(Tensor::MlpNorm, d.hidden);
}

}  // namespace

std::int64_t qkv_columns(const LayerDims& d) {
  const AttentionShape& a = d.attention;
  if (!is_mla(d)) return std::int64_t{a.heads + 2 * a.kv_heads} * kGqaHeadDim;
  return (a.q_lora_rank > 0 ? a.q_lora_rank : std::int64_t{a.heads} * kMlaQk) + kMlaCached;
}

std::int64_t q_stride(const LayerDims& d) {
  return is_mla(d) && d.attention.q_lora_rank > 0 ? std::int64_t{d.attention.heads} * kMlaQk : qkv_columns(d);
}

LayerDims layer_dims(const ModelShape& model, int experts_per_rank) {
  LayerDims d;
  d.hidden = model.hidden;
  d.attention = model.attention;
  d.moe = model.moe;
  d.experts_per_rank = experts_per_rank;
  d.dense_intermediate = model.dense_intermediate;
  d.vocab = model.vocab;
  d.fp8_experts = model.moe.routed_experts > 0 && model.expert_weights == Precision::Fp8;
  d.router_bias = model.moe.scoring == Scoring::Sigmoid && model.moe.norm_top_k;
  return d;
}

const char* find_unsupported(const LayerDims& d) {
  const AttentionShape& a = d.attention;
  if (d.hidden < 8 || d.hidden % 8 != 0 || d.hidden > 16384) return "hidden must be a multiple of 8, at most 16384";
  if (a.heads < 1) return "attention needs heads";
  if (a.index_heads > 0) return "sparse attention has no kernel";
  if (a.sliding_window > 0) return "attention with a sliding window has no kernel";
  if (is_mla(d)) {
    if (a.kv_lora_rank != kMlaLatent || a.qk_rope_head_dim != kMlaRope || a.qk_nope_head_dim != kMlaNope ||
        a.v_head_dim != kMlaV) {
      return "MLA kernels are built for a latent of 512, heads of 128 + 64 and values of 128";
    }
    if (a.q_lora_rank % 8 != 0) return "q_lora_rank must be a multiple of 8";
  } else {
    if (a.head_dim != kGqaHeadDim) return "GQA kernels are built for heads of 128";
    if (a.kv_heads < 1 || a.heads % a.kv_heads != 0) return "heads must be a multiple of kv_heads";
  }
  if (d.moe.routed_experts > 0) {
    if (d.moe.routed_experts > kMaxExperts) return "the router is built for at most 512 experts";
    if (d.experts_per_rank < 1 || d.experts_per_rank > kMaxLocalExperts) return "a rank holds 1 to 480 experts";
    if (d.moe.top_k < 1 || d.moe.top_k > kMaxTopK) return "top_k must be 1 to 16";
    if (d.moe.groups > 1 && d.moe.group_top_k < d.moe.groups &&
        router_lanes_per_group(d.moe.routed_experts, d.moe.groups) == 0) {
      return "the router cannot choose among groups of that size";
    }
    if (d.moe.intermediate < 8 || d.moe.intermediate % 8 != 0) return "intermediate must be a multiple of 8";
    if (d.fp8_experts && (d.hidden % kScaleBlock != 0 || d.moe.intermediate % 16 != 0)) {
      return "fp8 experts need hidden to be a multiple of 128 and intermediate of 16";
    }
  }
  if (d.moe.shared_intermediate % 8 != 0) return "shared_intermediate must be a multiple of 8";
  if (d.dense_intermediate % 8 != 0) return "dense_intermediate must be a multiple of 8";
  return nullptr;
}

WeightLayout weight_layout(const LayerDims& d, WeightSet set) {
  WeightLayout layout;
  Builder b(layout);
  switch (set) {
    case WeightSet::MoeLayer:
      add_attention(d, b);
      b.matrix(Tensor::Gate, d.moe.routed_experts, d.hidden);
      if (d.router_bias)
        b.add(Tensor::GateBias, {.count = d.moe.routed_experts, .type = NumberType::Float, .scale = 0.01f});
      if (d.fp8_experts) {
        b.fp8_matrix(Tensor::ExpertUp, Tensor::ExpertUpScale, std::int64_t{2} * d.moe.intermediate, d.hidden,
                     d.experts_per_rank);
        b.fp8_matrix(Tensor::ExpertDown, Tensor::ExpertDownScale, d.hidden, d.moe.intermediate, d.experts_per_rank);
      } else {
        b.matrix(Tensor::ExpertUp, std::int64_t{2} * d.moe.intermediate, d.hidden, d.experts_per_rank);
        b.matrix(Tensor::ExpertDown, d.hidden, d.moe.intermediate, d.experts_per_rank);
      }
      if (d.moe.shared_intermediate > 0) {
        b.matrix(Tensor::SharedUp, std::int64_t{2} * d.moe.shared_intermediate, d.hidden);
        b.matrix(Tensor::SharedDown, d.hidden, d.moe.shared_intermediate);
      }
      return layout;
    case WeightSet::DenseLayer:
      add_attention(d, b);
      b.matrix(Tensor::DenseUp, std::int64_t{2} * d.dense_intermediate, d.hidden);
      b.matrix(Tensor::DenseDown, d.hidden, d.dense_intermediate);
      return layout;
    case WeightSet::Model:
      b.add(Tensor::Embedding, {.count = std::int64_t{d.vocab} * d.hidden, .scale = 1.7320508f});
      b.norm(Tensor::FinalNorm, d.hidden);
      b.matrix(Tensor::Head, d.vocab, d.hidden);
      return layout;
  }
  return layout;
}

std::uint64_t tensor_seed(std::uint64_t seed, Tensor tensor, int expert) {
  return mix(mix(seed, static_cast<std::uint64_t>(tensor)), static_cast<std::uint64_t>(expert));
}

LayerWeights place_weights(const WeightLayout& layout, const void* base) {
  LayerWeights w;
  for (std::size_t t = 0; t < kTensors; ++t) {
    const TensorPlace& place = layout.place[t];
    if (place.count > 0) w.tensor[t] = static_cast<const unsigned char*>(base) + place.offset_bytes;
  }
  return w;
}

int ring_sets(int layers, std::int64_t set_bytes, std::int64_t l2_bytes, std::int64_t budget_bytes) {
  if (layers < 1 || set_bytes < 1) return 0;
  const std::int64_t wanted = std::max<std::int64_t>(2, (3 * l2_bytes + set_bytes - 1) / set_bytes);
  return static_cast<int>(std::min<std::int64_t>({wanted, layers, budget_bytes / set_bytes}));
}

UbatchBuffers carve_ubatch(const LayerDims& d, int tokens, std::int64_t prefill_keys, Carver& carver) {
  const std::int64_t t = tokens, row = t * d.hidden * 2, heads = d.attention.heads;
  UbatchBuffers b;
  b.residual = carver.take(row);
  b.normed = carver.take(row);
  b.q = carver.take(t * q_stride(d) * 2);
  b.q_absorbed = carver.take(is_mla(d) ? t * heads * kMlaCached * 2 : 0);
  if (is_mla(d)) {
    b.keys = carver.take(prefill_keys * kMlaCached * 2);
    b.keys_up = carver.take(prefill_keys * heads * (kMlaNope + kMlaV) * 2);
  }
  b.expert = static_cast<std::int32_t*>(carver.take(t * d.moe.top_k * 4));
  b.weight = static_cast<float*>(carver.take(t * d.moe.top_k * 4));
  b.shared = carver.take(row);
  b.routed = carver.take(row);
  return b;
}

A0Scratch carve_a0(const LayerDims& d, int tokens, Carver& carver) {
  A0Scratch s;
  s.normed = carver.take(std::int64_t{tokens} * d.hidden * 2);
  if (is_mla(d) && d.attention.q_lora_rank > 0) {
    s.qkv = carver.take(tokens * qkv_columns(d) * 2);
    s.q_norm = carver.take(std::int64_t{tokens} * d.attention.q_lora_rank * 2);
  }
  return s;
}

A1Scratch carve_a1(const LayerDims& d, const A1Limits& limits, Carver& carver) {
  const std::int64_t tokens = limits.tokens, decode = limits.decode_tokens, heads = d.attention.heads;
  A1Scratch s;
  PartialSizes partial;
  if (is_mla(d)) {
    s.latent = carver.take(decode * heads * kMlaLatent * 2);
    if (decode > 0) partial = mla_decode_partials(limits.sms);
  } else if (decode > 0) {
    partial = gqa_decode_partials(limits.sms);
  }
  s.attention = carver.take(tokens * heads * 128 * 2);
  s.out = carver.take(tokens * d.hidden * 2);
  s.logits = static_cast<float*>(carver.take(tokens * d.moe.routed_experts * 4));
  s.partial_o = static_cast<float*>(carver.take(partial.o * 4));
  s.partial_sum = static_cast<float*>(carver.take(partial.log2_sum * 4));
  return s;
}

std::int64_t most_rows(const MoeDims& dims) {
  return std::int64_t{dims.ranks} * dims.max_tokens * std::min(dims.top_k, dims.experts_per_rank);
}

MlpScratch carve_mlp(const LayerDims& d, const MoeDims& moe, std::int64_t max_rows, Carver& carver) {
  MlpScratch s;
  s.offset = static_cast<std::int32_t*>(carver.take((std::int64_t{moe.experts_per_rank} + 1) * 4));
  s.row = static_cast<std::int32_t*>(carver.take(max_rows * 4));
  s.position = static_cast<std::int32_t*>(carver.take(std::int64_t{moe.ranks} * moe.max_tokens * moe.top_k * 4));
  s.ticket = static_cast<std::int32_t*>(carver.take(kTickets * 4));
  s.block_count = static_cast<std::int32_t*>(carver.take(std::int64_t{kIndexBlocks} * moe.experts_per_rank * 4));
  s.sorted = carver.take(max_rows * d.hidden * 2);
  s.hidden = carver.take(max_rows * d.moe.intermediate * 2);
  if (!d.fp8_experts) return s;
  const auto scales = [&](int width) {
    return static_cast<float*>(carver.take(blocks_of(width) * grouped_scale_stride(max_rows) * 4));
  };
  s.sorted_codes = carver.take(max_rows * d.hidden);
  s.sorted_scales = scales(d.hidden);
  s.hidden_codes = carver.take(max_rows * d.moe.intermediate);
  s.hidden_scales = scales(d.moe.intermediate);
  return s;
}

SwiGluScratch carve_swiglu(int tokens, int width, Carver& carver) {
  SwiGluScratch s;
  s.gate_up = carver.take(std::int64_t{2} * tokens * width * 2);
  s.hidden = carver.take(std::int64_t{tokens} * width * 2);
  return s;
}

}  // namespace dbo::kernels
