// Attention cores over a paged cache: MLA in absorbed form and GQA for decode, split over the keys; prefill for both.
// Plain C++ interface. All pointers are device memory unless said otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/limits.h"
#include "kernels/compute/tensor_map.h"

namespace dbo::kernels {

/// Requests that decode: each has `query_tokens` new tokens at the end of its context, rows r * query_tokens and on of
/// q and out. Every row of a page that the block table names must hold finite numbers, also past the context's end.
struct DecodeBatch {
  const std::int32_t* seq_lens =
      nullptr;  ///< [requests] context length, the new tokens included; 0: no output but zeros
  const std::int32_t* block_table = nullptr;  ///< [requests][max_pages] page of each 64 tokens
  int max_pages = 0;
  int requests = 0;
  int query_tokens = 1;
};

/// Memory for partial results of a decode launch.
struct DecodePartials {
  float* o = nullptr;
  float* log2_sum = nullptr;
};

struct MlaDecodeArgs {
  TensorMap cache;  ///< by make_mla_cache_map
  DecodeBatch batch;
  const void* q = nullptr;  ///< bf16 [requests * query_tokens][heads][576]: absorbed, then rotated
  void* out = nullptr;      ///< bf16 [requests * query_tokens][heads][512]
  DecodePartials partials;  ///< of mla_decode_partials(sms) entries
  int heads = 0;
  float scale = 0;                  ///< of the scores
  int sms = 0;                      ///< blocks, one per SM; at least ceil(query_tokens * heads / 64)
  std::uint32_t* sm_ids = nullptr;  ///< [sms], optional
};

/// Cache [pages * 64][576] bf16.
[[nodiscard]] cudaError_t make_mla_cache_map(const TensorMapEncoder& encoder, const void* cache, int pages,
                                             TensorMap& map);
[[nodiscard]] cudaError_t launch_mla_decode(const MlaDecodeArgs& args, cudaStream_t stream);

struct GqaDecodeArgs {
  const void* k_cache = nullptr;  ///< bf16 [pages * 64][kv_heads][128]
  const void* v_cache = nullptr;
  DecodeBatch batch;
  const void* q = nullptr;    ///< bf16 [requests * query_tokens][q_stride], heads of 128 from the start of a row
  std::int64_t q_stride = 0;  ///< elements
  void* out = nullptr;        ///< bf16 [requests * query_tokens][heads][128]
  DecodePartials partials;    ///< of gqa_decode_partials(sms) entries
  int heads = 0;
  int kv_heads = 0;
  float scale = 0;
  int sms = 0;                      ///< two blocks run on each
  std::uint32_t* sm_ids = nullptr;  ///< [2 * sms], optional
};

[[nodiscard]] cudaError_t launch_gqa_decode(const GqaDecodeArgs& args, cudaStream_t stream);

/// Requests that prefill: request r has query rows [query_start[r], query_start[r + 1]) of q and out, which are the
/// last tokens of its context of seq_lens[r] (a query range inside a longer sequence: the earlier tokens are in the
/// cache).
struct PrefillBatch {
  const std::int32_t* query_start = nullptr;  ///< [requests + 1]
  const std::int32_t* seq_lens = nullptr;     ///< [requests]
  const std::int32_t* kv_start = nullptr;     ///< [requests + 1] prefix sums of seq_lens (MLA only)
  const std::int32_t* block_table = nullptr;  ///< [requests][max_pages]
  int max_pages = 0;
  int requests = 0;
  int query_blocks = 0;  ///< sum over requests of ceil(query length / 128), known to the host
};

/// MLA unabsorbed: keys and values of the whole contexts have been projected up beforehand.
struct MlaPrefillArgs {
  TensorMap q;     ///< [tokens][heads * 192] by encode_matrix_map with 64 rows a box
  TensorMap kv;    ///< [kv rows][heads * 256]: per head 128 of k, then 128 of v; 64 rows a box
  TensorMap rope;  ///< [kv rows][576]: the rotated key is columns 512 to 575; 64 rows a box
  PrefillBatch batch;
  void* out = nullptr;  ///< bf16 [tokens][heads][128]
  int heads = 0;
  float scale = 0;
};
[[nodiscard]] cudaError_t launch_mla_prefill(const MlaPrefillArgs& args, cudaStream_t stream);

struct GqaPrefillArgs {
  TensorMap q;  ///< [tokens][>= heads * 128], 64 rows a box
  TensorMap k;  ///< [pages * 64][kv_heads * 128], 64 rows a box
  TensorMap v;
  PrefillBatch batch;
  void* out = nullptr;  ///< bf16 [tokens][heads][128]
  int heads = 0;
  int kv_heads = 0;
  float scale = 0;
};
[[nodiscard]] cudaError_t launch_gqa_prefill(const GqaPrefillArgs& args, cudaStream_t stream);

/// Copies the cached rows of all prefill contexts one after the other: out [kv_start[requests]][576].
struct GatherLatentArgs {
  const void* cache = nullptr;  ///< bf16 [pages * 64][576]
  PrefillBatch batch;
  void* out = nullptr;
  int kv_rows = 0;  ///< kv_start[requests]
};
[[nodiscard]] cudaError_t launch_gather_latent(const GatherLatentArgs& args, cudaStream_t stream);

/// Once per device before the first launch.
[[nodiscard]] cudaError_t prepare_attention();

}  // namespace dbo::kernels
