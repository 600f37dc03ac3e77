// The dimensions of a model that fix how much work its ops are. Plain data; presets and Hugging Face files are read in
// sim/model, plans carry it so that a runtime needs no model code.
#pragma once

#include <cstdint>
#include <string>

namespace dbo {

enum class Precision : std::uint8_t { Fp4, Fp8, Bf16, Fp32 };

/// Bytes of one element times two, so that fp4 stays whole.
constexpr int half_bytes(Precision p) {
  switch (p) {
    case Precision::Fp4:
      return 1;
    case Precision::Fp8:
      return 2;
    case Precision::Bf16:
      return 4;
    case Precision::Fp32:
      return 8;
  }
  return 0;
}

enum class AttentionKind : std::uint8_t { Mla, Gqa };

struct AttentionShape {
  AttentionKind kind = AttentionKind::Gqa;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;          ///< GQA: of q, k and v
  int q_lora_rank = 0;       ///< MLA: 0 when q has no low-rank form
  int kv_lora_rank = 0;      ///< MLA: latent of k and v
  int qk_nope_head_dim = 0;  ///< MLA
  int qk_rope_head_dim = 0;  ///< MLA: also the extra cached columns
  int v_head_dim = 0;        ///< MLA
  bool qk_norm = false;
  bool qkv_bias = false;
  int sliding_window = 0;  ///< tokens an attention layer with a window sees; 0 when none has one
  int window_period = 0;   ///< the last of each `window_period` layers sees everything, the others have the window;
                           ///< 0: every layer has it
  int index_heads = 0;     ///< sparse attention: heads of the indexer, 0 when attention is dense
  int index_head_dim = 0;
  int index_top_k = 0;  ///< sparse attention: cached tokens a query attends to

  bool has_window(int layer) const {
    return sliding_window > 0 && (window_period == 0 || layer % window_period != window_period - 1);
  }

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

enum class Scoring : std::uint8_t { Softmax, Sigmoid, SoftmaxOverTopK };

struct MoeShape {
  int routed_experts = 0;  ///< 0 when only the layer counts are known: one a rank
  int top_k = 0;
  int intermediate = 0;         ///< width of one routed expert
  int shared_experts = 0;       ///< 0: the model has no op S
  int shared_intermediate = 0;  ///< width of all shared experts together
  int groups = 1;               ///< routing picks top_k inside `group_top_k` of `groups` groups
  int group_top_k = 1;
  Scoring scoring = Scoring::Softmax;
  bool norm_top_k = true;
  double scaling = 1.0;

  friend bool operator==(const MoeShape&, const MoeShape&) = default;
};

struct ModelShape {
  std::string name;  ///< preset or file it came from; for people only
  int layers = 0;
  int dense_layers = 0;  ///< leading dense layers
  int moe_period = 1;    ///< past the dense ones, the last layer of each `moe_period` is MoE, the others are dense
  int hidden = 0;        ///< 0 when only the layer counts are known (fixed costs)
  AttentionShape attention;
  MoeShape moe;
  int dense_intermediate = 0;
  int vocab = 0;
  int mtp_layers = 0;  ///< draft layers, which a step here does not run
  bool tie_embeddings = false;
  std::int64_t max_position = 0;
  Precision weights = Precision::Bf16;         ///< dense and expert GEMMs
  Precision expert_weights = Precision::Bf16;  ///< routed experts, where they differ (gpt-oss: fp4)
  Precision kv_cache = Precision::Bf16;
  Precision dispatch = Precision::Bf16;
  Precision combine = Precision::Bf16;

  bool has_dims() const { return hidden > 0; }
  bool has_shared() const { return moe.shared_experts > 0; }
  bool is_moe_layer(int layer) const {
    return layer >= dense_layers && (layer - dense_layers) % moe_period == moe_period - 1;
  }
  int moe_layers() const { return (layers - dense_layers) / moe_period; }

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

}  // namespace dbo
