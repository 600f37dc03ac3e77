// Descriptors of tiled global-memory arrays for Hopper's bulk tensor copies. Plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dbo::kernels {

/// What the driver calls CUtensorMap, without its header.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16] = {};
};

/// The driver's encoder, looked up at run time so that nothing links the driver.
struct TensorMapEncoder {
  void* function = nullptr;
};

/// Fails with cudaErrorSymbolNotFound when the driver has no bulk tensor copies.
[[nodiscard]] cudaError_t find_tensor_map_encoder(TensorMapEncoder& encoder);

enum class TensorMapElement : std::uint8_t { Bf16, Float };

/// An array of up to three dimensions, innermost first, copied in boxes. Of Bf16 `box[0]` is 128 bytes, which are
/// swizzled; Float is copied as it lies. Elements outside `size` read as zero. The innermost coordinate of a copy
/// must be a multiple of 16 bytes (else: illegal instruction), the others are free.
struct TensorMapShape {
  TensorMapElement element = TensorMapElement::Bf16;
  const void* base = nullptr;          ///< a multiple of 16
  int rank = 2;                        ///< 2 or 3
  std::uint64_t size[3] = {};          ///< elements
  std::uint64_t stride_bytes[2] = {};  ///< of dimension 1 and 2, multiples of 16
  std::uint32_t box[3] = {};           ///< elements, at most 256
};

/// Host only, no CUDA call that could disturb a capture. cudaErrorInvalidValue when the driver refuses the shape.
[[nodiscard]] cudaError_t encode_tensor_map(const TensorMapEncoder& encoder, const TensorMapShape& shape,
                                            TensorMap& map);

/// Rows of `columns` bf16, `row_bytes` apart, in boxes of 128 bytes by `box_rows` rows.
[[nodiscard]] cudaError_t encode_matrix_map(const TensorMapEncoder& encoder, const void* base, std::int64_t rows,
                                            std::int64_t columns, std::int64_t row_bytes, int box_rows, TensorMap& map);

}  // namespace dbo::kernels
