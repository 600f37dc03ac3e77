// What the grouped GEMMs with tokens as columns share: rows of weights are the rows of the product and tokens its
// columns, so that a tile is as wide as it has tokens, to the next multiple of 8 (e4m3: 16), where the other way round
// it would be 128 rows high.
//
// One producer thread draws tiles from a counter, tells the consumers, and copies operands into a ring of shared-memory
// stages, one step along K each; two warpgroups multiply and write out. In a whole tile each has half of its rows of
// weights; in a half tile, of half the rows, they share the rows and each takes half of the tokens. For e4m3 a further
// warp prepares the scales of each step.
//
// The e4m3 kernel with columns of C as columns (grouped_fp8_rows.cu) draws and copies its tiles by the same code.
#pragma once

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/grouped_maps.cuh"
#include "kernels/compute/grouped_tiles.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/wgmma.cuh"
#include "kernels/compute/wgmma_n.cuh"

namespace dbo::kernels::grouped_draw {

constexpr int kThreads = kGroupedThreads;
constexpr int kConsumerWarps = 8;
constexpr int kDraws = 2;            // tiles drawn ahead
constexpr int kTurnOverBytes = 512;  // what a warp needs to turn its part over
constexpr int kRowBytes = 128;       // of a step along K: the swizzle's width
constexpr int kRowElements = 64;     // of the maps, which take all operands for bf16

/// `kTokenStep`: what widths are rounded up to. `kScaleSpace`: bytes of a stage behind its operands, a multiple of
/// 1024, of which `kScaleBytes` are copied. `kScaleWarp`: a warp prepares them. `kStagingEach`: bytes of each warp that
/// multiplies, for writing its part of C out.
template <int kTileRows, int kTileTokens, int kTokenStep, int kElementsPerStep, int kStageCount, int kStagingEach,
          int kScaleSpace = 0, int kScaleBytes = 0, bool kScaleWarp = false>
struct Shape {
  static constexpr int kMost = kTileTokens;
  static constexpr int kStep = kTokenStep;
  static constexpr int kSums = kMost / 2;
  static constexpr int kRows = kTileRows;
  static constexpr int kHalf = kTileRows / 2;
  static constexpr int kBox = kTileRows % 128 == 0 ? kTileRows : 128;  // rows of weights of a whole copy
  static constexpr int kStepK = kElementsPerStep;
  static constexpr int kStages = kStageCount;
  static constexpr int kScales = kScaleBytes;
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kTokenBytes = kMost * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes + kScaleSpace;
  static constexpr int kBarriers = kStages * kStageBytes;  // full, empty, scaled, drawn, taken
  static constexpr bool kScaled = kScaleWarp;
  static constexpr int kStageSets = kScaleWarp ? 3 : 2;  // those of which each stage has one
  static constexpr int kDrawn = (kBarriers + (kStageSets * kStages + 2 * kDraws) * 8 + 15) / 16 * 16;
  static constexpr int kReaders = kConsumerWarps + (kScaleWarp ? 1 : 0);  // warps that read what was drawn
  static constexpr int kStart = kDrawn + kDraws * 16;
  static constexpr int kOrder = kStart + (kMaxLocalExperts + 1) * 4;
  static constexpr int kSeveral = kOrder + kMaxLocalExperts * 2;
  static constexpr int kStagingBytes = kStagingEach;
  static constexpr int kStaging = (kSeveral + 4 + 15) / 16 * 16;
  static constexpr int kSharedBytes = kStaging + kConsumerWarps * kStagingBytes;
  static_assert(kMost % GroupedRowsMap::kStep == 0 && kSharedBytes <= 227 * 1024 && kStageBytes % 1024 == 0 &&
                kDrawn % 16 == 0);
};

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
  int tile_rows;  // of weights
};

/// Shared memory by its addresses.
template <class S>
struct Ring {
  std::uint32_t shared;
  __device__ std::uint32_t full(std::uint32_t stage) const { return shared + S::kBarriers + stage * 8; }
  __device__ std::uint32_t empty(std::uint32_t stage) const { return full(S::kStages + stage); }
  __device__ std::uint32_t scaled(std::uint32_t stage) const { return full(2 * S::kStages + stage); }
  __device__ std::uint32_t drawn(std::uint32_t slot) const { return full(S::kStageSets * S::kStages + slot); }
  __device__ std::uint32_t taken(std::uint32_t slot) const { return drawn(kDraws + slot); }
  __device__ std::uint32_t tile(std::uint32_t slot) const { return shared + S::kDrawn + slot * 16; }
  __device__ std::uint32_t staging(int warp) const {
    return shared + S::kStaging + static_cast<std::uint32_t>(warp * S::kStagingBytes);
  }
  __device__ std::uint32_t weights(std::uint32_t stage) const { return shared + stage * S::kStageBytes; }
  __device__ std::uint32_t tokens(std::uint32_t stage) const { return weights(stage) + S::kWeightBytes; }
  __device__ std::uint32_t scales(std::uint32_t stage) const { return tokens(stage) + S::kTokenBytes; }
};

/// Where a role stands in the ring.
struct Turn {
  std::uint32_t stage = 0, parity = 0;
  template <class S>
  __device__ __forceinline__ void advance() {
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Orders the experts by place and counts tiles in that order, in `several` those of experts with several parts.
/// `place` [experts] is scratch.
template <class S>
__device__ void plan_tiles(const Params& p, std::int32_t* place_of, std::int32_t* start, std::uint16_t* by_place,
                           std::int32_t* several) {
  const int thread = static_cast<int>(threadIdx.x);
  const TokenCut cut{p.tuning.most_tokens, S::kStep};
  const auto tokens_of = [&](int e) { return __ldg(p.offset + e + 1) - __ldg(p.offset + e); };
  if (p.experts <= 32) {
    // One warp, an expert a lane: nothing else starts before it is done.
    if (thread >= 32) return;
    const int tokens = thread < p.experts ? tokens_of(thread) : 0;
    const TokenParts parts(tokens, cut);
    const int own = place_of_expert(parts, p.tuning.order), tiles = TokenTiles::count_of(tokens, p.n, p.tile_rows, cut);
    const unsigned cut_up = __ballot_sync(0xffffffffu, parts.parts > 1);
    int place = 0, before = 0, all = 0, of_several = 0;
    for (int f = 0; f < p.experts; ++f) {
      const int other = __shfl_sync(0xffffffffu, own, f), theirs = __shfl_sync(0xffffffffu, tiles, f);
      const bool first = other > own || (other == own && f < thread);
      place += first ? 1 : 0;
      before += first ? theirs : 0;
      all += theirs;
      of_several += cut_up >> f & 1 ? theirs : 0;
    }
    if (thread < p.experts) {
      by_place[place] = static_cast<std::uint16_t>(thread);
      start[place] = before;
    }
    if (thread == 0) {
      start[p.experts] = all;
      *several = of_several;
    }
    return;
  }
  for (int e = thread; e < p.experts; e += kThreads) {
    place_of[e] = place_of_expert(TokenParts(tokens_of(e), cut), p.tuning.order);
  }
  __syncthreads();
  for (int e = thread; e < p.experts; e += kThreads) {
    const int own = place_of[e];
    int before = 0;
    for (int f = 0; f < p.experts; ++f) before += place_of[f] > own || (place_of[f] == own && f < e) ? 1 : 0;
    by_place[before] = static_cast<std::uint16_t>(e);
  }
  __syncthreads();
  if (thread >= 32) return;
  const int each = tiles_up(p.experts, 32);
  const int begin = min(thread * each, p.experts), end = min(begin + each, p.experts);
  const auto tiles = [&](int i) { return TokenTiles::count_of(tokens_of(by_place[i]), p.n, p.tile_rows, cut); };
  int sum = 0, of_several = 0;
  for (int i = begin; i < end; ++i) {
    sum += tiles(i);
    of_several += TokenParts(tokens_of(by_place[i]), cut).parts > 1 ? tiles(i) : 0;
  }
  for (int d = 16; d > 0; d /= 2) of_several += __shfl_xor_sync(0xffffffffu, of_several, d);
  if (thread == 0) *several = of_several;
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

/// `copy_scales(shared address, barrier, token, step)` issues the copy of S::kScales bytes that belong to a step.
template <class S, class CopyScales>
__device__ __forceinline__ void produce(const GroupedMaps& maps, const Params& p, const Ring<S>& ring,
                                        const std::uint16_t* by_place, const std::int32_t* start, int several,
                                        const CopyScales& copy_scales) {
  const int steps = tiles_up(p.k, S::kStepK);
  TokenTiles tiles(p.offset, by_place, start, p.experts, several, p.n, p.tile_rows, {p.tuning.most_tokens, S::kStep},
                   p.tuning.order, static_cast<int>(gridDim.x));
  Turn turn{0, 1};
  std::uint32_t slot = 0, taken_parity = 1;
  bool first = true;
  const auto find = [&](int number) { return number < tiles.count() ? tiles.find(number) : TokenTile{}; };
  TokenTile tile = find(static_cast<int>(blockIdx.x));
  while (true) {
    sm90::barrier_wait(ring.taken(slot), taken_parity);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(ring.tile(slot)), "r"(tile.token), "r"(tile.tokens),
                 "r"(tile.column), "r"(tile.rows | tile.expert << 16)
                 : "memory");
    sm90::barrier_arrive(ring.drawn(slot));
    if (++slot == kDraws) {
      slot = 0;
      taken_parity ^= 1;
    }
    if (tile.tokens == 0) break;
    const int weight_row = tile.expert * p.n + tile.column;
    const CUtensorMap *const map_a = maps.rows(tile.tokens), *const map_w = maps.weights(tile.rows >= S::kBox);
    const auto bytes =
        static_cast<std::uint32_t>((GroupedMaps::rows_copied(tile.tokens) + tile.rows) * kRowBytes + S::kScales);
    const std::uint64_t policy = sm90::cache_policy(tile.alone);
    const auto copy_weights = [&](std::uint32_t stage, int k) {
      sm90::barrier_arrive_expect(ring.full(stage), bytes);
      sm90::tma_load_2d(ring.weights(stage), map_w, ring.full(stage), k * kRowElements, weight_row, policy);
      if constexpr (S::kBox < S::kRows) {
        if (tile.rows > S::kBox) {
          sm90::tma_load_2d(ring.weights(stage) + S::kBox * kRowBytes, maps.weights(false), ring.full(stage),
                            k * kRowElements, weight_row + S::kBox, policy);
        }
      }
    };
    const auto copy_tokens = [&](std::uint32_t stage, int k) {
      sm90::tma_load_2d(ring.tokens(stage), map_a, ring.full(stage), k * kRowElements, tile.token);
      copy_scales(ring.scales(stage), ring.full(stage), tile.token, k);
    };
    int k = 0;
    if (first) {
      // Weights need not wait for earlier kernels.
      const int ahead = min(steps, S::kStages);
      for (int i = 0; i < ahead; ++i) copy_weights(static_cast<std::uint32_t>(i), i);
      sm90::wait_for_earlier_kernels();
      for (; k < ahead; ++k) {
        copy_tokens(turn.stage, k);
        turn.advance<S>();
      }
      first = false;
    }
    // The draw takes as long as some copies: it is under way while this tile's are issued.
    const int next = atomicAdd(p.ticket, 1) + static_cast<int>(gridDim.x);
    if (next >= tiles.count()) sm90::let_next_kernel_begin();
    for (; k < steps; ++k) {
      sm90::barrier_wait(ring.empty(turn.stage), turn.parity);
      copy_weights(turn.stage, k);
      copy_tokens(turn.stage, k);
      turn.advance<S>();
    }
    tile = find(next);
  }
  if (first) sm90::wait_for_earlier_kernels();
  // The last block to come here puts the counters back for the next launch: nobody draws any more.
  if (atomicAdd(p.ticket + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.ticket[0] = 0;
    p.ticket[1] = 0;
  }
}

/// What a warpgroup multiplies and writes of a tile.
struct Share {
  int token, tokens;   // rows of A
  int column, expert;  // of C: the first of its own
  int width;           // tokens to multiply, rounded up by multiply_any
  int weight_row;      // where its rows of weights begin in a stage, and its tokens
  int token_row;
  bool whole;  // tile
};

/// The readers' side of the drawing. They wait without end: what they wait for, the producer gives up on.
template <class S>
class Shares {
 public:
  __device__ Shares(const Ring<S>& ring, int lane, int group = 0) : ring_(ring), lane_(lane), group_(group) {}

  /// The next tile as a whole; false: there is none.
  __device__ __forceinline__ bool next_tile(TokenTile& tile) {
    sm90::barrier_wait_always(ring_.drawn(slot_), parity_);
    int what;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile.token), "=r"(tile.tokens), "=r"(tile.column), "=r"(what)
                 : "r"(ring_.tile(slot_))
                 : "memory");
    __syncwarp();
    if (lane_ == 0) sm90::barrier_arrive(ring_.taken(slot_));
    if (++slot_ == kDraws) {
      slot_ = 0;
      parity_ ^= 1;
    }
    tile.rows = what & 0xffff;
    tile.expert = what >> 16;
    return tile.tokens > 0;
  }

  /// What this warpgroup does of the next tile.
  __device__ __forceinline__ bool next(Share& share) {
    TokenTile tile;
    if (!next_tile(tile)) return false;
    share.token = tile.token;
    share.tokens = share.width = tile.tokens;
    share.column = tile.column;
    share.expert = tile.expert;
    share.weight_row = share.token_row = 0;
    share.whole = tile.rows == S::kRows;
    if (share.whole) {
      share.weight_row = group_ * S::kHalf;
      share.column += share.weight_row;
    } else {
      const int half = tiles_up(tiles_up(share.tokens, 2), S::kStep) * S::kStep;
      share.token_row = group_ * half;
      share.width = half;
      share.token += share.token_row;
      share.tokens = group_ == 0 ? min(half, share.tokens) : max(share.tokens - half, 0);
    }
    return true;
  }

 private:
  const Ring<S>& ring_;
  int lane_, group_;
  std::uint32_t slot_ = 0, parity_ = 0;
};

/// The two warpgroups' turns at the tensor cores, step by step: where sums are scaled between steps, one multiplies
/// while the other scales. Left to themselves their products share the tensor cores and end at one time. All threads of
/// both take part.
class Turns {
 public:
  __device__ explicit Turns(int group) : group_(group) {
    if (group_ == 1) pass();  // the first turn is the other's
  }
  __device__ __forceinline__ void wait() const { sm90::named_barrier(kFirst + group_, kConsumerWarps * 32); }
  __device__ __forceinline__ void pass() const { sm90::named_barrier_arrive(kFirst + 1 - group_, kConsumerWarps * 32); }
  /// After the last turn; both must have had as many.
  __device__ __forceinline__ void end() const {
    if (group_ == 0) wait();
  }

 private:
  static constexpr int kFirst = 1;  // 0 is __syncthreads
  int group_;
};

/// A step's products of e4m3, in the warpgroup's turn, which it passes on while the last is under way: passed on when
/// half of them were done, tiles took longer.
template <int kN, int kCount>
__device__ __forceinline__ void multiply_in_turn(float (&d)[kCount], std::uint64_t a, std::uint64_t b,
                                                 const Turns& turns) {
  constexpr int kSteps = kScaleBlock / 32;
  turns.wait();
  sm90::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    sm90::wgmma_fp8_n<kN>(d, a + step * 2, b + step * 2, step > 0 ? 1u : 0u);
    if (step >= kSteps - 2) sm90::wgmma_commit();
  }
  sm90::wgmma_wait<1>();
  turns.pass();
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

/// Turns four 8 x 8 matrices of bf16 over, whose rows are columns of C and whose columns are tokens: kTokens of them,
/// of each 8 tokens all kBlocks blocks of 8 columns. Lane l ends with block l % kBlocks of token l / kBlocks. Through
/// shared memory, the warp's own `staging`: with movmatrix a tile's end took twice as long.
template <int kTokens>
struct TurnOver {
  static constexpr int kBlocks = 32 / kTokens;

  static __device__ __forceinline__ uint4 run(const std::uint32_t (&x)[4], std::uint32_t staging, int lane) {
    const int matrix = lane / 8;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     staging + at(matrix / kBlocks * 8 + lane % 8, matrix % kBlocks)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
    __syncwarp();
    uint4 out;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(staging + at(lane / kBlocks, lane % kBlocks))
                 : "memory");
    __syncwarp();
    return out;
  }

 private:
  /// Offset of a token's block: such that neither side meets a bank twice.
  static __device__ __forceinline__ std::uint32_t at(int token, int block) {
    return static_cast<std::uint32_t>((token * kBlocks + (block ^ (token * kBlocks / 8 % kBlocks))) * 16);
  }
};

/// Writes a warp's part of a tile out, kTokens tokens at a time, from the sums packed to bf16: `pack(j, x)` sets the
/// four matrices (as TurnOver has them) of the j-th so many tokens. `column` is the first of the part's columns of C,
/// which has `columns`.
template <int kTokens, int kMost, class Pack>
__device__ __forceinline__ void write_out(const Params& p, const Share& share, int column, int columns,
                                          std::uint32_t staging, int lane, const Pack& pack) {
  constexpr int kBlocks = TurnOver<kTokens>::kBlocks;
  const int own = column + lane % kBlocks * 8;
  const int end = own < columns ? share.token + share.tokens : 0;
  int row = share.token + lane / kBlocks;
  const auto to_of = [&] { return p.row_map == nullptr || row >= end ? row : __ldg(p.row_map + row); };
  int to = to_of();  // of the next row, ahead of its use
#pragma unroll
  for (int j = 0; j < kMost / kTokens; ++j) {
    if (j * kTokens >= share.tokens) break;
    std::uint32_t x[4];
    pack(j, x);
    const uint4 out = TurnOver<kTokens>::run(x, staging, lane);
    sm90::store_if(row < end, p.c + to * p.c_stride + own, out);
    row += kTokens;
    to = to_of();
  }
}

/// The whole kernel. `scale(ring)` is what the warp that prepares scales does, `consume(ring)` what the warpgroups that
/// multiply do.
template <class S, class CopyScales, class Scale, class Consume>
__device__ __forceinline__ void run(const GroupedMaps& maps, const Params& p, unsigned char* shared_memory,
                                    const CopyScales& copy_scales, const Scale& scale, const Consume& consume) {
  const Ring<S> ring{sm90::shared_address(shared_memory)};
  auto* const start = reinterpret_cast<std::int32_t*>(shared_memory + S::kStart);
  auto* const by_place = reinterpret_cast<std::uint16_t*>(shared_memory + S::kOrder);
  auto* const several = reinterpret_cast<std::int32_t*>(shared_memory + S::kSeveral);
  maps.prefetch();
  if (threadIdx.x == 0) {
    if (ring.shared % 1024 != 0) __trap();
    for (std::uint32_t i = 0; i < S::kStages; ++i) {
      sm90::barrier_init(ring.full(i), 1);
      sm90::barrier_init(ring.empty(i), kConsumerWarps);
      if constexpr (S::kScaled) sm90::barrier_init(ring.scaled(i), 1);
    }
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      sm90::barrier_init(ring.drawn(i), 1);
      sm90::barrier_init(ring.taken(i), S::kReaders);
    }
    sm90::barrier_init_fence();
    if (p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  }
  // Its scratch is the first stage.
  plan_tiles<S>(p, reinterpret_cast<std::int32_t*>(shared_memory), start, by_place, several);
  sm90::fence_async_shared();  // before copies overwrite the scratch
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) {
      produce<S>(maps, p, ring, by_place, start, *several, copy_scales);
    } else if (threadIdx.x >= 32 && threadIdx.x < 64) {
      scale(ring);
    }
  } else {
    sm90::registers_increase<232>();
    consume(ring);
  }
}

/// Params of a launch; false when what only these kernels need is missing.
template <class S>
bool make_params(const GroupedGemmArgs& args, Params& params) {
  params = {.offset = args.offset,
            .row_map = args.row_map,
            .c = static_cast<__nv_bfloat16*>(args.c),
            .c_stride = args.c_stride,
            .experts = args.experts,
            .n = args.n,
            .k = args.k,
            .ticket = args.ticket,
            .sm_ids = args.sm_ids,
            .swiglu = args.epilogue == GroupedEpilogue::SwiGlu,
            .tuning = args.tuning,
            .tile_rows = S::kRows};
  int& most = params.tuning.most_tokens;
  if (most == 0) most = S::kMost;
  return args.ticket != nullptr && most >= S::kStep && most <= S::kMost && most % S::kStep == 0;
}

}  // namespace dbo::kernels::grouped_draw
