// A transformer layer in fp64: what the kernels, one by one and in a replay, are compared with. No CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/compute/layer.h"

namespace dbo::compute_test {

using Vec = std::vector<double>;

/// The weights of a set as fp64, made on the CPU alone, e4m3 times its scales; empty where the layout has no such
/// tensor. Expert i of the set is the global expert `first_expert` + i.
class HostWeights {
 public:
  HostWeights(const kernels::WeightLayout& layout, std::uint64_t seed, int first_expert);
  const Vec& operator[](kernels::Tensor t) const { return tensor_[static_cast<std::size_t>(t)]; }

 private:
  std::array<Vec, kernels::kTensors> tensor_;
};

/// y [rows][n] = x [rows][k] w[n][k]^T, w beginning at element `w_offset`.
Vec multiply(const Vec& x, const Vec& w, std::int64_t n, std::int64_t k, std::int64_t w_offset = 0);
/// x [rows][width] over its root mean square, times weight [width].
Vec norm(const Vec& x, const Vec& weight);
/// Columns [first, first + count) of x [rows][stride].
Vec columns(const Vec& x, std::size_t stride, std::size_t first, std::size_t count);
Vec plus(Vec a, const Vec& b);
/// SwiGLU block of one expert or a dense one; rows of `up` alternate in blocks of 8: gate, up.
Vec swiglu_block(const Vec& x, const Vec& up, const Vec& down, int hidden, int width, std::int64_t expert = 0);

/// One token's routing, written as the models define it; equal scores go to the lower expert. `bias` may be null.
struct Choice {
  std::vector<std::int32_t> expert;
  Vec weight;
};
Choice choose_experts(const MoeShape& moe, const double* logits, const double* bias);

/// The tokens of a layer and the cache their requests have.
struct LayerInput {
  Vec x;                                 ///< [tokens][hidden] the residual stream
  std::vector<std::int32_t> positions;   ///< [tokens]
  std::vector<std::int32_t> request_of;  ///< [tokens], -1 for padding
  std::function<std::int64_t(int request, int key)> cache_row;
  Vec cache_k, cache_v;  ///< MLA: [rows][576] and empty; GQA: [rows][kv_heads][128] each
};

/// What attention makes of it: caches with the tokens' own rows, the heads' outputs, the residual stream and its norm.
struct AttentionOutput {
  Vec cache_k, cache_v, attention, residual, normed;
};
AttentionOutput reference_attention(const kernels::LayerDims& dims, const HostWeights& weights,
                                    const LayerInput& input);

}  // namespace dbo::compute_test
