// The grouped GEMM in bf16 with tokens as columns (grouped_draw.cuh). A tile is 256 rows of weights by at most 192
// tokens: large ones, since what the L2 must deliver for each product falls with both sides.
#include "kernels/compute/grouped_tokens.h"

#include "kernels/compute/grouped_draw.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_tokens {
namespace {

using namespace grouped_draw;
using S = Shape<kTokenTileRows, kTokenTileMost, kTokenTileStep, 64, 4, 0>;
using Sums = float[2][S::kSums];

/// Writes a warp's part out: 32 columns of C of each token (16 after SwiGLU). The sums of 8-row block i of the warp's
/// rows of weights lie in d[i % 2]: their upper numbers for i >= 2.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const Sums& d, const Params& p, const Share& share, int warp,
                                      std::uint32_t staging, int lane) {
  const auto pack = [&](int j, std::uint32_t(&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kSwiGlu) {
        const int at =
            4 * (2 * j + i / 2) + i % 2 * 2;  // gates in d[0], the up-projections of the same columns in d[1]
        x[i] = sm90::pack_bf16(silu(d[0][at]) * d[1][at], silu(d[0][at + 1]) * d[1][at + 1]);
      } else {
        const int at = 4 * j + i / 2 * 2;
        x[i] = sm90::pack_bf16(d[i % 2][at], d[i % 2][at + 1]);
      }
    }
  };
  write_out<kSwiGlu ? 16 : 8, S::kMost>(p, share, kSwiGlu ? share.column / 2 + warp * 16 : share.column + warp * 32,
                                        kSwiGlu ? p.n / 2 : p.n, staging, lane, pack);
}

/// All of K for 128 rows of weights and kN tokens, from these offsets in a stage. Rows go to the two halves of the sums
/// by turns of 8: so gate and up of a column meet in one thread, and a warp's rows are neighbours.
/// Returns the last step's stage, which the caller hands back.
template <int kN>
__device__ __forceinline__ std::uint32_t multiply(Sums& d, const Ring<S>& ring, std::uint32_t weights,
                                                  std::uint32_t tokens, int lane, int steps, Turn& turn) {
  std::uint32_t previous = 0;
  for (int k = 0; k < steps; ++k) {
    sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
    const std::uint64_t w = sm90::k_major_descriptor(ring.weights(turn.stage) + weights, 2048);
    const std::uint64_t x = sm90::k_major_descriptor(ring.tokens(turn.stage) + tokens);
    sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::kStepK / 16; ++step) {
      const std::uint32_t accumulate = k > 0 || step > 0;
      sm90::wgmma_n<kN>(d[0], w + step * 2, x + step * 2, accumulate);
      sm90::wgmma_n<kN>(d[1], w + 1024 / 16 + step * 2, x + step * 2, accumulate);
    }
    sm90::wgmma_commit();
    if (k > 0) {
      sm90::wgmma_wait<1>();
      if (lane == 0) sm90::barrier_arrive(ring.empty(previous));
    }
    previous = turn.stage;
    turn.advance<S>();
  }
  sm90::wgmma_wait<0>();
  sm90::fence_registers(d[0]);
  sm90::fence_registers(d[1]);
  return previous;
}

/// multiply<kN> for the first of kN, kN + 8, ... that holds `width` tokens.
template <int kN>
__device__ __forceinline__ std::uint32_t multiply_any(int width, Sums& d, const Ring<S>& ring, std::uint32_t weights,
                                                      std::uint32_t tokens, int lane, int steps, Turn& turn) {
  if constexpr (kN < S::kMost) {
    if (width > kN) {
      return multiply_any<kN + S::kStep>(width, d, ring, weights, tokens, lane, steps, turn);
    }
  }
  return multiply<kN>(d, ring, weights, tokens, lane, steps, turn);
}

__device__ __forceinline__ void consume(const Params& p, const Ring<S>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int steps = tiles_up(p.k, S::kStepK);
  Turn turn;
  Shares<S> shares(ring, lane, group);
  Share share;
  Sums d;
  while (shares.next(share)) {
    const std::uint32_t last =
        multiply_any<S::kStep>(share.width, d, ring, static_cast<std::uint32_t>(share.weight_row * kRowBytes),
                               static_cast<std::uint32_t>(share.token_row * kRowBytes), lane, steps, turn);
    // Where a warp turns its part over: rows of weights that only it has read, or in a half tile rows that are not
    // there.
    const int row = share.whole ? share.weight_row + warp * (S::kHalf / 4)
                                : S::kHalf + (group * 4 + warp) * (kTurnOverBytes / kRowBytes);
    const std::uint32_t staging = ring.weights(last) + static_cast<std::uint32_t>(row * kRowBytes);
    if (p.swiglu) {
      store<true>(d, p, share, warp, staging, lane);
    } else {
      store<false>(d, p, share, warp, staging, lane);
    }
    sm90::fence_async_shared();  // the copy engine writes there next
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(ring.empty(last));
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_tokens_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run<S>(
      maps, p, shared_memory, [](std::uint32_t, std::uint32_t, int, int) {}, [](const Ring<S>&) {},
      [&](const Ring<S>& ring) { consume(p, ring); });
}

}  // namespace

cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_tokens_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
}

cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  Params params;
  if (!make_params<S>(args, params)) return cudaErrorInvalidValue;
  return launch_grouped(grouped_tokens_kernel, args, S::kSharedBytes, stream, native(args.a, args.w), params);
}

}  // namespace dbo::kernels::grouped_tokens
