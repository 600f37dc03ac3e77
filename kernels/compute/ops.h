// The compute ops of a layer as the plan names them: each function issues an op's kernels on a stream. Everything is
// preallocated; nothing is allocated or waited for, so every op can be captured in a graph. Plain C++ interface.
//
// The residual stream: EMB writes it; A0 adds what the layer before left (`add`: the outputs of C and of S, or of FFN)
// and A1 the attention's output; HEAD adds the last layer's. So a layer is A0 A1 D MLP S C, and its sum happens in the
// next A0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/attention.h"
#include "kernels/compute/dense_gemm.h"
#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/layer.h"
#include "kernels/compute/tensor_map.h"
#include "kernels/moe_buffers.h"

namespace dbo::kernels {

/// What ops of one lane share. Make it with create_op_context before the first op, on the device it serves.
struct OpContext {
  DenseContext dense;
  TensorMapEncoder encoder;
  int device_sms = 0;
};
/// Also sets the kernels' attributes on the current device. `scratch` [kDenseScratchBytes] stays the caller's.
[[nodiscard]] cudaError_t create_op_context(void* scratch, OpContext& context);
void destroy_op_context(OpContext& context);

/// One layer's cache.
struct KvCache {
  void* k = nullptr;  ///< MLA: [pages * 64][576]; GQA: [pages * 64][kv_heads][128]
  void* v = nullptr;  ///< GQA only
  int pages = 0;
};

/// The tokens of a ubatch: first those of requests that decode, then those that prefill. Pointers are device memory.
struct OpBatch {
  int tokens = 0;                              ///< padding included
  DecodeBatch decode;                          ///< of the first requests * query_tokens rows
  PrefillBatch prefill;                        ///< query_start counts from the first prefill row
  int prefill_tokens = 0;                      ///< real rows of the requests that prefill
  std::int64_t prefill_keys = 0;               ///< sum of their context lengths: kv_start[requests]
  const std::int32_t* positions = nullptr;     ///< [tokens] position in the request's context
  const std::int32_t* slot_mapping = nullptr;  ///< [tokens] row of the cache, -1 for padding
  int decode_tokens() const { return decode.requests * decode.query_tokens; }
};

struct A0Args {
  const LayerDims* dims = nullptr;
  LayerWeights weights;
  UbatchBuffers buffers;
  A0Scratch scratch;
  OpBatch batch;
  KvCache cache;
  const float* rope = nullptr;              ///< table of dim 64 (MLA) or 128 (GQA), see launch_rope_table
  const void* add[2] = {nullptr, nullptr};  ///< [tokens][hidden], null: nothing to add
  int sm_target = 0;                        ///< for cuBLAS; 0: the whole device
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_a0(OpContext& context, const A0Args& args, cudaStream_t stream);

struct A1Args {
  const LayerDims* dims = nullptr;
  LayerWeights weights;
  UbatchBuffers buffers;
  A1Scratch scratch;
  OpBatch batch;
  KvCache cache;
  const std::int32_t* plan_expert = nullptr;  ///< [tokens][top_k] the plan's routing; null: the gate's own choice
  bool gate = true;                           ///< false in a dense layer
  int sms = 0;                                ///< blocks of the decode kernels (attention ignores SM limits); 0: all
  int sm_target = 0;
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_a1(OpContext& context, const A1Args& args, cudaStream_t stream);

struct MlpArgs {
  const LayerDims* dims = nullptr;
  LayerWeights weights;
  MoeDims moe;
  ElementType payload = ElementType::Bf16;
  RankMajorView rank_major;  ///< one of the two views has rows
  ExpertMajorView expert_major;
  void* out = nullptr;  ///< as moe_buffers.h says for that view
  MlpScratch scratch;
  std::int64_t max_rows = 0;        ///< of scratch
  MlpChoice choice = {};            ///< by choose_mlp for about these rows of each expert
  int sms = 0;                      ///< exact, for both grouped GEMMs; 0: all
  std::uint32_t* sm_ids = nullptr;  ///< [2][sms] SM of each block of the two GEMMs, optional
};
[[nodiscard]] cudaError_t launch_mlp(OpContext& context, const MlpArgs& args, cudaStream_t stream);

/// Ops S and FFN: in [tokens][hidden] through a SwiGLU block of `width` to out.
struct SwiGluBlockArgs {
  const LayerDims* dims = nullptr;
  const void* up = nullptr;  ///< Tensor::SharedUp or DenseUp
  const void* down = nullptr;
  int width = 0;
  const void* in = nullptr;
  void* out = nullptr;
  SwiGluScratch scratch;
  int tokens = 0;
  int sm_target = 0;
};
[[nodiscard]] cudaError_t launch_swiglu_block(OpContext& context, const SwiGluBlockArgs& args, cudaStream_t stream);

struct HeadArgs {
  const LayerDims* dims = nullptr;
  LayerWeights weights;            ///< WeightSet::Model
  const void* residual = nullptr;  ///< [tokens][hidden]
  const void* add[2] = {nullptr, nullptr};
  const std::int32_t* row_index = nullptr;  ///< [rows] tokens that need logits; null: all of the first `rows`
  int rows = 0;
  void* normed = nullptr;  ///< [rows][hidden] scratch
  void* logits = nullptr;  ///< bf16 [rows][vocab]
  int sm_target = 0;
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_head(OpContext& context, const HeadArgs& args, cudaStream_t stream);
// EMB is launch_embed of pointwise.h, into the residual stream.

/// Random weights of a set at `base`, reproducible by uniform(tensor_seed(...), index). `first_expert` is the global
/// index of local expert 0.
[[nodiscard]] cudaError_t launch_fill_weights(const WeightLayout& layout, void* base, std::uint64_t seed,
                                              int first_expert, cudaStream_t stream);

}  // namespace dbo::kernels
