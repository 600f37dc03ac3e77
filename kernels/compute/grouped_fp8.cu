// The grouped GEMM with e4m3 operands and tokens as columns (grouped_draw.cuh). A step along K is a block of 128, as
// the scales have them: its products are formed in one set of sums, then scaled and added to another. A tile is 128
// rows of weights, which share their scale, by at most 192 tokens. While one warpgroup scales, the other multiplies.
#include "kernels/compute/grouped_draw.cuh"
#include "kernels/compute/grouped_tokens.h"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_fp8 {
namespace {

using namespace grouped_draw;
using S = Shape<kTokenTileRowsFp8, kScaleBlock, 5, 1024, kTokenScaleBox * 4>;
static_assert(kTokenTileRowsFp8 == kScaleBlock && S::kScales <= 1024 && S::kScales % 16 == 0);

struct Fp8Params {
  Params common;
  const float* w_scale;
};

/// Writes a warp's part out: its 16 rows of weights are two blocks of 8, block h in the numbers 2 h and 2 h + 1 of each
/// four. That is 16 columns of C of each token, or with SwiGLU, block 0 being gates and block 1 up-projections, 8.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const float (&sum)[kSums], const Params& p, const Share& share, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const int column = kSwiGlu ? share.column / 2 + warp * 8 : share.column + warp * 16 + q % 2 * 8;
  const bool inside = column < (kSwiGlu ? p.n / 2 : p.n);
#pragma unroll
  for (int j = 0; j < kTokenTileMost / 8; j += kSwiGlu ? 4 : 2) {
    if (8 * j >= share.tokens) break;
    std::uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = kSwiGlu ? 4 * (j + i) : 4 * (j + i / 2) + i % 2 * 2;
      x[i] = kSwiGlu ? sm90::pack_bf16(silu(sum[at]) * sum[at + 2], silu(sum[at + 1]) * sum[at + 3])
                     : sm90::pack_bf16(sum[at], sum[at + 1]);
    }
    const uint4 out = turn_over(x, q);
    const int t = 8 * (j + (kSwiGlu ? q : q / 2)) + g;
    if (inside && t < share.tokens) write(p, share, t, column, out);
  }
}

/// All of K for 64 rows of weights and kN tokens. `w_scale` [steps] of these rows.
template <int kN>
__device__ __forceinline__ void multiply(float (&sum)[kSums], const Ring<S>& ring, const Share& share,
                                         const float* w_scale, int lane, int steps, Turn& turn) {
  const auto weights = static_cast<std::uint32_t>(share.weight_row * kRowBytes),
             tokens = static_cast<std::uint32_t>(share.token_row * kRowBytes);
  // A thread's columns are two neighbours of each 8; the copy began up to three tokens before the tile.
  const auto scales = static_cast<std::uint32_t>((share.token_row + share.token % kTokenScaleStep + lane % 4 * 2) * 4);
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0.0f;
  float own = __ldg(w_scale);
  for (int k = 0; k < steps; ++k) {
    const float next = k + 1 < steps ? __ldg(w_scale + k + 1) : 0.0f;
    sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
    const std::uint64_t w = sm90::k_major_descriptor(ring.weights(turn.stage) + weights);
    const std::uint64_t x = sm90::k_major_descriptor(ring.tokens(turn.stage) + tokens);
    sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kScaleBlock / 32; ++step) {
      sm90::wgmma_fp8_n<kN>(d, w + step * 2, x + step * 2, step > 0 ? 1u : 0u);
    }
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    sm90::fence_registers(d);
    const std::uint32_t from = ring.scales(turn.stage) + scales;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      float left, right;
      const std::uint32_t at = from + static_cast<std::uint32_t>(j * 32);
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(left) : "r"(at));
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(right) : "r"(at + 4));
      left *= own;
      right *= own;
      sum[4 * j] = fmaf(d[4 * j], left, sum[4 * j]);
      sum[4 * j + 1] = fmaf(d[4 * j + 1], right, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(d[4 * j + 2], left, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(d[4 * j + 3], right, sum[4 * j + 3]);
    }
    __syncwarp();  // all lanes have read their scales
    if (lane == 0) sm90::barrier_arrive(ring.empty(turn.stage));
    own = next;
    turn.advance<S>();
  }
}

/// multiply<kN> for the first of kN, kN + 16, ... that holds the share's tokens.
template <int kN>
__device__ __forceinline__ void multiply_any(float (&sum)[kSums], const Ring<S>& ring, const Share& share,
                                             const float* w_scale, int lane, int steps, Turn& turn) {
  if constexpr (kN < kTokenTileMost) {
    if (share.width > kN) {
      multiply_any<kN + kTokenTileStep>(sum, ring, share, w_scale, lane, steps, turn);
      return;
    }
  }
  multiply<kN>(sum, ring, share, w_scale, lane, steps, turn);
}

__device__ __forceinline__ void consume(const Fp8Params& p, const Ring<S>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int steps = tiles_up(p.common.k, kScaleBlock), row_blocks = tiles_up(p.common.n, kScaleBlock);
  Turn turn;
  Shares<S> shares(ring, lane, group);
  Share share;
  float sum[kSums];
  while (shares.next(share)) {
    const float* const w_scale =
        p.w_scale + static_cast<std::int64_t>(share.expert * row_blocks + share.column / kScaleBlock) * steps;
    multiply_any<kTokenTileStep>(sum, ring, share, w_scale, lane, steps, turn);
    if (p.common.swiglu) {
      store<true>(sum, p.common, share, warp);
    } else {
      store<false>(sum, p.common, share, warp);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                       const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ Fp8Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run<S>(
      &map_a, &map_w, p.common, shared_memory,
      [&](std::uint32_t to, std::uint32_t bar, int token, int step) {
        sm90::tma_load_2d(to, &map_scale, bar, token / kTokenScaleStep * kTokenScaleStep, step);
      },
      [&](const Ring<S>& ring) { consume(p, ring); });
}

}  // namespace

cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_fp8_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
}

cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  Fp8Params params{.common = {}, .w_scale = args.w_scale};
  if (!make_params(args, params.common)) return cudaErrorInvalidValue;
  grouped_fp8_kernel<<<static_cast<unsigned>(args.sms), kThreads, S::kSharedBytes, stream>>>(
      native(args.a), native(args.w), native(args.a_scale), params);
  return cudaGetLastError();
}

}  // namespace dbo::kernels::grouped_fp8
