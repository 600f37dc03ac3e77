#include "kernels/compute/grouped_gemm.h"

#include "kernels/compute/grouped_gemm.cuh"
#include "kernels/compute/grouped_tiles.h"
#include "kernels/compute/grouped_tokens.h"

namespace dbo::kernels {

namespace {

/// Rows of either type are copied as if they were bf16.
cudaError_t encode_rows(const TensorMapEncoder& encoder, const void* base, std::int64_t rows, int k, ElementType type,
                        int box, TensorMap& map) {
  const std::int64_t bytes = std::int64_t{k} * (type == ElementType::Bf16 ? 2 : 1);
  return encode_matrix_map(encoder, base, rows, bytes / 2, bytes, box, map);
}

}  // namespace

cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows, int k,
                               GroupedRowsMap& map, ElementType type) {
  for (int i = 0; i < GroupedRowsMap::kBoxes; ++i) {
    const cudaError_t status = encode_rows(encoder, a, max_rows, k, type, (i + 1) * GroupedRowsMap::kStep, map.box[i]);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                               GroupedWeightsMap& map, ElementType type) {
  static_assert(kTokenTileRows == kColumnTileColumns);
  const int rows = type == ElementType::Bf16 ? kTokenTileRows : kTokenTileRowsFp8;
  const auto encode = [&](int box, TensorMap& of) {
    return encode_rows(encoder, w, std::int64_t{experts} * n, k, type, box, of);
  };
  const cudaError_t status = encode(rows, map.whole);
  return status == cudaSuccess ? encode(rows / 2, map.half) : status;
}

cudaError_t make_grouped_scale_map(const TensorMapEncoder& encoder, const float* scales, std::int64_t max_rows, int k,
                                   TensorMap& map) {
  const std::int64_t stride = grouped_scale_stride(max_rows);
  TensorMapShape shape;
  shape.element = TensorMapElement::Float;
  shape.base = scales;
  shape.rank = 2;
  shape.size[0] = static_cast<std::uint64_t>(stride);
  shape.size[1] = static_cast<std::uint64_t>((k + kScaleBlock - 1) / kScaleBlock);
  shape.stride_bytes[0] = static_cast<std::uint64_t>(stride) * sizeof(float);
  shape.box[0] = kTokenScaleBox;
  shape.box[1] = 1;
  return encode_tensor_map(encoder, shape, map);
}

cudaError_t prepare_grouped_gemm() {
  for (const cudaError_t status : {grouped::prepare<false>(), grouped::prepare<true>(), grouped_tokens::prepare(),
                                   grouped_fp8::prepare(), grouped_fp8_rows::prepare()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream) {
  const bool swiglu = args.epilogue == GroupedEpilogue::SwiGlu, fp8 = args.type == ElementType::Fp8E4m3;
  if (args.experts < 1 || args.experts > kMaxLocalExperts || args.sms < 1 || args.k < 8 ||
      args.k % (fp8 ? 16 : 8) != 0 || args.n < 8 || args.n % (swiglu ? 16 : 8) != 0 || args.c_stride % 8 != 0 ||
      args.offset == nullptr || args.c == nullptr || (fp8 && args.w_scale == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (args.tile == GroupedTile::Tokens) {
    return fp8 ? grouped_fp8::launch(args, stream) : grouped_tokens::launch(args, stream);
  }
  if (fp8) return grouped_fp8_rows::launch(args, stream);
  return swiglu ? grouped::launch<true>(args, stream) : grouped::launch<false>(args, stream);
}

}  // namespace dbo::kernels
