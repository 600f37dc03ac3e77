// The grouped GEMM kernel. One producer warp copies operand tiles into a ring of shared-memory stages; two warpgroups
// multiply, each 64 rows of the block's 128, and write their part out. Blocks walk over the tiles of all experts in a
// fixed order: unit i of the walk belongs to block i mod blocks, so the work per block follows from the counts alone.
#pragma once

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"

namespace dbo::kernels::grouped {

inline constexpr int kTileM = 128;
inline constexpr int kTileN = 256;
inline constexpr int kTileK = 64;    // one row of a tile is 128 bytes: the swizzle's width
inline constexpr int kBoxRows = 32;  // A is copied in boxes of 32 rows, so that small experts do not fetch 128
inline constexpr int kThreads = 384;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kStagingBytes = 16 * 128;  // per warp: 16 rows of 64 columns on their way out

struct Params {
  const std::int32_t* offset;
  const std::int32_t* row_map;
  __nv_bfloat16* c;
  std::int64_t c_stride;
  int experts;
  int n;
  int k;
  std::uint32_t* sm_ids;
};

struct Shape {
  static constexpr int kStages = 4;
  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kStaging = kStages * kStageBytes;
  static constexpr int kBarriers = kStaging + kConsumerWarps * kStagingBytes;
  static constexpr int kOffsets = kBarriers + 2 * kStages * 8;
  static constexpr int kSharedBytes = kOffsets + 2 * (kMaxLocalExperts + 1) * 4;
};

struct Tile {
  int row = 0;         // first row of A
  int rows = 0;        // 1 to 128
  int n_tile = 0;      // column block
  int weight_row = 0;  // first row of the expert in W
};

/// Walks the tiles of this block.
class Walk {
 public:
  __device__ Walk(const std::int32_t* row_start, const std::int32_t* unit_start, int experts, int n)
      : row_start_(row_start), unit_start_(unit_start), n_(n), n_tiles_((n + kTileN - 1) / kTileN) {
    units_ = unit_start[experts];
    unit_ = static_cast<int>(blockIdx.x);
    step_ = static_cast<int>(gridDim.x);
  }

  static __device__ int units(int rows, int n) { return ((rows + kTileM - 1) / kTileM) * ((n + kTileN - 1) / kTileN); }

  __device__ bool next(Tile& tile) {
    if (unit_ >= units_) return false;
    while (unit_start_[expert_ + 1] <= unit_) ++expert_;
    const int local = unit_ - unit_start_[expert_];
    const int first = row_start_[expert_];
    const int rows = row_start_[expert_ + 1] - first;
    const int m_tiles = (rows + kTileM - 1) / kTileM;
    // Row blocks vary fastest inside a band, so that the blocks at work at one time form a near square: each weight
    // tile leaves HBM once, and the band of A stays in L2.
    const int band = local / (kBand * n_tiles_);
    const int in_band = local - band * kBand * n_tiles_;
    const int band_rows = min(kBand, m_tiles - band * kBand);
    tile.n_tile = in_band / band_rows;
    const int m_tile = band * kBand + in_band % band_rows;
    tile.row = first + m_tile * kTileM;
    tile.rows = min(kTileM, rows - m_tile * kTileM);
    tile.weight_row = expert_ * n_;
    unit_ += step_;
    return true;
  }

 private:
  static constexpr int kBand = 16;
  const std::int32_t* row_start_;
  const std::int32_t* unit_start_;
  int n_, n_tiles_, units_, unit_, step_;
  int expert_ = 0;
};

/// Copies the offsets to shared memory and forms the running count of units. The first warp adds up.
__device__ inline void load_offsets(const Params& p, std::int32_t* row_start, std::int32_t* unit_start) {
  for (int i = static_cast<int>(threadIdx.x); i <= p.experts; i += kThreads) row_start[i] = p.offset[i];
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const int each = (p.experts + 31) / 32;
    const int begin = min(lane * each, p.experts), end = min(begin + each, p.experts);
    int sum = 0;
    for (int e = begin; e < end; ++e) sum += Walk::units(row_start[e + 1] - row_start[e], p.n);
    int before = sum;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, d);
      if (lane >= d) before += other;
    }
    before -= sum;
    for (int e = begin; e < end; ++e) {
      unit_start[e] = before;
      before += Walk::units(row_start[e + 1] - row_start[e], p.n);
    }
    if (end == p.experts && begin < end) unit_start[p.experts] = before;
  }
}

__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_w, const Params& p,
                                        std::uint32_t shared, const std::int32_t* row_start,
                                        const std::int32_t* unit_start) {
  using S = Shape;
  const std::uint32_t full = shared + S::kBarriers, empty = full + S::kStages * 8;
  const int k_tiles = (p.k + kTileK - 1) / kTileK;
  Walk walk(row_start, unit_start, p.experts, p.n);
  Tile tile;
  std::uint32_t stage = 0, parity = 1;
  while (walk.next(tile)) {
    const int boxes = (tile.rows + kBoxRows - 1) / kBoxRows;
    const std::uint32_t bytes = static_cast<std::uint32_t>(boxes * kBoxRows * kTileK * 2 + S::kBBytes);
    const int weight = tile.weight_row + tile.n_tile * kTileN;
    for (int k = 0; k < k_tiles; ++k) {
      sm90::barrier_wait(empty + stage * 8, parity);
      const std::uint32_t bar = full + stage * 8;
      const std::uint32_t a = shared + stage * S::kStageBytes, b = a + S::kABytes;
      sm90::barrier_arrive_expect(bar, bytes);
      const int x = k * kTileK;
      for (int i = 0; i < boxes; ++i) {
        sm90::tma_load_2d(a + i * kBoxRows * 128, map_a, bar, x, tile.row + i * kBoxRows);
      }
      constexpr int kHalf = kTileN / 2;
      sm90::tma_load_2d(b, map_w, bar, x, weight);
      sm90::tma_load_2d(b + kHalf * 128, map_w, bar, x, weight + kHalf);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

/// Writes a warp's 16 rows, 64 columns at a time, through its staging area: the accumulator layout gives each thread 4
/// bytes of a row, global memory wants 16.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const float (&d)[kTileN / 2], const Params& p, const Tile& tile, int warp_row,
                                      std::uint32_t staging) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
  constexpr int kOutColumns = kSwiGlu ? kTileN / 2 : kTileN;
  const int out_n = kSwiGlu ? p.n / 2 : p.n;
  const int column = tile.n_tile * kOutColumns;
  __nv_bfloat16* row_pointer[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = warp_row + i * 4 + lane / 8;
    row_pointer[i] = nullptr;
    if (r < tile.rows) {
      const std::int64_t to = p.row_map == nullptr ? tile.row + r : p.row_map[tile.row + r];
      row_pointer[i] = p.c + to * p.c_stride + column + (lane % 8) * 8;
    }
  }
#pragma unroll
  for (int part = 0; part < kOutColumns / 64; ++part) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      std::uint32_t top, bottom;
      if constexpr (kSwiGlu) {
        const int i = (part * 8 + j) * 8;
        top = sm90::pack_bf16(silu(d[i]) * d[i + 4], silu(d[i + 1]) * d[i + 5]);
        bottom = sm90::pack_bf16(silu(d[i + 2]) * d[i + 6], silu(d[i + 3]) * d[i + 7]);
      } else {
        const int i = (part * 8 + j) * 4;
        top = sm90::pack_bf16(d[i], d[i + 1]);
        bottom = sm90::pack_bf16(d[i + 2], d[i + 3]);
      }
      const std::uint32_t at = staging + static_cast<std::uint32_t>(g * 128 + ((j ^ g) << 4) + q * 4);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(top) : "memory");
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 8 * 128), "r"(bottom) : "memory");
    }
    __syncwarp();
    const bool inside = column + part * 64 + (lane % 8) * 8 < out_n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i * 4 + lane / 8;
      const std::uint32_t at = staging + static_cast<std::uint32_t>(r * 128 + (((lane % 8) ^ (r & 7)) << 4));
      uint4 v;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(at)
                   : "memory");
      if (inside && row_pointer[i] != nullptr) *reinterpret_cast<uint4*>(row_pointer[i] + part * 64) = v;
    }
    __syncwarp();
  }
}

template <bool kSwiGlu>
__device__ __forceinline__ void consume(const Params& p, std::uint32_t shared, const std::int32_t* row_start,
                                        const std::int32_t* unit_start) {
  using S = Shape;
  const std::uint32_t full = shared + S::kBarriers, empty = full + S::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // the first warpgroup produces
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / 4;
  const int k_tiles = (p.k + kTileK - 1) / kTileK;
  const auto release = [&](std::uint32_t stage) {
    if (lane == 0) sm90::barrier_arrive(empty + stage * 8);
  };
  Walk walk(row_start, unit_start, p.experts, p.n);
  Tile tile;
  std::uint32_t stage = 0, parity = 0;
  float d[kTileN / 2];
  while (walk.next(tile)) {
    if (group * 64 < tile.rows) {
      std::uint32_t previous = 0;
      for (int k = 0; k < k_tiles; ++k) {
        sm90::barrier_wait(full + stage * 8, parity);
        const std::uint32_t a = shared + stage * S::kStageBytes + group * 64 * 128;
        const std::uint32_t b = shared + stage * S::kStageBytes + S::kABytes;
        const std::uint64_t desc_a = sm90::k_major_descriptor(a), desc_b = sm90::k_major_descriptor(b);
        sm90::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
          const std::uint32_t accumulate = k > 0 || step > 0;
          sm90::wgmma_256(d, desc_a + step * 2, desc_b + step * 2, accumulate);
        }
        sm90::wgmma_commit();
        if (k > 0) {
          sm90::wgmma_wait<1>();
          release(previous);
        }
        previous = stage;
        if (++stage == S::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      sm90::wgmma_wait<0>();
      sm90::fence_registers(d);
      release(previous);
      store<kSwiGlu>(d, p, tile, group * 64 + (warp % 4) * 16,
                     shared + S::kStaging + static_cast<std::uint32_t>(warp * kStagingBytes));
    } else {
      for (int k = 0; k < k_tiles; ++k) {
        sm90::barrier_wait(full + stage * 8, parity);
        release(stage);
        if (++stage == S::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  }
}

template <bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                        const __grid_constant__ Params p) {
  using S = Shape;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t shared = sm90::shared_address(shared_memory);
  auto* const row_start = reinterpret_cast<std::int32_t*>(shared_memory + S::kOffsets);
  auto* const unit_start = row_start + kMaxLocalExperts + 1;
  if (threadIdx.x == 0) {
    if (shared % 1024 != 0) __trap();
    for (int i = 0; i < S::kStages; ++i) {
      sm90::barrier_init(shared + S::kBarriers + i * 8, 1);
      sm90::barrier_init(shared + S::kBarriers + (S::kStages + i) * 8, kConsumerWarps);
    }
    sm90::barrier_init_fence();
    sm90::prefetch_tensor_map(&map_a);
    sm90::prefetch_tensor_map(&map_w);
    if (p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  }
  load_offsets(p, row_start, unit_start);
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) produce(&map_a, &map_w, p, shared, row_start, unit_start);
  } else {
    sm90::registers_increase<232>();
    consume<kSwiGlu>(p, shared, row_start, unit_start);
  }
}

template <bool kSwiGlu>
cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_gemm_kernel<kSwiGlu>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Shape::kSharedBytes);
}

template <bool kSwiGlu>
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  const Params params{.offset = args.offset,
                      .row_map = args.row_map,
                      .c = static_cast<__nv_bfloat16*>(args.c),
                      .c_stride = args.c_stride,
                      .experts = args.experts,
                      .n = args.n,
                      .k = args.k,
                      .sm_ids = args.sm_ids};
  grouped_gemm_kernel<kSwiGlu><<<static_cast<unsigned>(args.sms), kThreads, Shape::kSharedBytes, stream>>>(
      native(args.a), native(args.w), params);
  return cudaGetLastError();
}

}  // namespace dbo::kernels::grouped
