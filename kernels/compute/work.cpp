#include "kernels/compute/work.h"

#include "kernels/moe_buffers.h"

namespace dbo::kernels {

namespace {

std::int64_t qk_dim(const AttentionShape& s) {
  return s.qk_nope_head_dim + s.qk_rope_head_dim;
}
std::int64_t cached_row(const AttentionShape& s) {
  return s.kind == AttentionKind::Mla ? s.kv_lora_rank + s.qk_rope_head_dim : std::int64_t{2} * s.kv_heads * s.head_dim;
}
/// Columns of one head's output, and of all.
std::int64_t attention_out(const AttentionShape& s) {
  return std::int64_t{s.heads} * (s.kind == AttentionKind::Mla ? s.v_head_dim : s.head_dim);
}

/// `heads` products of the same rows with weights of their own.
Work per_head(std::int64_t heads, const Work& one) {
  return {heads * one.flops, heads * one.weight_bytes, heads * one.activation_bytes, heads * one.kv_bytes};
}

}  // namespace

Work rms_norm_work(std::int64_t rows, std::int64_t width, int adds) {
  // In, the summands, the sum back where there are any, and out.
  return move_work(rows * width * (2 + adds + (adds > 0 ? 1 : 0)));
}

Work mla_decode_work(const AttentionShape& s, const AttentionLoad& load) {
  const std::int64_t row = cached_row(s);
  return {2 * s.heads * load.pairs * (row + s.kv_lora_rank), 0, load.tokens * s.heads * (row + s.kv_lora_rank) * 2,
          load.keys * row * 2};
}

Work gqa_decode_work(const AttentionShape& s, const AttentionLoad& load) {
  return {4 * s.heads * load.pairs * s.head_dim, 0, load.tokens * s.heads * s.head_dim * 4,
          load.keys * cached_row(s) * 2};
}

Work mla_prefill_work(const AttentionShape& s, const AttentionLoad& load) {
  const std::int64_t qk = qk_dim(s);
  return {2 * s.heads * load.pairs * (qk + s.v_head_dim), 0, load.tokens * s.heads * (qk + s.v_head_dim) * 2,
          load.keys * (std::int64_t{s.heads} * (s.qk_nope_head_dim + s.v_head_dim) + s.qk_rope_head_dim) * 2};
}

Work gqa_prefill_work(const AttentionShape& s, const AttentionLoad& load) {
  return gqa_decode_work(s, load);
}

Work experts_work(std::int64_t rows, std::int64_t experts, std::int64_t hidden, std::int64_t intermediate, bool fp8) {
  if (fp8) {
    const std::int64_t weights = 3 * experts * hidden * intermediate;
    // Codes in and bf16 out of both products; between them bf16 in, codes out.
    const std::int64_t activations = rows * (hidden + 2 * intermediate + 3 * intermediate + intermediate + 2 * hidden);
    return {6 * rows * hidden * intermediate, weights + weights / (kScaleBlock * kScaleBlock) * 4, activations, 0};
  }
  return {6 * rows * hidden * intermediate, 3 * experts * hidden * intermediate * 2,
          2 * rows * (hidden + intermediate) * 2, 0};
}

Work a0_work(const AttentionShape& s, std::int64_t hidden, const BatchLoad& load, int adds) {
  const std::int64_t tokens = load.tokens();
  Work w = rms_norm_work(tokens, hidden, adds);
  w.kv_bytes += tokens * cached_row(s) * 2;
  if (s.kind == AttentionKind::Gqa) {
    const std::int64_t columns = (s.heads + 2 * s.kv_heads) * std::int64_t{s.head_dim};
    // The cache write reads all heads and writes the queries back.
    return w + gemm_work(tokens, columns, hidden) + move_work(tokens * (columns + std::int64_t{s.heads} * s.head_dim));
  }
  const std::int64_t q_columns = s.heads * qk_dim(s);
  const std::int64_t first = s.q_lora_rank > 0 ? s.q_lora_rank : q_columns;
  w += gemm_work(tokens, first + cached_row(s), hidden) + move_work(tokens * cached_row(s));
  if (s.q_lora_rank > 0) w += rms_norm_work(tokens, s.q_lora_rank, 0) + gemm_work(tokens, q_columns, s.q_lora_rank);
  w += move_work(2 * tokens * s.heads * s.qk_rope_head_dim);
  w += per_head(s.heads, gemm_work(load.decode.tokens, s.kv_lora_rank, s.qk_nope_head_dim));
  const std::int64_t up = std::int64_t{s.heads} * (s.qk_nope_head_dim + s.v_head_dim);
  w += gemm_work(load.prefill.keys, up, s.kv_lora_rank) + move_work(2 * load.prefill.keys * cached_row(s));
  return w;
}

Work a1_work(const AttentionShape& s, const MoeShape& moe, std::int64_t hidden, const BatchLoad& load) {
  const std::int64_t tokens = load.tokens();
  Work w;
  if (s.kind == AttentionKind::Gqa) {
    w = gqa_decode_work(s, load.decode) + gqa_prefill_work(s, load.prefill);
  } else {
    w = mla_decode_work(s, load.decode) + mla_prefill_work(s, load.prefill);
    w += per_head(s.heads, gemm_work(load.decode.tokens, s.v_head_dim, s.kv_lora_rank));
  }
  w += gemm_work(tokens, hidden, attention_out(s)) + rms_norm_work(tokens, hidden, 1);
  if (moe.routed_experts > 0) {
    w += gemm_work(tokens, moe.routed_experts, hidden, 4);
    w.activation_bytes += tokens * (std::int64_t{moe.routed_experts} * 4 + moe.top_k * 8);
  }
  return w;
}

Work mlp_work(const MoeShape& moe, std::int64_t hidden, std::int64_t received, std::int64_t rows, std::int64_t experts,
              bool rank_major, bool fp8) {
  Work w = experts_work(rows, experts, hidden, moe.intermediate, fp8);
  if (fp8) {
    w.activation_bytes += (received + rows) * (hidden + hidden / kScaleBlock * 4);
  } else {
    w += move_work((received + rows) * hidden);
  }
  if (rank_major) w += move_work((rows + received) * hidden);
  return w;
}

Work swiglu_work(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate) {
  return gemm_work(tokens, 2 * intermediate, hidden) + move_work(3 * tokens * intermediate) +
         gemm_work(tokens, hidden, intermediate);
}

Work embed_work(std::int64_t tokens, std::int64_t hidden) {
  return move_work(2 * tokens * hidden);
}

Work head_work(std::int64_t rows, std::int64_t hidden, std::int64_t vocab, int adds) {
  Work w = move_work(rows * hidden * (2 + adds));
  return w + gemm_work(rows, vocab, hidden);
}

}  // namespace dbo::kernels
