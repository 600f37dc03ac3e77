// Floating-point operations and bytes of the compute ops, from their shapes alone. Plain C++, no CUDA: the numbers a
// cost model needs and a benchmark divides by.
//
// Counting: a product of m x k by k x n is 2 m n k operations; weights are read once, activations of each kernel read
// and written once, of the cache what the context needs. Norms, rotation, routing and permutation count bytes, not
// operations.
//
// The cost model (sim/cost/work.h) prices the kernels of a serving engine; with bf16 everywhere, or e4m3 experts and
// dispatch, its ops have the same operations, and the same bytes but for what our kernels do differently. All
// differences, ours minus the model's (tests/kernels/compute/model_work_test.cpp holds both to this list):
//   A0   the norm reads both summands, C's and S's: hidden a token more than with one, 2 hidden less without any;
//        MLA: norm, rotation and write of the latent are one pass: 2 x 576 a token less; prefill copies the latent of
//        its contexts, 2 x 576 a key more, and does not put whole keys together, heads x 192 a key less;
//   A1   MLA decode: partial results are not counted: heads x 512 x 1.5 a token less; MLA prefill: the rotated part of
//        the keys is read once and not for each head: (heads - 1) x 64 a key less; the gate writes fp32 logits: experts
//        a token more, and the router its choices: 4 x top_k a token more;
//   MLP  SwiGLU is the epilogue of the first product: 4 x intermediate a row less; expert-major rows are copied to
//   close
//        the gaps between sources: 2 x hidden a row more;
//        with e4m3 experts 2 x intermediate a row less, and expert-major rows are copied as they came, scales too;
//   HEAD the norm takes only the tokens that need logits, and writes no sum back;
// in elements of two bytes.
#pragma once

#include <cstdint>

#include "sim/base/model_shape.h"

namespace dbo::kernels {

struct Work {
  std::int64_t flops = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t activation_bytes = 0;  ///< read and written
  std::int64_t kv_bytes = 0;          ///< cache read and written

  constexpr std::int64_t bytes() const { return weight_bytes + activation_bytes + kv_bytes; }
  constexpr Work& operator+=(const Work& w) {
    flops += w.flops;
    weight_bytes += w.weight_bytes;
    activation_bytes += w.activation_bytes;
    kv_bytes += w.kv_bytes;
    return *this;
  }
  friend constexpr Work operator+(Work a, const Work& b) { return a += b; }
  friend constexpr bool operator==(const Work&, const Work&) = default;
};

/// bf16 operands and result unless `out_bytes` says otherwise.
constexpr Work gemm_work(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t out_bytes = 2) {
  if (m == 0) return {};
  return {2 * m * n * k, n * k * 2, m * k * 2 + m * n * out_bytes, 0};
}

/// A kernel that reads and writes `elements` bf16 numbers in all.
constexpr Work move_work(std::int64_t elements) {
  return {0, 0, elements * 2, 0};
}

/// Requests of one kind in a batch. Sums over the requests: `keys` is the context length of each, `pairs` the number of
/// (query, visible key) pairs.
struct AttentionLoad {
  std::int64_t tokens = 0;
  std::int64_t keys = 0;
  std::int64_t pairs = 0;

  /// A request of `query` new tokens at the end of a context of `seq`: query i sees seq - query + i + 1 keys.
  constexpr void add(std::int64_t query, std::int64_t seq) {
    tokens += query;
    keys += seq;
    pairs += query * (seq - query) + query * (query + 1) / 2;
  }
};

struct BatchLoad {
  AttentionLoad decode, prefill;
  constexpr std::int64_t tokens() const { return decode.tokens + prefill.tokens; }
};

Work rms_norm_work(std::int64_t rows, std::int64_t width, int adds);

/// Cores alone: queries in, output out, cache or projected keys and values in.
Work mla_decode_work(const AttentionShape& shape, const AttentionLoad& load);
Work gqa_decode_work(const AttentionShape& shape, const AttentionLoad& load);
Work mla_prefill_work(const AttentionShape& shape, const AttentionLoad& load);
Work gqa_prefill_work(const AttentionShape& shape, const AttentionLoad& load);

/// Gate and up in one product with SwiGLU in its epilogue, then down. `experts` of them get rows. With `fp8` the
/// weights are e4m3 with a scale for each 128 x 128, the products read e4m3, and SwiGLU's bf16 rows are quantised
/// between them.
Work experts_work(std::int64_t rows, std::int64_t experts, std::int64_t hidden, std::int64_t intermediate,
                  bool fp8 = false);

/// Op A0: norm (with `adds` summands to the residual stream), projections, rotation, cache write, and for prefill with
/// MLA the keys and values of the whole contexts.
Work a0_work(const AttentionShape& shape, std::int64_t hidden, const BatchLoad& load, int adds);
/// Op A1: core attention, output projection, residual, norm; gate and routing when `moe.routed_experts` > 0.
Work a1_work(const AttentionShape& shape, const MoeShape& moe, std::int64_t hidden, const BatchLoad& load);
/// Op MLP: `received` rows, `rows` (row, expert) pairs over `experts` local experts that get any; expert-major rows are
/// such pairs already, so there both are equal. Rank-major adds the weighted sum to received rows. With `fp8` the rows
/// come quantised and their scales with them.
Work mlp_work(const MoeShape& moe, std::int64_t hidden, std::int64_t received, std::int64_t rows, std::int64_t experts,
              bool rank_major, bool fp8 = false);
/// Op S, and op FFN of a dense layer: a SwiGLU block of that width.
Work swiglu_work(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate);
Work embed_work(std::int64_t tokens, std::int64_t hidden);
/// Op HEAD: norm and logits of `rows` tokens.
Work head_work(std::int64_t rows, std::int64_t hidden, std::int64_t vocab, int adds);

}  // namespace dbo::kernels
