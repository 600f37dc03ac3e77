// Grouped GEMM of the routed experts: for each expert e, C[rows of e] = A[rows of e] W[e]^T with fp32 sums, on an exact
// number of SMs, with row counts read on the device. Operands are bf16, or e4m3 with fp32 scales as DeepSeek-V3 has
// them: one for 128 neighbours of a row of A, one for a block of 128 x 128 of W; products are scaled and added to the
// sums after each 128 along K, since the tensor cores keep too few bits of longer sums. Plain C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/grouped_choice.h"
#include "kernels/compute/grouped_tiles.h"
#include "kernels/compute/limits.h"
#include "kernels/compute/tensor_map.h"
#include "kernels/moe_buffers.h"

namespace dbo::kernels {

/// What the epilogue does with the accumulators.
enum class GroupedEpilogue : std::uint8_t {
  Store,   ///< C [rows][n]
  SwiGlu,  ///< C [rows][n / 2] = silu(gate) * up; gate and up rows of W alternate in blocks of 8 (gate first)
};

/// Maps of A whose boxes have 16, 32, ... rows: a tile's rows are one copy. Several small ones take much longer.
struct GroupedRowsMap {
  static constexpr int kStep = 16;
  static constexpr int kBoxes = kTokenTileMostFp8 / kStep;
  TensorMap box[kBoxes];
};

/// Maps of W whose boxes are the rows of a tile and of half a tile.
struct GroupedWeightsMap {
  TensorMap whole, half;
};

struct GroupedGemmArgs {
  ElementType type = ElementType::Bf16;   ///< of A and W
  GroupedRowsMap a;                       ///< [max_rows][k] by make_grouped_a_map
  GroupedWeightsMap w;                    ///< [experts * n][k] by make_grouped_w_map
  TensorMap a_scale;                      ///< e4m3: by make_grouped_scale_map
  const float* w_scale = nullptr;         ///< e4m3: [experts][ceil(n / 128)][ceil(k / 128)]
  const std::int32_t* offset = nullptr;   ///< [experts + 1] first row of each expert in A, ascending, device memory
  const std::int32_t* row_map = nullptr;  ///< [max_rows] row of C that a row of A goes to; null: the same
  void* c = nullptr;                      ///< bf16, rows `c_stride` elements apart
  std::int64_t c_stride = 0;              ///< a multiple of 8
  int experts = 0;                        ///< 1 to kMaxLocalExperts
  int n = 0;                              ///< rows of W per expert, a multiple of 8 (of 16 for SwiGlu)
  int k = 0;                              ///< a multiple of 8 (of 16 for e4m3)
  int sms = 0;                            ///< blocks launched, one per SM
  GroupedTile tile = GroupedTile::Columns;
  GroupedEpilogue epilogue = GroupedEpilogue::Store;
  std::int32_t* ticket = nullptr;  ///< [2] counters of the launch, zero before and after it (Tokens, e4m3)
  /// The launch may begin while the kernel before it on the stream ends: the first weights are on their way then.
  /// Weights, their scales, `offset` and `row_map` must have been complete before that kernel began. For launches on
  /// all SMs: else blocks that wait take SMs beyond `sms`.
  bool early_start = false;
  GroupedTuning tuning = {};
  std::uint32_t* sm_ids = nullptr;  ///< [sms] gets the SM of each block; null: not recorded
};

/// Rows past `max_rows` read as zero.
[[nodiscard]] cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows,
                                             int k, GroupedRowsMap& map, ElementType type = ElementType::Bf16);
[[nodiscard]] cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                                             GroupedWeightsMap& map, ElementType type = ElementType::Bf16);
/// Scales of A by block: fp32 [ceil(k / 128)][grouped_scale_stride(max_rows)].
[[nodiscard]] cudaError_t make_grouped_scale_map(const TensorMapEncoder& encoder, const float* scales,
                                                 std::int64_t max_rows, int k, TensorMap& map);

/// Sets what the kernels need once per device (shared-memory limits). Call before the first launch.
[[nodiscard]] cudaError_t prepare_grouped_gemm();

/// cudaErrorInvalidValue for shapes outside what GroupedGemmArgs says. Every row of C that a row of A maps to is
/// written; no other byte is. The result does not depend on `sms` or `tile`.
[[nodiscard]] cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
