// Grouped GEMM of the routed experts: for each expert e, C[rows of e] = A[rows of e] W[e]^T in bf16 with fp32 sums, on
// an exact number of SMs, with row counts read on the device. Plain C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/limits.h"
#include "kernels/compute/tensor_map.h"

namespace dbo::kernels {

/// Kernel variants, by what the columns of their matrix products are.
enum class GroupedTile : std::uint8_t {
  Columns,  ///< columns of C: tiles of 128 tokens x 256 columns, blocks take them in turns
  Tokens,   ///< tokens: tiles of 256 columns of C x up to 192 tokens, blocks draw them from a counter
};

/// How the Tokens variant goes about its work, for measurements. Results do not depend on it.
struct GroupedTuning {
  int most_tokens = 192;  ///< of a tile, a multiple of 16
  int prefetch = 0;       ///< steps of 64 along K that the L2 fetches weights ahead
  bool stagger = true;    ///< one warpgroup starts two steps behind the other
};

/// What the epilogue does with the accumulators.
enum class GroupedEpilogue : std::uint8_t {
  Store,   ///< C [rows][n]
  SwiGlu,  ///< C [rows][n / 2] = silu(gate) * up; gate and up rows of W alternate in blocks of 8 (gate first)
};

struct GroupedGemmArgs {
  TensorMap a;                            ///< [max_rows][k] by make_grouped_a_map
  TensorMap w;                            ///< [experts * n][k] by make_grouped_w_map
  const std::int32_t* offset = nullptr;   ///< [experts + 1] first row of each expert in A, ascending, device memory
  const std::int32_t* row_map = nullptr;  ///< [max_rows] row of C that a row of A goes to; null: the same
  void* c = nullptr;                      ///< bf16, rows `c_stride` elements apart
  std::int64_t c_stride = 0;              ///< a multiple of 8
  int experts = 0;                        ///< 1 to kMaxLocalExperts
  int n = 0;                              ///< rows of W per expert, a multiple of 8 (of 16 for SwiGlu)
  int k = 0;                              ///< a multiple of 8
  int sms = 0;                            ///< blocks launched, one per SM
  GroupedTile tile = GroupedTile::Columns;
  GroupedEpilogue epilogue = GroupedEpilogue::Store;
  std::int32_t* ticket = nullptr;  ///< [2] counters of the launch, zero before and after it (Tokens)
  GroupedTuning tuning = {};
  std::uint32_t* sm_ids = nullptr;  ///< [sms] gets the SM of each block; null: not recorded
};

/// Largest m a block of A's tensor map may name; rows past `max_rows` read as zero.
[[nodiscard]] cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows,
                                             int k, TensorMap& map);
[[nodiscard]] cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                                             TensorMap& map);

/// Sets what the kernels need once per device (shared-memory limits). Call before the first launch.
[[nodiscard]] cudaError_t prepare_grouped_gemm();

/// cudaErrorInvalidValue for shapes outside what GroupedGemmArgs says. Every row of C that a row of A maps to is
/// written; no other byte is. The result does not depend on `sms` or `tile`.
[[nodiscard]] cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream);

/// The variant expected to be fastest when every expert gets about `rows_per_expert` rows.
GroupedTile choose_grouped_tile(std::int64_t rows_per_expert);

}  // namespace dbo::kernels
