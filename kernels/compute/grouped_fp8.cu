// The grouped GEMM with e4m3 operands and tokens as columns (grouped_draw.cuh). A step along K is a block of 128, as
// the scales have them: its products are formed in one set of sums, then scaled and added to another. A tile is 128
// rows of weights, which share their scale, by at most 192 tokens. While one warpgroup scales, the other multiplies.
//
// A step's products are bound by what shared memory delivers, so that reading scales must not cost much: one warp forms
// each step's products of a token's and the weights' scale, in the order in which the threads of a warpgroup read them,
// four at a time.
#include "kernels/compute/grouped_draw.cuh"
#include "kernels/compute/grouped_tokens.h"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_fp8 {
namespace {

using namespace grouped_draw;
using S = Shape<kTokenTileRowsFp8, kTokenTileMostFp8, kTokenTileStepFp8, kScaleBlock, 5, kTurnOverBytes, 1024,
                kTokenScaleBox * 4, true>;
static_assert(kTokenTileRowsFp8 == kScaleBlock && S::kHalf == 64 && S::kScales % 16 == 0);

// A thread of a warpgroup has two neighbours of each 8 tokens, so four threads' lists of scales serve all. 16 bytes
// between lists put them in different banks.
constexpr int kScaleList = S::kMost / 4 + 4;
static_assert(S::kScales <= 1024 && 4 * kScaleList * 4 <= 1024);

struct Fp8Params {
  Params common;
  const float* w_scale;
};

/// Writes a warp's part out: its 16 rows of weights are two blocks of 8, block h in the numbers 2 h and 2 h + 1 of each
/// four. That is 16 columns of C of each token, or with SwiGLU, block 0 being gates and block 1 up-projections, 8.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const float (&sum)[S::kSums], const Params& p, const Share& share, int warp,
                                      std::uint32_t staging, int lane) {
  const auto pack = [&](int j, std::uint32_t(&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = kSwiGlu ? 4 * (4 * j + i) : 4 * (2 * j + i / 2) + i % 2 * 2;
      x[i] = kSwiGlu ? sm90::pack_bf16(silu(sum[at]) * sum[at + 2], silu(sum[at + 1]) * sum[at + 3])
                     : sm90::pack_bf16(sum[at], sum[at + 1]);
    }
  };
  write_out<kSwiGlu ? 32 : 16, S::kMost>(p, share, kSwiGlu ? share.column / 2 + warp * 8 : share.column + warp * 16,
                                         kSwiGlu ? p.n / 2 : p.n, staging, lane, pack);
}

/// Scales of these rows of weights along K.
__device__ __forceinline__ const float* scales_of(const Fp8Params& p, int expert, int column, int steps) {
  const int row_blocks = tiles_up(p.common.n, kScaleBlock);
  return p.w_scale + static_cast<std::int64_t>(expert * row_blocks + column / kScaleBlock) * steps;
}

/// What the warp that prepares scales does: replaces each step's scales of tokens, as copied, by the lists.
__device__ __forceinline__ void scale(const Fp8Params& p, const Ring<S>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, steps = tiles_up(p.common.k, kScaleBlock);
  constexpr int kEach = S::kMost / 32;
  Turn turn;
  Shares<S> tiles(ring, lane);
  TokenTile tile;
  while (tiles.next_tile(tile)) {
    const float* const w_scale = scales_of(p, tile.expert, tile.column, steps);
    // Those of 32 steps, one a lane, are loaded 32 steps before they are needed.
    const auto weights_of = [&](int first) { return first + lane < steps ? __ldg(w_scale + first + lane) : 0.0f; };
    float now = weights_of(0), later = weights_of(32);
    for (int k = 0; k < steps; ++k) {
      if (k > 0 && k % 32 == 0) {
        now = later;
        later = weights_of(k + 32);
      }
      const float own = __shfl_sync(0xffffffffu, now, k % 32);
      sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
      // The copy began up to three tokens before the tile.
      const std::uint32_t base = ring.scales(turn.stage);
      const std::uint32_t from = base + static_cast<std::uint32_t>((tile.token % kTokenScaleStep + lane) * 4);
      float x[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(x[i])
                     : "r"(from + static_cast<std::uint32_t>(i * 128))
                     : "memory");
      }
      __syncwarp();
      const std::uint32_t to =
          base + static_cast<std::uint32_t>((lane % 8 / 2 * kScaleList + lane / 8 * 2 + lane % 2) * 4);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + static_cast<std::uint32_t>(i * 32)), "f"(x[i] * own)
                     : "memory");
      }
      sm90::fence_async_shared();  // the copy engine writes here next
      __syncwarp();
      if (lane == 0) sm90::barrier_arrive(ring.scaled(turn.stage));
      turn.advance<S>();
    }
  }
}

/// All of K for 64 rows of weights and kN tokens.
template <int kN>
__device__ __forceinline__ void multiply(float (&sum)[S::kSums], const Ring<S>& ring, const Share& share, int lane,
                                         int steps, const Turns& turns, Turn& turn) {
  const auto weights = static_cast<std::uint32_t>(share.weight_row * kRowBytes),
             tokens = static_cast<std::uint32_t>(share.token_row * kRowBytes);
  const auto scales = static_cast<std::uint32_t>((lane % 4 * kScaleList + share.token_row / 4) * 4);
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0.0f;
  for (int k = 0; k < steps; ++k) {
    sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
    const std::uint64_t w = sm90::k_major_descriptor(ring.weights(turn.stage) + weights);
    const std::uint64_t x = sm90::k_major_descriptor(ring.tokens(turn.stage) + tokens);
    multiply_in_turn<kN>(d, w, x, turns);
    sm90::barrier_wait_always(ring.scaled(turn.stage), turn.parity);
    const std::uint32_t from = ring.scales(turn.stage) + scales;
    sm90::wgmma_wait<0>();
    sm90::fence_registers(d);
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      float s[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3])
                   : "r"(from + static_cast<std::uint32_t>(j * 8))
                   : "memory");
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[4 * j + i] = fmaf(d[4 * j + i], s[i / 4 * 2 + i % 2], sum[4 * j + i]);
    }
    __syncwarp();  // all lanes have read their scales
    if (lane == 0) sm90::barrier_arrive(ring.empty(turn.stage));
    turn.advance<S>();
  }
}

/// multiply<kN> for the first of kN, kN + 16, ... that holds the share's tokens.
template <int kN>
__device__ __forceinline__ void multiply_any(float (&sum)[S::kSums], const Ring<S>& ring, const Share& share, int lane,
                                             int steps, const Turns& turns, Turn& turn) {
  if constexpr (kN < S::kMost) {
    if (share.width > kN) {
      multiply_any<kN + S::kStep>(sum, ring, share, lane, steps, turns, turn);
      return;
    }
  }
  multiply<kN>(sum, ring, share, lane, steps, turns, turn);
}

__device__ __forceinline__ void consume(const Fp8Params& p, const Ring<S>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int steps = tiles_up(p.common.k, kScaleBlock);
  Turn turn;
  const Turns turns(group);
  Shares<S> shares(ring, lane, group);
  Share share;
  const std::uint32_t staging = ring.staging(group * 4 + warp);
  float sum[S::kSums];
  while (shares.next(share)) {
    multiply_any<S::kStep>(sum, ring, share, lane, steps, turns, turn);
    if (p.common.swiglu) {
      store<true>(sum, p.common, share, warp, staging, lane);
    } else {
      store<false>(sum, p.common, share, warp, staging, lane);
    }
  }
  turns.end();
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ CUtensorMap map_scale,
                       const __grid_constant__ Fp8Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run<S>(
      maps, p.common, shared_memory,
      [&](std::uint32_t to, std::uint32_t bar, int token, int step) {
        sm90::tma_load_2d(to, &map_scale, bar, token / kTokenScaleStep * kTokenScaleStep, step);
      },
      [&](const Ring<S>& ring) { scale(p, ring); }, [&](const Ring<S>& ring) { consume(p, ring); });
}

}  // namespace

cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_fp8_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
}

cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  Fp8Params params{.common = {}, .w_scale = args.w_scale};
  if (!make_params<S>(args, params.common)) return cudaErrorInvalidValue;
  return launch_grouped(grouped_fp8_kernel, args, S::kSharedBytes, stream, native(args.a, args.w), native(args.a_scale),
                        params);
}

}  // namespace dbo::kernels::grouped_fp8
