#include "kernels/compute/grouped_gemm.h"

#include "kernels/compute/grouped_gemm.cuh"

namespace dbo::kernels {

namespace {

constexpr int columns(GroupedTile tile) {
  return tile == GroupedTile::Columns128 ? 128 : 256;
}

template <bool kSwiGlu>
cudaError_t dispatch(const GroupedGemmArgs& args, cudaStream_t stream) {
  switch (args.tile) {
    case GroupedTile::Columns256:
      return grouped::launch<256, 1, kSwiGlu>(args, stream);
    case GroupedTile::Columns256Cluster:
      return grouped::launch<256, 2, kSwiGlu>(args, stream);
    case GroupedTile::Columns128:
      return grouped::launch<128, 1, kSwiGlu>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows, int k,
                               TensorMap& map) {
  return encode_matrix_map(encoder, a, max_rows, k, std::int64_t{k} * 2, grouped::kBoxRows, map);
}

cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                               GroupedTile tile, TensorMap& map) {
  return encode_matrix_map(encoder, w, std::int64_t{experts} * n, k, std::int64_t{k} * 2, columns(tile) / 2, map);
}

cudaError_t prepare_grouped_gemm() {
  cudaError_t status = cudaSuccess;
  const auto keep_first = [&](cudaError_t s) {
    if (status == cudaSuccess) status = s;
  };
  keep_first(grouped::prepare<256, 1, false>());
  keep_first(grouped::prepare<256, 1, true>());
  keep_first(grouped::prepare<256, 2, false>());
  keep_first(grouped::prepare<256, 2, true>());
  keep_first(grouped::prepare<128, 1, false>());
  keep_first(grouped::prepare<128, 1, true>());
  return status;
}

cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream) {
  const bool swiglu = args.epilogue == GroupedEpilogue::SwiGlu;
  if (args.experts < 1 || args.experts > kMaxLocalExperts || args.sms < 1 || args.k < 8 || args.k % 8 != 0 ||
      args.n < 8 || args.n % (swiglu ? 16 : 8) != 0 || args.c_stride % 8 != 0 || args.offset == nullptr ||
      args.c == nullptr || (args.tile == GroupedTile::Columns256Cluster && args.sms % 2 != 0)) {
    return cudaErrorInvalidValue;
  }
  return swiglu ? dispatch<true>(args, stream) : dispatch<false>(args, stream);
}

std::int64_t grouped_tiles(std::int64_t rows, int n, GroupedTile tile) {
  return (rows + grouped::kTileM - 1) / grouped::kTileM * ((n + columns(tile) - 1) / columns(tile));
}

GroupedTile choose_grouped_tile(int experts, std::int64_t rows_per_expert, int n, int sms) {
  // Rounds of tiles times the columns of a tile stand for time; the narrow tile fetches more of A per flop.
  const auto cost = [&](GroupedTile tile, double factor) {
    const std::int64_t tiles = experts * grouped_tiles(rows_per_expert, n, tile);
    return static_cast<double>((tiles + sms - 1) / sms * columns(tile)) * factor;
  };
  if (cost(GroupedTile::Columns128, 1.1) < cost(GroupedTile::Columns256, 1.0)) return GroupedTile::Columns128;
  return sms % 2 == 0 && rows_per_expert > 128 ? GroupedTile::Columns256Cluster : GroupedTile::Columns256;
}

}  // namespace dbo::kernels
