// Between the all-to-all's row layouts and the grouped GEMM: which received row is which expert's, gathering rows by
// expert, and the weighted sum back. Plain C++ interface; the layouts are those of kernels/moe_buffers.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/limits.h"
#include "kernels/moe_buffers.h"

namespace dbo::kernels {

/// Rows sorted by expert, in the order of the received rows (then of k) within an expert: the same in every run.
struct ExpertIndex {
  std::int32_t* offset = nullptr;    ///< [experts_per_rank + 1] first sorted row of each expert
  std::int32_t* row = nullptr;       ///< [max_rows] received row of each sorted row
  std::int32_t* position = nullptr;  ///< rank-major only: [ranks * max_tokens][top_k] sorted row of each choice, -1 for
                                     ///< choices that are not here; only filled slots are written
};

/// Traps when there are more than `max_rows` rows: the buffers behind could not hold them.
struct IndexArgs {
  MoeDims dims;
  const std::int32_t* expert = nullptr;  ///< RankMajorView::expert; null for expert-major
  const std::int32_t* count = nullptr;   ///< the view's counts
  ExpertIndex index;
  int max_rows = 0;
  std::int32_t* block_count = nullptr;  ///< rank-major: scratch [kIndexBlocks][experts_per_rank]
  std::int32_t* ticket = nullptr;  ///< [kTickets] set to zero for the grouped GEMMs that follow; null: nothing to set
};
/// At most kMaxLocalExperts experts and 4096 ranks.
[[nodiscard]] cudaError_t launch_rank_major_index(const IndexArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_expert_major_index(const IndexArgs& args, cudaStream_t stream);

/// out [sorted rows][hidden] bf16 = rows [index.row], fp8 rows multiplied by their scales.
struct GatherRowsArgs {
  ElementType type = ElementType::Bf16;
  const void* rows = nullptr;
  const float* scales = nullptr;
  ExpertIndex index;
  int experts = 0;
  int hidden = 0;
  void* out = nullptr;
  int blocks = 0;  ///< thread blocks; a few per SM it may use
};
[[nodiscard]] cudaError_t launch_gather_rows(const GatherRowsArgs& args, cudaStream_t stream);

/// Rank-major result: out [ranks * max_tokens][hidden], filled slots only: the token's sorted rows times their weights,
/// added in fp32 in the order of k and rounded once.
struct ReduceRowsArgs {
  MoeDims dims;
  const std::int32_t* count = nullptr;  ///< RankMajorView::count
  const float* weight = nullptr;        ///< RankMajorView::weight
  ExpertIndex index;
  const void* sorted = nullptr;  ///< [sorted rows][hidden]
  void* out = nullptr;
  int blocks = 0;
};
[[nodiscard]] cudaError_t launch_reduce_rows(const ReduceRowsArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
