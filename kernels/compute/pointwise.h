// The small kernels of a layer: norms with the residual stream, rotation, cache writes, SwiGLU, embedding, and the
// deterministic fill of weights. Plain C++ interface; arrays are bf16 device memory unless said otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/hash.h"

namespace dbo::kernels {

/// x = in + add[0] + add[1] in fp32, rounded once; out = x / rms(x) * weight, the norm taken of the rounded x.
struct RmsNormArgs {
  const void* in = nullptr;                 ///< [.. ][in_stride]
  std::int64_t in_stride = 0;               ///< elements, a multiple of 8
  const void* add[2] = {nullptr, nullptr};  ///< [..][width] each, or null
  void* sum = nullptr;                      ///< [rows][in_stride] receives x, may be `in`; null: not kept
  const std::int32_t* row_index = nullptr;  ///< [rows] row of `in` and `add` that each output row takes; null: its own
  const void* weight = nullptr;             ///< [width]
  void* out = nullptr;                      ///< [rows][width]
  int rows = 0;
  int width = 0;  ///< a multiple of 8, at most 16384
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_rms_norm(const RmsNormArgs& args, cudaStream_t stream);

/// cos and sin of position * theta^(-2 i / dim), [positions][dim / 2][2] fp32.
struct RopeTableArgs {
  float* table = nullptr;
  int positions = 0;
  int dim = 0;
  double theta = 10000.0;
};
[[nodiscard]] cudaError_t launch_rope_table(const RopeTableArgs& args, cudaStream_t stream);

/// MLA: normalises the latent, rotates the key's 64 columns (pairs of neighbours) and writes both to the cache.
struct MlaWriteArgs {
  const void* kv = nullptr;                    ///< [tokens][kv_stride]: 512 of latent, then 64 of key
  std::int64_t kv_stride = 0;                  ///< elements, a multiple of 8
  const void* weight = nullptr;                ///< [512]
  const float* rope = nullptr;                 ///< table of dim 64
  const std::int32_t* positions = nullptr;     ///< [tokens]
  const std::int32_t* slot_mapping = nullptr;  ///< [tokens] row of the cache, -1: not written
  void* cache = nullptr;                       ///< [pages * 64][576]
  int tokens = 0;
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_mla_write(const MlaWriteArgs& args, cudaStream_t stream);

/// MLA: rotates the last 64 columns of every query head (pairs of neighbours) from `q` to `out`, which may be the same.
struct MlaRotateArgs {
  const void* q = nullptr;      ///< [tokens][q_stride], heads of 192: columns 128 to 191 of each
  std::int64_t q_stride = 0;    ///< elements, even
  void* out = nullptr;          ///< [tokens][out_stride], heads of out_head_stride: 64 from out_column of each
  std::int64_t out_stride = 0;  ///< even
  int out_head_stride = 0;      ///< even
  int out_column = 0;           ///< even
  const float* rope = nullptr;  ///< table of dim 64
  const std::int32_t* positions = nullptr;  ///< [tokens]
  int tokens = 0;
  int heads = 0;
};
[[nodiscard]] cudaError_t launch_mla_rotate(const MlaRotateArgs& args, cudaStream_t stream);

/// GQA: adds the bias, normalises and rotates (halves of a head) the query heads in place, and writes keys, treated the
/// same, and values to the cache.
struct GqaWriteArgs {
  void* qkv = nullptr;             ///< [tokens][(heads + 2 kv_heads) * 128]: q, k, v
  const void* bias = nullptr;      ///< [(heads + 2 kv_heads) * 128] or null
  const void* q_weight = nullptr;  ///< [128], null: no norm
  const void* k_weight = nullptr;  ///< [128], null: no norm
  const float* rope = nullptr;     ///< table of dim 128
  const std::int32_t* positions = nullptr;
  const std::int32_t* slot_mapping = nullptr;
  void* k_cache = nullptr;  ///< [pages * 64][kv_heads][128]
  void* v_cache = nullptr;
  int tokens = 0;
  int heads = 0;
  int kv_heads = 0;
  float epsilon = 1e-6f;
};
[[nodiscard]] cudaError_t launch_gqa_write(const GqaWriteArgs& args, cudaStream_t stream);

/// out [rows][width] = silu(gate) * up; columns of `in` [rows][2 width] alternate in blocks of 8: gate, up.
struct SwiGluArgs {
  const void* in = nullptr;
  void* out = nullptr;
  int rows = 0;
  int width = 0;  ///< a multiple of 8
};
[[nodiscard]] cudaError_t launch_swiglu(const SwiGluArgs& args, cudaStream_t stream);

/// out [tokens][hidden] = table [ids[t]][hidden].
struct EmbedArgs {
  const void* table = nullptr;
  const std::int32_t* ids = nullptr;
  void* out = nullptr;
  int tokens = 0;
  int hidden = 0;  ///< a multiple of 8
};
[[nodiscard]] cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream);

/// Element i becomes offset + scale * uniform(seed, first + i) (hash.h), rounded to its type.
struct FillArgs {
  void* out = nullptr;
  NumberType type = NumberType::Bf16;
  std::int64_t count = 0;
  std::uint64_t seed = 0;
  std::int64_t first = 0;
  float scale = 1.0f;
  float offset = 0.0f;
};
[[nodiscard]] cudaError_t launch_fill(const FillArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
