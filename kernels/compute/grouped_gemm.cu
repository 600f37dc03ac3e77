#include "kernels/compute/grouped_gemm.h"

#include "kernels/compute/grouped_gemm.cuh"
#include "kernels/compute/grouped_tokens.h"

namespace dbo::kernels {

cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows, int k,
                               TensorMap& map) {
  return encode_matrix_map(encoder, a, max_rows, k, std::int64_t{k} * 2, 32, map);
}

cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                               TensorMap& map) {
  return encode_matrix_map(encoder, w, std::int64_t{experts} * n, k, std::int64_t{k} * 2, 128, map);
}

cudaError_t prepare_grouped_gemm() {
  for (const cudaError_t status : {grouped::prepare<false>(), grouped::prepare<true>(), grouped_tokens::prepare()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream) {
  const bool swiglu = args.epilogue == GroupedEpilogue::SwiGlu;
  if (args.experts < 1 || args.experts > kMaxLocalExperts || args.sms < 1 || args.k < 8 || args.k % 8 != 0 ||
      args.n < 8 || args.n % (swiglu ? 16 : 8) != 0 || args.c_stride % 8 != 0 || args.offset == nullptr ||
      args.c == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.tile == GroupedTile::Tokens) return grouped_tokens::launch(args, stream);
  return swiglu ? grouped::launch<true>(args, stream) : grouped::launch<false>(args, stream);
}

GroupedTile choose_grouped_tile(std::int64_t rows_per_expert) {
  // Tiles of 128 tokens waste the rest of the last one, and blocks with a full and a nearly empty tile of the same
  // weights drift apart until both read the weights from HBM: 217 us for 130 rows where 256 take 167 us (H200, 8
  // experts of 4096 x 7168).
  const std::int64_t whole = (rows_per_expert + 127) / 128 * 128;
  return rows_per_expert > 128 && 10 * whole > 11 * rows_per_expert ? GroupedTile::Tokens : GroupedTile::Columns;
}

}  // namespace dbo::kernels
