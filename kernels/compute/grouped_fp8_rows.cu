// The grouped GEMM with e4m3 operands and columns of C as columns: a tile is 128 tokens, 64 for each warpgroup, by 192
// or 128 columns. It is drawn and its operands are copied as with tokens as columns (grouped_draw.cuh). A step along K
// is a block of 128, as the scales have them: its products are formed in one set of sums, then scaled and added to
// another; while one warpgroup scales, the other multiplies.
//
// A thread has two tokens, so that it reads two of their scales a step, where with tokens as columns they are up to 48.
// But tokens are rounded up to 64, where that way they are to 16.
#include "kernels/compute/grouped_draw.cuh"
#include "kernels/compute/grouped_tokens.h"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_fp8_rows {
namespace {

using namespace grouped_draw;
constexpr int kPartColumns = 64;                  // of C, that a warp writes out at a time
constexpr int kPartBytes = 8 * kPartColumns * 2;  // of 8 tokens
using S =
    Shape<kRowTileColumns, kRowTileTokens, kRowTileTokens / 2, kScaleBlock, 5, kPartBytes, 1024, kTokenScaleBox * 4>;
constexpr int kMostColumns = S::kRows;
using Sums = float[kMostColumns / 2];
// Where columns change from one block of scales to the next within a tile: at a multiple of this.
constexpr int kBlockStep = 32;
static_assert(S::kScales % 16 == 0 && S::kScales <= 1024);

struct RowParams {
  Params common;
  const float* w_scale;
};

/// What a warpgroup does of a tile: 64 tokens by all of its columns, or, of a tile of no more, half of the columns.
struct Part {
  int token_row;  // of the tile's tokens
  int tokens;
  int weight_row;  // of the tile's columns
  int column, columns;
};

__device__ __forceinline__ Part part_of(const TokenTile& tile, int group) {
  constexpr int kGroupTokens = kRowTileTokens / 2;
  Part part{0, tile.tokens, 0, tile.column, tile.rows};
  if (tile.tokens > kGroupTokens) {
    part.token_row = group * kGroupTokens;
    part.tokens = min(tile.tokens - part.token_row, kGroupTokens);
  } else {
    part.columns = tile.rows / 2;
    part.weight_row = group * part.columns;
    part.column += part.weight_row;
  }
  return part;
}

__device__ __forceinline__ float load_shared(std::uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}

/// All of K for 64 tokens and kN columns.
template <int kN>
__device__ __forceinline__ void multiply(Sums& sum, const RowParams& p, const Ring<S>& ring, const TokenTile& tile,
                                         const Part& part, int warp, int lane, int steps, const Turns& turns,
                                         Turn& turn) {
  const auto tokens = static_cast<std::uint32_t>(part.token_row * kRowBytes),
             weights = static_cast<std::uint32_t>(part.weight_row * kRowBytes);
  // The scales' copy began up to three tokens before the tile.
  const auto own =
      static_cast<std::uint32_t>((tile.token % kTokenScaleStep + part.token_row + warp * 16 + lane / 4) * 4);
  const int in_first = kScaleBlock - part.column % kScaleBlock;  // columns of the first block of scales
  const int blocks = tiles_up(p.common.n, kScaleBlock), block = part.column / kScaleBlock;
  const float* w_scale = p.w_scale + static_cast<std::int64_t>(tile.expert * blocks + block) * steps;
  const int to_second = block + 1 < blocks ? steps : 0;  // where there is no second block, it has no columns
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0.0f;
  for (int k = 0; k < steps; ++k) {
    const float first = __ldg(w_scale), second = __ldg(w_scale + to_second);
    ++w_scale;
    sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
    const std::uint64_t a = sm90::k_major_descriptor(ring.tokens(turn.stage) + tokens);
    const std::uint64_t b = sm90::k_major_descriptor(ring.weights(turn.stage) + weights);
    multiply_in_turn<kN>(d, a, b, turns);
    const float upper = load_shared(ring.scales(turn.stage) + own),
                lower = load_shared(ring.scales(turn.stage) + own + 32);
    sm90::wgmma_wait<0>();
    sm90::fence_registers(d);
    __syncwarp();  // all lanes have read their scales
    if (lane == 0) sm90::barrier_arrive(ring.empty(turn.stage));
#pragma unroll
    for (int g = 0; g < kN; g += kBlockStep) {
      const float w = g < in_first ? first : second;
      const float of_upper = upper * w, of_lower = lower * w;
#pragma unroll
      for (int i = g / 2; i < (g + kBlockStep) / 2; ++i) sum[i] = fmaf(d[i], i % 4 < 2 ? of_upper : of_lower, sum[i]);
    }
    turn.advance<S>();
  }
}

/// Two neighbouring numbers of C in block `j` of 8 of its columns, of the upper or lower of the thread's two tokens.
template <bool kSwiGlu>
__device__ __forceinline__ std::uint32_t out_pair(const Sums& sum, int j, int lower) {
  if constexpr (kSwiGlu) {
    const int i = j * 8 + lower * 2;
    return sm90::pack_bf16(silu(sum[i]) * sum[i + 4], silu(sum[i + 1]) * sum[i + 5]);
  } else {
    const int i = j * 4 + lower * 2;
    return sm90::pack_bf16(sum[i], sum[i + 1]);
  }
}

/// Writes a warp's 16 tokens out, 8 of them and 64 columns of C at a time: through shared memory, as the sums' layout
/// gives each thread 4 bytes of a row and global memory wants 16.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const Sums& sum, const Params& p, const TokenTile& tile, const Part& part,
                                      int warp, std::uint32_t staging, int lane) {
  constexpr int kOut = kSwiGlu ? kMostColumns / 2 : kMostColumns;
  constexpr int kBlocks = kOut / 8;
  const int first = warp * 16, rows = part.tokens - first;  // of the part's tokens
  if (rows <= 0) return;
  int own_row = tile.token + part.token_row + first + lane;  // lane r < 16: where row r goes
  if (p.row_map != nullptr && lane < min(rows, 16)) own_row = __ldg(p.row_map + own_row);
  const int column = kSwiGlu ? part.column / 2 : part.column;
  const int end = min(column + (kSwiGlu ? part.columns / 2 : part.columns), kSwiGlu ? p.n / 2 : p.n);
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int from = 0; from < kOut; from += kPartColumns) {
    if (column + from >= end) break;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      if (rows <= 8 * lower) break;
#pragma unroll
      for (int j = 0; j < kPartColumns / 8; ++j) {
        if (from / 8 + j >= kBlocks) break;
        const std::uint32_t at = staging + static_cast<std::uint32_t>(g * 128 + ((j ^ g) << 4) + q * 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(out_pair<kSwiGlu>(sum, from / 8 + j, lower)) : "memory");
      }
      __syncwarp();
      const int own = column + from + lane % 8 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = i * 4 + lane / 8, row = 8 * lower + r;
        const int to = __shfl_sync(0xffffffffu, own_row, row);
        const std::uint32_t at = staging + static_cast<std::uint32_t>(r * 128 + (((lane % 8) ^ r) << 4));
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at)
                     : "memory");
        sm90::store_if(row < rows && own < end, p.c + to * p.c_stride + own, v);
      }
      __syncwarp();
    }
  }
}

__device__ __forceinline__ void consume(const RowParams& p, const Ring<S>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int steps = tiles_up(p.common.k, kScaleBlock);
  const std::uint32_t staging = ring.staging(group * 4 + warp);
  Turn turn;
  const Turns turns(group);
  Shares<S> tiles(ring, lane);
  TokenTile tile;
  Sums sum;
  while (tiles.next_tile(tile)) {
    const Part part = part_of(tile, group);
    switch (part.columns) {
      case 192:
        multiply<192>(sum, p, ring, tile, part, warp, lane, steps, turns, turn);
        break;
      case 128:
        multiply<128>(sum, p, ring, tile, part, warp, lane, steps, turns, turn);
        break;
      case 96:
        multiply<96>(sum, p, ring, tile, part, warp, lane, steps, turns, turn);
        break;
      case 64:
        multiply<64>(sum, p, ring, tile, part, warp, lane, steps, turns, turn);
        break;
      default:
        multiply<32>(sum, p, ring, tile, part, warp, lane, steps, turns, turn);
        break;
    }
    if (p.common.swiglu) {
      store<true>(sum, p.common, tile, part, warp, staging, lane);
    } else {
      store<false>(sum, p.common, tile, part, warp, staging, lane);
    }
  }
  turns.end();
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_fp8_rows_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ CUtensorMap map_scale,
                            const __grid_constant__ RowParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run<S>(
      maps, p.common, shared_memory,
      [&](std::uint32_t to, std::uint32_t bar, int token, int step) {
        sm90::tma_load_2d(to, &map_scale, bar, token / kTokenScaleStep * kTokenScaleStep, step);
      },
      [](const Ring<S>&) {}, [&](const Ring<S>& ring) { consume(p, ring); });
}

}  // namespace

cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_fp8_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
}

cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  RowParams params{.common = {}, .w_scale = args.w_scale};
  const int columns = args.tuning.columns > 0 ? args.tuning.columns : kRowTileColumns;
  if (!make_params<S>(args, params.common) || (columns != kRowTileColumns && columns != kScaleBlock)) {
    return cudaErrorInvalidValue;
  }
  params.common.tile_rows = columns;
  return launch_grouped(grouped_fp8_rows_kernel, args, S::kSharedBytes, stream, native(args.a, args.w),
                        native(args.a_scale), params);
}

}  // namespace dbo::kernels::grouped_fp8_rows
