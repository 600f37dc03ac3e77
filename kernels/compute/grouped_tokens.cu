// The grouped GEMM with rows of weights as the rows of the product and tokens as its columns: a tile is as wide as it
// has tokens, to the next multiple of 16, where the other way round it would be 128 rows high. A tile is 256 rows of
// weights by at most 192 tokens, the largest whose sums fit the registers, since what the L2 must deliver for each
// product falls with both sides.
//
// One producer thread draws tiles from a counter and copies operands into a ring of shared-memory stages; two
// warpgroups multiply, 128 rows of weights each, and write their part out transposed. In a half tile, of 128 rows, the
// warpgroups share the rows and each takes half of the tokens.
#include "kernels/compute/grouped_tokens.h"

#include "kernels/compute/grouped_tiles.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_tokens {
namespace {

constexpr int kTileK = 64;      // one row of a tile is 128 bytes: the swizzle's width
constexpr int kBoxTokens = 32;  // tokens are copied in boxes of 32, weights of 128
constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kDraws = 2;  // tiles drawn ahead
constexpr int kSums = kTokenTileMost / 2;

constexpr int kWeightBytes = kTokenTileRows * kTileK * 2;
constexpr int kStageBytes = kWeightBytes + kTokenTileMost * kTileK * 2;
constexpr int kBarriers = kStages * kStageBytes;  // full, empty, drawn, taken
constexpr int kDrawn = kBarriers + (2 * kStages + 2 * kDraws) * 8;
constexpr int kStart = kDrawn + kDraws * 16;
constexpr int kOrder = kStart + (kMaxLocalExperts + 1) * 4;
constexpr int kSharedBytes = kOrder + kMaxLocalExperts * 2;
static_assert(kSharedBytes <= 227 * 1024);

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
  bool swiglu;
  GroupedTuning tuning;
};

/// Shared memory by its addresses.
struct Ring {
  std::uint32_t shared;
  __device__ std::uint32_t full(std::uint32_t stage) const { return shared + kBarriers + stage * 8; }
  __device__ std::uint32_t empty(std::uint32_t stage) const { return full(kStages + stage); }
  __device__ std::uint32_t drawn(std::uint32_t slot) const { return full(2 * kStages + slot); }
  __device__ std::uint32_t taken(std::uint32_t slot) const { return full(2 * kStages + kDraws + slot); }
  __device__ std::uint32_t tile(std::uint32_t slot) const { return shared + kDrawn + slot * 16; }
  __device__ std::uint32_t weights(std::uint32_t stage) const { return shared + stage * kStageBytes; }
  __device__ std::uint32_t tokens(std::uint32_t stage) const { return weights(stage) + kWeightBytes; }
};

/// Orders the experts by the width of their parts and counts tiles in that order. `width` [experts] is scratch.
__device__ void plan_tiles(const Params& p, std::int32_t* width, std::int32_t* start, std::uint16_t* order) {
  const int thread = static_cast<int>(threadIdx.x), most = p.tuning.most_tokens;
  const auto tokens_of = [&](int e) { return __ldg(p.offset + e + 1) - __ldg(p.offset + e); };
  for (int e = thread; e < p.experts; e += kThreads) width[e] = TokenParts(tokens_of(e), most).width();
  __syncthreads();
  for (int e = thread; e < p.experts; e += kThreads) {
    const int own = width[e];
    int before = 0;
    for (int f = 0; f < p.experts; ++f) before += width[f] > own || (width[f] == own && f < e) ? 1 : 0;
    order[before] = static_cast<std::uint16_t>(e);
  }
  __syncthreads();
  if (thread >= 32) return;
  const int each = tiles_up(p.experts, 32);
  const int begin = min(thread * each, p.experts), end = min(begin + each, p.experts);
  const auto tiles = [&](int i) { return TokenTiles::count_of(tokens_of(order[i]), p.n, most); };
  int sum = 0;
  for (int i = begin; i < end; ++i) sum += tiles(i);
  int before = sum;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, d);
    if (thread >= d) before += other;
  }
  before -= sum;
  for (int i = begin; i < end; ++i) {
    start[i] = before;
    before += tiles(i);
  }
  if (end == p.experts && begin < end) start[p.experts] = before;
}

/// Asks the L2 for a tile's weights at column `k` of them.
__device__ __forceinline__ void prefetch_weights(const CUtensorMap* map, const TokenTile& tile, int weight_row, int k) {
  for (int row = 0; row < tile.rows; row += kTokenTileHalf) sm90::tma_prefetch_2d(map, k, weight_row + row);
}

__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_w, const Params& p,
                                        const Ring& ring, const std::uint16_t* order, const std::int32_t* start) {
  const int k_tiles = tiles_up(p.k, kTileK);
  TokenTiles tiles(p.offset, order, start, p.experts, p.n, p.tuning.most_tokens, static_cast<int>(gridDim.x));
  std::uint32_t stage = 0, parity = 1, slot = 0, taken_parity = 1;
  int number = static_cast<int>(blockIdx.x);
  while (true) {
    TokenTile tile;
    if (number < tiles.count()) tile = tiles.find(number);
    sm90::barrier_wait(ring.taken(slot), taken_parity);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(ring.tile(slot)), "r"(tile.token), "r"(tile.tokens),
                 "r"(tile.column), "r"(tile.rows)
                 : "memory");
    sm90::barrier_arrive(ring.drawn(slot));
    if (++slot == kDraws) {
      slot = 0;
      taken_parity ^= 1;
    }
    if (tile.tokens == 0) break;
    // Asked for now, needed after this tile's copies.
    const int next = atomicAdd(p.ticket, 1) + static_cast<int>(gridDim.x);
    const int weight_row = tile.expert * p.n + tile.column;
    // The ring holds too little to cover the way from HBM while the tensor cores are busy: the L2 fetches ahead of it.
    const int ahead = tile.part == 0 ? p.tuning.prefetch : 0;
    for (int k = 0; k < min(ahead, k_tiles); ++k) prefetch_weights(map_w, tile, weight_row, k * kTileK);
    const int boxes = tiles_up(tile.tokens, kBoxTokens);
    const auto bytes = static_cast<std::uint32_t>((boxes * kBoxTokens + tile.rows) * kTileK * 2);
    for (int k = 0; k < k_tiles; ++k) {
      if (ahead > 0 && k + ahead < k_tiles) prefetch_weights(map_w, tile, weight_row, (k + ahead) * kTileK);
      sm90::barrier_wait(ring.empty(stage), parity);
      const std::uint32_t bar = ring.full(stage);
      sm90::barrier_arrive_expect(bar, bytes);
      for (int row = 0; row < tile.rows; row += kTokenTileHalf) {
        sm90::tma_load_2d(ring.weights(stage) + static_cast<std::uint32_t>(row * 128), map_w, bar, k * kTileK,
                          weight_row + row);
      }
      for (int i = 0; i < boxes; ++i) {
        sm90::tma_load_2d(ring.tokens(stage) + static_cast<std::uint32_t>(i * kBoxTokens * 128), map_a, bar, k * kTileK,
                          tile.token + i * kBoxTokens);
      }
      if (++stage == kStages) {
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

/// An 8 x 8 matrix of bf16 in a warp (lane 4 r + q holds columns 2 q and 2 q + 1 of row r), transposed.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// Of four neighbouring lanes, lane q ends with word q of each of the four.
__device__ __forceinline__ uint4 exchange_quad(std::uint32_t x0, std::uint32_t x1, std::uint32_t x2, std::uint32_t x3,
                                               int q) {
  const bool odd = q % 2 != 0, upper = q >= 2;
  const std::uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? x0 : x1, 1);
  const std::uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? x2 : x3, 1);
  const std::uint32_t a0 = odd ? r0 : x0, a1 = odd ? x1 : r0, b0 = odd ? r1 : x2, b1 = odd ? x3 : r1;
  const std::uint32_t s0 = __shfl_xor_sync(0xffffffffu, upper ? a0 : b0, 2);
  const std::uint32_t s1 = __shfl_xor_sync(0xffffffffu, upper ? a1 : b1, 2);
  return upper ? make_uint4(s0, s1, b0, b1) : make_uint4(a0, a1, s0, s1);
}

/// What a warpgroup multiplies and writes of a tile.
struct Share {
  int token, tokens;  // rows of A
  int column;         // of C
};

/// Writes a warp's part out: 32 columns of C of each token (16 after SwiGLU), a lane 16 bytes of one token at a time.
/// The sums of 8-row block i of the warp's rows of weights lie in d[i % 2]: their upper numbers for i >= 2.
template <bool kSwiGlu>
__device__ __forceinline__ void store(const float (&d)[2][kSums], const Params& p, const Share& share, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const int column = kSwiGlu ? share.column / 2 + warp * 16 + q % 2 * 8 : share.column + warp * 32 + q * 8;
  const bool inside = column < (kSwiGlu ? p.n / 2 : p.n);
#pragma unroll
  for (int j = 0; j < kTokenTileMost / 8; j += kSwiGlu ? 2 : 1) {
    if (8 * j >= share.tokens) break;
    std::uint32_t x[4];
    if constexpr (kSwiGlu) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i / 2) + i % 2 * 2;  // gates in d[0], the up-projections of the same columns in d[1]
        x[i] = sm90::pack_bf16(silu(d[0][at]) * d[1][at], silu(d[0][at + 1]) * d[1][at + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = sm90::pack_bf16(d[i % 2][4 * j + i / 2 * 2], d[i % 2][4 * j + i / 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = transpose_8x8(x[i]);
    const uint4 out = exchange_quad(x[0], x[1], x[2], x[3], q);
    const int t = 8 * j + g + (kSwiGlu ? q / 2 * 8 : 0);
    if (inside && t < share.tokens) {
      const std::int64_t row = p.row_map == nullptr ? share.token + t : __ldg(p.row_map + share.token + t);
      *reinterpret_cast<uint4*>(p.c + row * p.c_stride + column) = out;
    }
  }
}

/// Where a consumer stands in the ring. Consumers wait without end: what they wait for, the producer gives up on.
struct Turn {
  std::uint32_t stage = 0, parity = 0;
};

/// All of K for 128 rows of weights and kN tokens, from these offsets in a stage. Rows go to the two halves of the sums
/// by turns of 8: so gate and up of a column meet in one thread, and a warp's rows are neighbours.
template <int kN>
__device__ __forceinline__ void multiply(float (&d)[2][kSums], const Ring& ring, std::uint32_t weights,
                                         std::uint32_t tokens, int lane, int k_tiles, Turn& turn) {
  std::uint32_t previous = 0;
  for (int k = 0; k < k_tiles; ++k) {
    sm90::barrier_wait_always(ring.full(turn.stage), turn.parity);
    const std::uint64_t w = sm90::k_major_descriptor(ring.weights(turn.stage) + weights, 2048);
    const std::uint64_t x = sm90::k_major_descriptor(ring.tokens(turn.stage) + tokens);
    sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
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
    if (++turn.stage == kStages) {
      turn.stage = 0;
      turn.parity ^= 1;
    }
  }
  sm90::wgmma_wait<0>();
  sm90::fence_registers(d[0]);
  sm90::fence_registers(d[1]);
  if (lane == 0) sm90::barrier_arrive(ring.empty(previous));
}

/// multiply<kN> for the first of kN, kN + 16, ... that holds `tokens`.
template <int kN>
__device__ __forceinline__ void multiply_any(int width, float (&d)[2][kSums], const Ring& ring, std::uint32_t weights,
                                             std::uint32_t tokens, int lane, int k_tiles, Turn& turn) {
  if constexpr (kN < kTokenTileMost) {
    if (width > kN) {
      multiply_any<kN + kTokenTileStep>(width, d, ring, weights, tokens, lane, k_tiles, turn);
      return;
    }
  }
  multiply<kN>(d, ring, weights, tokens, lane, k_tiles, turn);
}

__device__ __forceinline__ void consume(const Params& p, const Ring& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // the first warpgroup produces
  const int k_tiles = tiles_up(p.k, kTileK);
  Turn turn;
  std::uint32_t slot = 0, drawn_parity = 0;
  float d[2][kSums];
  bool behind = p.tuning.stagger && group == 1 && k_tiles > 2;
  while (true) {
    sm90::barrier_wait_always(ring.drawn(slot), drawn_parity);
    Share share;
    int rows;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(share.token), "=r"(share.tokens), "=r"(share.column), "=r"(rows)
                 : "r"(ring.tile(slot))
                 : "memory");
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(ring.taken(slot));
    if (++slot == kDraws) {
      slot = 0;
      drawn_parity ^= 1;
    }
    if (share.tokens == 0) break;
    // One group starts two stages behind the other, so that one multiplies while the other writes out.
    if (behind) sm90::barrier_wait_always(ring.full(2), 0);
    behind = false;
    std::uint32_t weights = 0, tokens = 0;
    int width = share.tokens;
    if (rows == kTokenTileRows) {
      weights = static_cast<std::uint32_t>(group * kTokenTileHalf * 128);
      share.column += group * kTokenTileHalf;
    } else {
      const int half = tiles_up(tiles_up(share.tokens, 2), kTokenTileStep) * kTokenTileStep;
      tokens = static_cast<std::uint32_t>(group * half * 128);
      width = half;
      share.token += group * half;
      share.tokens = group == 0 ? min(half, share.tokens) : max(share.tokens - half, 0);
    }
    multiply_any<kTokenTileStep>(width, d, ring, weights, tokens, lane, k_tiles, turn);
    if (p.swiglu) {
      store<true>(d, p, share, warp);
    } else {
      store<false>(d, p, share, warp);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_tokens_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                          const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Ring ring{sm90::shared_address(shared_memory)};
  auto* const start = reinterpret_cast<std::int32_t*>(shared_memory + kStart);
  auto* const order = reinterpret_cast<std::uint16_t*>(shared_memory + kOrder);
  if (threadIdx.x == 0) {
    if (ring.shared % 1024 != 0) __trap();
    for (std::uint32_t i = 0; i < kStages; ++i) {
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
  plan_tiles(p, reinterpret_cast<std::int32_t*>(shared_memory), start, order);  // its scratch is the first stage
  sm90::fence_async_shared();                                                   // before copies overwrite the scratch
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) produce(&map_a, &map_w, p, ring, order, start);
  } else {
    sm90::registers_increase<232>();
    consume(p, ring);
  }
}

}  // namespace

cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_tokens_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream) {
  const GroupedTuning& t = args.tuning;
  if (args.ticket == nullptr || t.most_tokens < kTokenTileStep || t.most_tokens > kTokenTileMost ||
      t.most_tokens % kTokenTileStep != 0 || t.prefetch < 0) {
    return cudaErrorInvalidValue;
  }
  const Params params{.offset = args.offset,
                      .row_map = args.row_map,
                      .c = static_cast<__nv_bfloat16*>(args.c),
                      .c_stride = args.c_stride,
                      .experts = args.experts,
                      .n = args.n,
                      .k = args.k,
                      .ticket = args.ticket,
                      .sm_ids = args.sm_ids,
                      .swiglu = args.epilogue == GroupedEpilogue::SwiGlu,
                      .tuning = t};
  grouped_tokens_kernel<<<static_cast<unsigned>(args.sms), kThreads, kSharedBytes, stream>>>(native(args.a),
                                                                                             native(args.w), params);
  return cudaGetLastError();
}

}  // namespace dbo::kernels::grouped_tokens
