#include "kernels/compute/grouped_gemm.h"

#include "kernels/compute/grouped_gemm.cuh"
#include "kernels/compute/grouped_tokens.h"

namespace dbo::kernels {

namespace {

constexpr bool is_tokens(GroupedTile tile) {
  return tile != GroupedTile::Columns256 && tile != GroupedTile::Columns128;
}
/// Rows of A and columns of C of a whole tile.
constexpr int tile_rows(GroupedTile tile) {
  return tile == GroupedTile::Tokens256 ? 256 : tile == GroupedTile::Tokens64 ? 64 : 128;
}
constexpr int tile_columns(GroupedTile tile) {
  return tile == GroupedTile::Columns256 ? 256 : 128;
}

template <int kTileN>
cudaError_t launch_columns(const GroupedGemmArgs& args, cudaStream_t stream) {
  return args.epilogue == GroupedEpilogue::SwiGlu ? grouped::launch<kTileN, true>(args, stream)
                                                  : grouped::launch<kTileN, false>(args, stream);
}

}  // namespace

cudaError_t make_grouped_a_map(const TensorMapEncoder& encoder, const void* a, std::int64_t max_rows, int k,
                               TensorMap& map) {
  return encode_matrix_map(encoder, a, max_rows, k, std::int64_t{k} * 2, grouped::kBoxRows, map);
}

cudaError_t make_grouped_w_map(const TensorMapEncoder& encoder, const void* w, int experts, int n, int k,
                               GroupedTile tile, TensorMap& map) {
  const int box_rows = is_tokens(tile) ? 128 : tile_columns(tile) / 2;
  return encode_matrix_map(encoder, w, std::int64_t{experts} * n, k, std::int64_t{k} * 2, box_rows, map);
}

cudaError_t prepare_grouped_gemm() {
  cudaError_t status = cudaSuccess;
  const auto keep_first = [&](cudaError_t s) {
    if (status == cudaSuccess) status = s;
  };
  keep_first(grouped::prepare<256, false>());
  keep_first(grouped::prepare<256, true>());
  keep_first(grouped::prepare<128, false>());
  keep_first(grouped::prepare<128, true>());
  keep_first(grouped_tokens::prepare<256>());
  keep_first(grouped_tokens::prepare<128>());
  keep_first(grouped_tokens::prepare<64>());
  return status;
}

cudaError_t launch_grouped_gemm(const GroupedGemmArgs& args, cudaStream_t stream) {
  const bool swiglu = args.epilogue == GroupedEpilogue::SwiGlu;
  if (args.experts < 1 || args.experts > kMaxLocalExperts || args.sms < 1 || args.k < 8 || args.k % 8 != 0 ||
      args.n < 8 || args.n % (swiglu ? 16 : 8) != 0 || args.c_stride % 8 != 0 || args.offset == nullptr ||
      args.c == nullptr) {
    return cudaErrorInvalidValue;
  }
  switch (args.tile) {
    case GroupedTile::Columns256:
      return launch_columns<256>(args, stream);
    case GroupedTile::Columns128:
      return launch_columns<128>(args, stream);
    case GroupedTile::Tokens256:
      return grouped_tokens::launch<256>(args, stream);
    case GroupedTile::Tokens128:
      return grouped_tokens::launch<128>(args, stream);
    case GroupedTile::Tokens64:
      return grouped_tokens::launch<64>(args, stream);
  }
  return cudaErrorInvalidValue;
}

std::int64_t grouped_tiles(std::int64_t rows, int n, GroupedTile tile) {
  const int m = tile_rows(tile), columns = tile_columns(tile);
  return (rows + m - 1) / m * ((n + columns - 1) / columns);
}

GroupedTile choose_grouped_tile(int experts, std::int64_t rows_per_expert, int n, int sms) {
  // Rounds of tiles times the columns of a tile stand for time. A tile of 128 columns takes 0.64 of the time of one of
  // 256 (measured on an H200: 48.2 to 49.3 us against 76.4 to 77.2 us a round at k 7168, 14.8 against 23.2 at k 2048),
  // so it is worth taking only where it saves rounds.
  const auto cost = [&](GroupedTile tile, double time) {
    const std::int64_t tiles = experts * grouped_tiles(rows_per_expert, n, tile);
    return static_cast<double>((tiles + sms - 1) / sms) * time;
  };
  return cost(GroupedTile::Columns128, 0.64) < cost(GroupedTile::Columns256, 1.0) ? GroupedTile::Columns128
                                                                                  : GroupedTile::Columns256;
}

}  // namespace dbo::kernels
