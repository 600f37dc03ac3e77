// Rows for the e4m3 grouped GEMM: gathered by expert or taken as they lie, e4m3 with a scale for 128 neighbours. Plain
// C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/moe_buffers.h"

namespace dbo::kernels {

/// out [rows][width] e4m3 and out_scales [ceil(width / 128)][scale_stride] of rows [row[r]] (or r); rows =
/// offset[experts], read on the device. bf16 rows are quantised by the rule of moe_buffers.h, the last block of a width
/// that 128 does not divide being shorter; e4m3 rows are copied with their scales.
struct QuantiseRowsArgs {
  ElementType type = ElementType::Bf16;  ///< of `rows`
  const void* rows = nullptr;            ///< [..][width]
  const float* scales = nullptr;         ///< e4m3: [..][width / 128]
  const std::int32_t* row = nullptr;     ///< [rows] or null: row r is r
  const std::int32_t* offset = nullptr;  ///< [experts + 1]
  int experts = 0;
  int width = 0;  ///< a multiple of 16; e4m3: of 128
  void* out = nullptr;
  float* out_scales = nullptr;
  std::int64_t scale_stride = 0;  ///< at least the number of rows
  int blocks = 0;                 ///< thread blocks; a few per SM it may use
};
[[nodiscard]] cudaError_t launch_quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
