// The grouped GEMM kernel. The rows of weights are the rows of the product and the tokens its columns, so that a tile
// has as many columns as its expert has tokens, to the next multiple of 32, where the other way round it would be 128
// rows high. A tile is 128 rows of weights by at most kMaxTokens tokens; an expert with more is cut into even parts.
//
// One producer thread copies operand tiles into a ring of shared-memory stages; two warpgroups multiply, 64 rows of
// weights each, and write their part out transposed. Blocks draw the tiles of all experts from a counter in a fixed
// order: parts of unequal experts cost unequal time, and a division known beforehand would leave SMs waiting.
#pragma once

#include "kernels/compute/grouped_tokens.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_tokens {

inline constexpr int kTileRows = 128;  // of weights
inline constexpr int kTileK = 64;      // one row of a tile is 128 bytes: the swizzle's width
inline constexpr int kBoxTokens = 32;  // tokens are copied in boxes of 32, so that small experts do not fetch 256
inline constexpr int kThreads = 384;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kStagingTokens = 64;  // a warpgroup writes its 64 columns of so many tokens at a time
inline constexpr int kStagingBytes = kStagingTokens * 128;
inline constexpr int kDraws = 2;  // tiles drawn ahead

struct Params {
  const std::int32_t* offset;
  const std::int32_t* row_map;
  __nv_bfloat16* c;
  std::int64_t c_stride;
  int experts;
  int n;
  int k;
  std::int32_t* ticket;
  std::uint32_t* sm_ids;
};

template <int kMaxTokens>
struct Shape {
  static constexpr int kStages = kMaxTokens == 256 ? 4 : kMaxTokens == 128 ? 6 : 8;
  static constexpr int kWeightBytes = kTileRows * kTileK * 2;
  static constexpr int kStageBytes = kWeightBytes + kMaxTokens * kTileK * 2;
  static constexpr int kStaging = kStages * kStageBytes;
  static constexpr int kBarriers = kStaging + 2 * kStagingBytes;  // full, empty, drawn, taken
  static constexpr int kDrawn = kBarriers + (2 * kStages + 2 * kDraws) * 8;
  static constexpr int kOffsets = kDrawn + kDraws * 4;
  static constexpr int kSharedBytes = kOffsets + 2 * (kMaxLocalExperts + 1) * 4;
  static_assert(kSharedBytes <= 227 * 1024);
};

/// Barriers by their addresses.
template <int kMaxTokens>
struct Ring {
  using S = Shape<kMaxTokens>;
  std::uint32_t shared;
  __device__ std::uint32_t full(std::uint32_t stage) const { return shared + S::kBarriers + stage * 8; }
  __device__ std::uint32_t empty(std::uint32_t stage) const { return full(S::kStages + stage); }
  __device__ std::uint32_t drawn(std::uint32_t slot) const { return full(2 * S::kStages + slot); }
  __device__ std::uint32_t taken(std::uint32_t slot) const { return full(2 * S::kStages + kDraws + slot); }
  __device__ std::uint32_t weights(std::uint32_t stage) const { return shared + stage * S::kStageBytes; }
  __device__ std::uint32_t tokens(std::uint32_t stage) const { return weights(stage) + S::kWeightBytes; }
};

struct Tile {
  int token = 0;       // first row of A
  int tokens = 0;      // 1 to kMaxTokens
  int column = 0;      // of the product with the expert's weights: a multiple of 128
  int weight_row = 0;  // first row of W
};

__device__ __forceinline__ int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

/// Finds tiles by number; numbers only grow.
template <int kMaxTokens>
class Tiles {
 public:
  __device__ Tiles(const std::int32_t* token_start, const std::int32_t* tile_start, int n)
      : token_start_(token_start), tile_start_(tile_start), n_(n) {}

  static __device__ int count(int tokens, int n) { return divide_up(tokens, kMaxTokens) * divide_up(n, kTileRows); }

  __device__ Tile find(int number) {
    while (tile_start_[expert_ + 1] <= number) ++expert_;
    const int local = number - tile_start_[expert_];
    const int first = token_start_[expert_], all = token_start_[expert_ + 1] - first;
    const int parts = divide_up(all, kMaxTokens), each = divide_up(all, parts);
    const int row_tiles = divide_up(n_, kTileRows);
    // Parts vary fastest inside a band, so that the blocks at work at one time form a near square: each weight tile
    // leaves HBM once, and the band of tokens stays in L2.
    const int band = local / (kBand * row_tiles), in_band = local - band * kBand * row_tiles;
    const int band_parts = min(kBand, parts - band * kBand);
    const int part = band * kBand + in_band % band_parts;
    Tile tile;
    tile.token = first + part * each;
    tile.tokens = min(each, all - part * each);
    tile.column = in_band / band_parts * kTileRows;
    tile.weight_row = expert_ * n_ + tile.column;
    return tile;
  }

 private:
  static constexpr int kBand = 2048 / kMaxTokens;
  const std::int32_t* token_start_;
  const std::int32_t* tile_start_;
  int n_;
  int expert_ = 0;
};

/// Copies the offsets to shared memory and forms the running count of tiles. The first warp adds up.
template <int kMaxTokens>
__device__ void load_offsets(const Params& p, std::int32_t* token_start, std::int32_t* tile_start) {
  for (int i = static_cast<int>(threadIdx.x); i <= p.experts; i += kThreads) token_start[i] = p.offset[i];
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int each = divide_up(p.experts, 32);
  const int begin = min(lane * each, p.experts), end = min(begin + each, p.experts);
  const auto tiles = [&](int e) { return Tiles<kMaxTokens>::count(token_start[e + 1] - token_start[e], p.n); };
  int sum = 0;
  for (int e = begin; e < end; ++e) sum += tiles(e);
  int before = sum;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, d);
    if (lane >= d) before += other;
  }
  before -= sum;
  for (int e = begin; e < end; ++e) {
    tile_start[e] = before;
    before += tiles(e);
  }
  if (end == p.experts && begin < end) tile_start[p.experts] = before;
}

template <int kMaxTokens>
__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_w, const Params& p,
                                        std::uint32_t shared, volatile std::int32_t* drawn,
                                        const std::int32_t* token_start, const std::int32_t* tile_start) {
  using S = Shape<kMaxTokens>;
  const Ring<kMaxTokens> ring{shared};
  const int k_tiles = divide_up(p.k, kTileK), all = tile_start[p.experts];
  Tiles<kMaxTokens> tiles(token_start, tile_start, p.n);
  std::uint32_t stage = 0, parity = 1, slot = 0, taken_parity = 1;
  int number = static_cast<int>(blockIdx.x);
  while (true) {
    sm90::barrier_wait(ring.taken(slot), taken_parity);
    drawn[slot] = number < all ? number : -1;
    sm90::barrier_arrive(ring.drawn(slot));
    if (++slot == kDraws) {
      slot = 0;
      taken_parity ^= 1;
    }
    if (number >= all) break;
    // Asked for now, needed after this tile's copies.
    const int next = atomicAdd(p.ticket, 1) + static_cast<int>(gridDim.x);
    const Tile tile = tiles.find(number);
    const int boxes = divide_up(tile.tokens, kBoxTokens);
    const auto bytes = static_cast<std::uint32_t>(boxes * kBoxTokens * kTileK * 2 + S::kWeightBytes);
    for (int k = 0; k < k_tiles; ++k) {
      sm90::barrier_wait(ring.empty(stage), parity);
      sm90::barrier_arrive_expect(ring.full(stage), bytes);
      sm90::tma_load_2d(ring.weights(stage), map_w, ring.full(stage), k * kTileK, tile.weight_row);
      for (int i = 0; i < boxes; ++i) {
        sm90::tma_load_2d(ring.tokens(stage) + static_cast<std::uint32_t>(i * kBoxTokens * 128), map_a,
                          ring.full(stage), k * kTileK, tile.token + i * kBoxTokens);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    number = next;
  }
  // The last block to come here puts the counters back for the next launch: nobody draws any more.
  if (atomicAdd(p.ticket + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.ticket[0] = 0;
    p.ticket[1] = 0;
  }
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

/// Stores four 8 x 8 matrices transposed: lane 8 i + r gives the address of row r of matrix i, which is column r of the
/// accumulators.
__device__ __forceinline__ void store_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// Writes a warpgroup's columns of a tile, 64 tokens at a time, through its staging area. A token's row there has a
/// piece of 16 bytes for every 8 columns, placed so that neither side has bank conflicts.
template <int kMaxTokens, bool kSwiGlu>
__device__ __forceinline__ void store(const float (&d)[kMaxTokens / 2], const Params& p, const Tile& tile, int group,
                                      std::uint32_t staging) {
  constexpr int kPieces = kSwiGlu ? 4 : 8;  // of a token's row
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const auto place = [&](int token, int piece) {
    if constexpr (kSwiGlu) {
      const int line = token / 2;
      return staging + static_cast<std::uint32_t>(line * 128 + (((token % 2 * 4 + piece) ^ (line & 7)) << 4));
    } else {
      return staging + static_cast<std::uint32_t>(token * 128 + ((piece ^ (token & 7)) << 4));
    }
  };
  const int out_n = kSwiGlu ? p.n / 2 : p.n;
  const int column = (kSwiGlu ? tile.column / 2 : tile.column) + group * kPieces * 8 + thread % kPieces * 8;
  const bool inside = column < out_n;
#pragma unroll
  for (int chunk = 0; chunk < kMaxTokens / kStagingTokens; ++chunk) {
    const int first = chunk * kStagingTokens;
    if (first >= tile.tokens) break;
    constexpr int kRows = kStagingTokens * kPieces / 128;  // of a thread
    int row[kRows];  // of C, -1: none; asked for before the exchange, which hides the read of the map
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = first + thread / kPieces + i * (128 / kPieces);
      row[i] = -1;
      if (inside && t < tile.tokens) row[i] = p.row_map == nullptr ? tile.token + t : p.row_map[tile.token + t];
    }
    if constexpr (kSwiGlu) {
#pragma unroll
      for (int j = 0; j < kStagingTokens / 8; j += 4) {
        std::uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const x = d + (first / 8 + j + i) * 4;  // gate in the upper 8 rows, up in the lower
          out[i] = sm90::pack_bf16(silu(x[0]) * x[2], silu(x[1]) * x[3]);
        }
        store_transposed(place(8 * (j + lane / 8) + lane % 8, warp), out[0], out[1], out[2], out[3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kStagingTokens / 8; j += 2) {
        const float* const x = d + (first / 8 + j) * 4;
        store_transposed(place(8 * (j + lane / 16) + lane % 8, warp * 2 + lane / 8 % 2), sm90::pack_bf16(x[0], x[1]),
                         sm90::pack_bf16(x[2], x[3]), sm90::pack_bf16(x[4], x[5]), sm90::pack_bf16(x[6], x[7]));
      }
    }
    sm90::named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      uint4 v;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(place(thread / kPieces + i * (128 / kPieces), thread % kPieces))
                   : "memory");
      if (row[i] >= 0) *reinterpret_cast<uint4*>(p.c + row[i] * p.c_stride + column) = v;
    }
    sm90::named_barrier(1 + group, 128);
  }
}

/// Where a consumer stands in the ring.
struct Turn {
  std::uint32_t stage = 0, parity = 0;
};

/// All of K for one tile of kN tokens.
template <int kN, int kMaxTokens>
__device__ __forceinline__ void multiply(float (&d)[kMaxTokens / 2], const Ring<kMaxTokens>& ring, int group, int lane,
                                         int k_tiles, Turn& turn) {
  std::uint32_t previous = 0;
  for (int k = 0; k < k_tiles; ++k) {
    sm90::barrier_wait(ring.full(turn.stage), turn.parity);
    const std::uint64_t w =
        sm90::k_major_descriptor(ring.weights(turn.stage) + static_cast<std::uint32_t>(group * 64 * 128));
    const std::uint64_t x = sm90::k_major_descriptor(ring.tokens(turn.stage));
    sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      sm90::wgmma_n<kN>(d, w + step * 2, x + step * 2, k > 0 || step > 0);
    }
    sm90::wgmma_commit();
    if (k > 0) {
      sm90::wgmma_wait<1>();
      if (lane == 0) sm90::barrier_arrive(ring.empty(previous));
    }
    previous = turn.stage;
    if (++turn.stage == Shape<kMaxTokens>::kStages) {
      turn.stage = 0;
      turn.parity ^= 1;
    }
  }
  sm90::wgmma_wait<0>();
  sm90::fence_registers(d);
  if (lane == 0) sm90::barrier_arrive(ring.empty(previous));
}

template <int kMaxTokens, bool kSwiGlu>
__device__ __forceinline__ void consume(const Params& p, std::uint32_t shared, const volatile std::int32_t* drawn,
                                        const std::int32_t* token_start, const std::int32_t* tile_start) {
  const Ring<kMaxTokens> ring{shared};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int k_tiles = divide_up(p.k, kTileK);
  const std::uint32_t staging =
      shared + Shape<kMaxTokens>::kStaging + static_cast<std::uint32_t>(group * kStagingBytes);
  Tiles<kMaxTokens> tiles(token_start, tile_start, p.n);
  Turn turn;
  std::uint32_t slot = 0, drawn_parity = 0;
  float d[kMaxTokens / 2];
  while (true) {
    sm90::barrier_wait(ring.drawn(slot), drawn_parity);
    const int number = drawn[slot];
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(ring.taken(slot));
    if (++slot == kDraws) {
      slot = 0;
      drawn_parity ^= 1;
    }
    if (number < 0) break;
    const Tile tile = tiles.find(number);
    switch (divide_up(tile.tokens, kBoxTokens)) {
      case 1:
        multiply<32, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
        break;
      case 2:
        multiply<64, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
        break;
      default:
        if constexpr (kMaxTokens > 64) {
          switch (divide_up(tile.tokens, kBoxTokens)) {
            case 3:
              multiply<96, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
              break;
            case 4:
              multiply<128, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
              break;
            default:
              if constexpr (kMaxTokens > 128) {
                switch (divide_up(tile.tokens, kBoxTokens)) {
                  case 5:
                    multiply<160, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
                    break;
                  case 6:
                    multiply<192, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
                    break;
                  case 7:
                    multiply<224, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
                    break;
                  default:
                    multiply<256, kMaxTokens>(d, ring, group, lane, k_tiles, turn);
                }
              }
          }
        }
    }
    store<kMaxTokens, kSwiGlu>(d, p, tile, group, staging);
  }
}

template <int kMaxTokens, bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                        const __grid_constant__ Params p) {
  using S = Shape<kMaxTokens>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t shared = sm90::shared_address(shared_memory);
  auto* const drawn = reinterpret_cast<std::int32_t*>(shared_memory + S::kDrawn);
  auto* const token_start = reinterpret_cast<std::int32_t*>(shared_memory + S::kOffsets);
  auto* const tile_start = token_start + kMaxLocalExperts + 1;
  if (threadIdx.x == 0) {
    if (shared % 1024 != 0) __trap();
    const Ring<kMaxTokens> ring{shared};
    for (std::uint32_t i = 0; i < S::kStages; ++i) {
      sm90::barrier_init(ring.full(i), 1);
      sm90::barrier_init(ring.empty(i), kConsumerWarps);
    }
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      sm90::barrier_init(ring.drawn(i), 1);
      sm90::barrier_init(ring.taken(i), kConsumerWarps);
    }
    sm90::barrier_init_fence();
    sm90::prefetch_tensor_map(&map_a);
    sm90::prefetch_tensor_map(&map_w);
    if (p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  }
  load_offsets<kMaxTokens>(p, token_start, tile_start);
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) produce<kMaxTokens>(&map_a, &map_w, p, shared, drawn, token_start, tile_start);
  } else {
    sm90::registers_increase<232>();
    consume<kMaxTokens, kSwiGlu>(p, shared, drawn, token_start, tile_start);
  }
}

template <int kMaxTokens>
cudaError_t prepare() {
  for (const void* kernel : {reinterpret_cast<const void*>(grouped_gemm_kernel<kMaxTokens, false>),
                             reinterpret_cast<const void*>(grouped_gemm_kernel<kMaxTokens, true>)}) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<kMaxTokens>::kSharedBytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

template <int kMaxTokens>
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  if (args.ticket == nullptr) return cudaErrorInvalidValue;
  const Params params{.offset = args.offset,
                      .row_map = args.row_map,
                      .c = static_cast<__nv_bfloat16*>(args.c),
                      .c_stride = args.c_stride,
                      .experts = args.experts,
                      .n = args.n,
                      .k = args.k,
                      .ticket = args.ticket,
                      .sm_ids = args.sm_ids};
  const auto kernel = args.epilogue == GroupedEpilogue::SwiGlu ? grouped_gemm_kernel<kMaxTokens, true>
                                                               : grouped_gemm_kernel<kMaxTokens, false>;
  kernel<<<static_cast<unsigned>(args.sms), kThreads, Shape<kMaxTokens>::kSharedBytes, stream>>>(
      native(args.a), native(args.w), params);
  return cudaGetLastError();
}

}  // namespace dbo::kernels::grouped_tokens
