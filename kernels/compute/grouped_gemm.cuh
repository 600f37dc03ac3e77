// The grouped GEMM in bf16 with the columns of C as columns. One producer thread copies operand tiles into a ring of
// shared-memory stages; two warpgroups multiply, each 64 rows of the block's 128, and write their part out while they
// multiply the next tile. Blocks walk over the tiles of all experts in a fixed order: tile i of the walk belongs to
// block i mod blocks, so the work per block follows from the counts alone.
#pragma once

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/grouped_maps.cuh"
#include "kernels/compute/grouped_tiles.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped {

inline constexpr int kTileM = kColumnTileRows;
inline constexpr int kTileN = kColumnTileColumns;
inline constexpr int kTileK = 64;  // one row of a tile is 128 bytes: the swizzle's width
inline constexpr int kThreads = kGroupedThreads;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kStagingBytes = 8 * 128;  // per warp: 8 rows of 64 columns on their way out

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
  static constexpr int kTiles = kBarriers + 2 * kStages * 8;  // more of them than stages, so that none is overwritten
  static constexpr int kTileSlots = 2 * kStages;
  static constexpr int kWhole = kTiles + kTileSlots * 16;
  static constexpr int kSharedBytes = kWhole + 4;
  static_assert(kSharedBytes <= 227 * 1024);
};

/// Tiles of all experts; one warp adds up.
__device__ __forceinline__ int count_tiles(const Params& p) {
  int sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += 32) {
    sum += ColumnTiles::count_of(__ldg(p.offset + e + 1) - __ldg(p.offset + e), p.n);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  return sum;
}

/// Tells the consumers of a tile before its first step; they read it once that has come.
__device__ __forceinline__ void publish(std::uint32_t shared, std::uint32_t slot, const ColumnTile& tile) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared + Shape::kTiles + slot * 16), "r"(tile.row),
               "r"(tile.rows), "r"(tile.column), "r"(tile.columns)
               : "memory");
}

__device__ __forceinline__ void produce(const GroupedMaps& maps, const Params& p, std::uint32_t shared, int whole) {
  using S = Shape;
  const std::uint32_t full = shared + S::kBarriers, empty = full + S::kStages * 8;
  const int k_tiles = (p.k + kTileK - 1) / kTileK;
  ColumnTiles tiles(p.offset, whole, p.n, static_cast<int>(gridDim.x));
  std::uint32_t stage = 0, parity = 1, slot = 0;
  bool first = true;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count(); i += static_cast<int>(gridDim.x)) {
    const ColumnTile tile = tiles.find(i);
    publish(shared, slot, tile);
    if (++slot == S::kTileSlots) slot = 0;
    const CUtensorMap *const map_a = maps.rows(tile.rows), *const map_w = maps.weights(tile.columns == kTileN);
    const auto bytes = static_cast<std::uint32_t>((GroupedMaps::rows_copied(tile.rows) + tile.columns) * kTileK * 2);
    const std::uint64_t policy = sm90::cache_policy(tile.alone);
    const auto copy_weights = [&](std::uint32_t to, int k) {
      sm90::barrier_arrive_expect(full + to * 8, bytes);
      sm90::tma_load_2d(shared + to * S::kStageBytes + S::kABytes, map_w, full + to * 8, k * kTileK, tile.weight_row,
                        policy);
    };
    const auto copy_rows = [&](int k) {
      sm90::tma_load_2d(shared + stage * S::kStageBytes, map_a, full + stage * 8, k * kTileK, tile.row);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    };
    int k = 0;
    if (first) {
      // Weights need not wait for earlier kernels.
      const int ahead = min(k_tiles, S::kStages);
      for (int j = 0; j < ahead; ++j) copy_weights(static_cast<std::uint32_t>(j), j);
      sm90::wait_for_earlier_kernels();
      while (k < ahead) copy_rows(k++);
      first = false;
    }
    if (i + static_cast<int>(gridDim.x) >= tiles.count()) sm90::let_next_kernel_begin();
    for (; k < k_tiles; ++k) {
      sm90::barrier_wait(empty + stage * 8, parity);
      copy_weights(stage, k);
      copy_rows(k);
    }
  }
  if (first) sm90::wait_for_earlier_kernels();
  publish(shared, slot, ColumnTile{});
  sm90::barrier_wait(empty + stage * 8, parity);
  sm90::barrier_arrive(full + stage * 8);
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

/// What a warp has to write of a tile: its 16 rows in bf16, 64 columns of C a part. They wait in registers until the
/// next tile's products are under way: all blocks end their tiles at about one time, and writing then would keep the
/// tensor cores waiting for the L2.
template <bool kSwiGlu>
struct Held {
  static constexpr int kColumns = kSwiGlu ? kTileN / 2 : kTileN;
  static constexpr int kParts = kColumns / 64;
  std::uint32_t x[kParts][16];
  int rows = 0;  // none: nothing is held
  int to = 0;    // lane r < 16: where row r goes in C
  int column = 0, end = 0;
};

/// Two neighbouring numbers of C in block `j` of 8 columns, of the upper or lower of the two rows a thread has.
template <bool kSwiGlu>
__device__ __forceinline__ std::uint32_t out_pair(const float (&d)[kTileN / 2], int j, int lower) {
  if constexpr (kSwiGlu) {
    const int i = j * 8 + lower * 2;
    return sm90::pack_bf16(silu(d[i]) * d[i + 4], silu(d[i + 1]) * d[i + 5]);
  } else {
    const int i = j * 4 + lower * 2;
    return sm90::pack_bf16(d[i], d[i + 1]);
  }
}

template <bool kSwiGlu>
__device__ __forceinline__ void hold(Held<kSwiGlu>& held, const float (&d)[kTileN / 2], const Params& p,
                                     const ColumnTile& tile, int warp_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  held.rows = tile.rows - warp_row;
  held.to = tile.row + warp_row + lane;
  if (p.row_map != nullptr && lane < held.rows && lane < 16) held.to = __ldg(p.row_map + held.to);
  held.column = kSwiGlu ? tile.column / 2 : tile.column;
  held.end = min(held.column + (kSwiGlu ? tile.columns / 2 : tile.columns), kSwiGlu ? p.n / 2 : p.n);
#pragma unroll
  for (int part = 0; part < Held<kSwiGlu>::kParts; ++part) {
#pragma unroll
    for (int i = 0; i < 16; ++i) held.x[part][i] = out_pair<kSwiGlu>(d, part * 8 + i / 2, i % 2);
  }
}

/// Writes the upper or lower 8 rows of a part through the warp's staging area: the accumulator layout gives each thread
/// 4 bytes of a row, global memory wants 16.
template <bool kSwiGlu>
__device__ __forceinline__ void write_half(const Held<kSwiGlu>& held, int part, int lower, const Params& p,
                                           std::uint32_t staging) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
  if (held.rows <= 8 * lower || held.column + part * 64 >= held.end) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const std::uint32_t at = staging + static_cast<std::uint32_t>(g * 128 + ((j ^ g) << 4) + q * 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(held.x[part][2 * j + lower]) : "memory");
  }
  __syncwarp();
  const int column = held.column + part * 64 + (lane % 8) * 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = i * 4 + lane / 8, row = 8 * lower + r;
    const int to = __shfl_sync(0xffffffffu, held.to, row);
    const std::uint32_t at = staging + static_cast<std::uint32_t>(r * 128 + (((lane % 8) ^ r) << 4));
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    if (row < held.rows && column < held.end) *reinterpret_cast<uint4*>(p.c + to * p.c_stride + column) = v;
  }
  __syncwarp();
}

template <bool kSwiGlu>
__device__ __forceinline__ void write_all(const Held<kSwiGlu>& held, const Params& p, std::uint32_t staging) {
#pragma unroll
  for (int i = 0; i < 2 * Held<kSwiGlu>::kParts; ++i) write_half(held, i / 2, i % 2, p, staging);
}

/// All of K for 64 rows of A and kN columns, writing what is held meanwhile. `turn` counts the steps of all tiles,
/// `release(step)` hands a step's stage back.
template <int kN, bool kSwiGlu, class Release>
__device__ __forceinline__ void multiply(float (&d)[kTileN / 2], const Held<kSwiGlu>& held, const Params& p,
                                         std::uint32_t staging, std::uint32_t shared, int group, int k_tiles,
                                         std::uint32_t& turn, const Release& release) {
  using S = Shape;
  const auto step = [&](int k) {
    const std::uint32_t stage = turn % S::kStages;
    sm90::barrier_wait_always(shared + S::kBarriers + stage * 8, turn / S::kStages % 2);
    const std::uint32_t a = shared + stage * S::kStageBytes + group * 64 * 128;
    const std::uint32_t b = shared + stage * S::kStageBytes + S::kABytes;
    const std::uint64_t desc_a = sm90::k_major_descriptor(a), desc_b = sm90::k_major_descriptor(b);
    sm90::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileK / 16; ++i) {
      const std::uint32_t accumulate = k > 0 || i > 0;
      if constexpr (kN == 256) {
        sm90::wgmma_256(d, desc_a + i * 2, desc_b + i * 2, accumulate);
      } else {
        sm90::wgmma_n<kN>(d, desc_a + i * 2, desc_b + i * 2, accumulate);
      }
    }
    sm90::wgmma_commit();
    if (k > 0) {
      sm90::wgmma_wait<1>();
      release(turn - 1);
    }
    ++turn;
  };
  int k = 0;
#pragma unroll
  for (int i = 0; i < 2 * Held<kSwiGlu>::kParts; ++i) {
    if (k < k_tiles) step(k++);
    write_half(held, i / 2, i % 2, p, staging);
  }
  while (k < k_tiles) step(k++);
  sm90::wgmma_wait<0>();
  sm90::fence_registers(d);
  release(turn - 1);
}

template <bool kSwiGlu>
__device__ __forceinline__ void consume(const Params& p, std::uint32_t shared) {
  using S = Shape;
  const std::uint32_t full = shared + S::kBarriers, empty = full + S::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // the first warpgroup produces
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / 4, warp_row = group * 64 + (warp % 4) * 16;
  const int k_tiles = (p.k + kTileK - 1) / kTileK;
  const auto wait = [&](std::uint32_t turn) {
    sm90::barrier_wait_always(full + turn % S::kStages * 8, turn / S::kStages % 2);
  };
  const auto release = [&](std::uint32_t turn) {
    if (lane == 0) sm90::barrier_arrive(empty + turn % S::kStages * 8);
  };
  const std::uint32_t staging = shared + S::kStaging + static_cast<std::uint32_t>(warp * kStagingBytes);
  float d[kTileN / 2];
  Held<kSwiGlu> held;
  std::uint32_t turn = 0;
  for (std::uint32_t number = 0;; ++number) {
    wait(turn);
    ColumnTile tile;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile.row), "=r"(tile.rows), "=r"(tile.column), "=r"(tile.columns)
                 : "r"(shared + S::kTiles + number % S::kTileSlots * 16)
                 : "memory");
    if (tile.rows == 0) break;
    if (group * 64 < tile.rows) {
      if (tile.columns == kTileN) {
        multiply<kTileN>(d, held, p, staging, shared, group, k_tiles, turn, release);
      } else {
        multiply<kTileN / 2>(d, held, p, staging, shared, group, k_tiles, turn, release);
      }
      hold(held, d, p, tile, warp_row);
    } else {
      write_all(held, p, staging);
      held.rows = 0;
      for (int k = 0; k < k_tiles; ++k, ++turn) {
        wait(turn);
        release(turn);
      }
    }
  }
  write_all(held, p, staging);
}

template <bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ Params p) {
  using S = Shape;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t shared = sm90::shared_address(shared_memory);
  auto* const whole = reinterpret_cast<std::int32_t*>(shared_memory + S::kWhole);
  maps.prefetch();
  if (threadIdx.x == 0) {
    if (shared % 1024 != 0) __trap();
    for (int i = 0; i < S::kStages; ++i) {
      sm90::barrier_init(shared + S::kBarriers + i * 8, 1);
      sm90::barrier_init(shared + S::kBarriers + (S::kStages + i) * 8, kConsumerWarps);
    }
    sm90::barrier_init_fence();
    if (p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  }
  if (threadIdx.x < 32) {
    const int count = count_tiles(p);
    if (threadIdx.x == 0) *whole = count;
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) produce(maps, p, shared, *whole);
  } else {
    sm90::registers_increase<232>();
    consume<kSwiGlu>(p, shared);
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
  return launch_grouped(grouped_gemm_kernel<kSwiGlu>, args, Shape::kSharedBytes, stream, native(args.a, args.w),
                        params);
}

}  // namespace dbo::kernels::grouped
