#include "kernels/compute/tensor_map.h"

#include "kernels/compute/tensor_map.cuh"

namespace dbo::kernels {

cudaError_t find_tensor_map_encoder(TensorMapEncoder& encoder) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (status != cudaSuccess) return status;
  if (found != cudaDriverEntryPointSuccess || function == nullptr) return cudaErrorSymbolNotFound;
  encoder.function = function;
  return cudaSuccess;
}

cudaError_t encode_tensor_map(const TensorMapEncoder& encoder, const TensorMapShape& shape, TensorMap& map) {
  if (encoder.function == nullptr || shape.rank < 2 || shape.rank > 3) return cudaErrorInvalidValue;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encoder.function);
  cuuint64_t size[3], stride[2];
  cuuint32_t box[3], step[3];
  for (int i = 0; i < shape.rank; ++i) {
    size[i] = shape.size[i];
    box[i] = shape.box[i];
    step[i] = 1;
    if (i > 0) stride[i - 1] = shape.stride_bytes[i - 1];
  }
  constexpr CUtensorMapDataType kTypes[] = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
  const bool plain = shape.element == TensorMapElement::Float;
  CUtensorMap encoded;
  const CUresult status = encode(&encoded, kTypes[static_cast<int>(shape.element)], static_cast<cuuint32_t>(shape.rank),
                                 const_cast<void*>(shape.base), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 plain ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) return cudaErrorInvalidValue;
  std::memcpy(map.opaque, &encoded, sizeof map.opaque);
  return cudaSuccess;
}

cudaError_t encode_matrix_map(const TensorMapEncoder& encoder, const void* base, std::int64_t rows,
                              std::int64_t columns, std::int64_t row_bytes, int box_rows, TensorMap& map) {
  TensorMapShape shape;
  shape.base = base;
  shape.rank = 2;
  shape.size[0] = static_cast<std::uint64_t>(columns);
  shape.size[1] = static_cast<std::uint64_t>(rows);
  shape.stride_bytes[0] = static_cast<std::uint64_t>(row_bytes);
  shape.box[0] = 64;
  shape.box[1] = static_cast<std::uint32_t>(box_rows);
  return encode_tensor_map(encoder, shape, map);
}

}  // namespace dbo::kernels
