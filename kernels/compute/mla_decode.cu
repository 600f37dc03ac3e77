// MLA decode in absorbed form: every head attends to the same cached rows, 576 wide for the scores and, the first 512
// of them, as values. A block takes 64 query rows (heads) of one request at a time and walks over its pages of 64 keys.
// Its first warpgroup makes scores and probabilities; the other two hold half of the 512 output columns each. So the
// softmax of one page runs beside the products of its neighbours. Pages arrive in a ring of two, each used as K and,
// where it lies, as V; the next is asked for as soon as one is used up. The query's first columns stay in shared memory
// and the rest in registers: shared memory has no room for all of it beside two pages, and reading less of it leaves
// bandwidth to the other operands. (A warpgroup of its own for the copies would leave 128 registers a thread, fewer
// than a product of 256 columns takes.)
#include "kernels/compute/attention.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/split.cuh"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"

namespace dbo::kernels {
namespace mla {

constexpr int kRows = kMlaDecodeRows;
constexpr int kKeys = kPageTokens;
constexpr int kChunks = kMlaCached / 64;  // 64 columns: one 128-byte row of a swizzled tile
constexpr int kChunkBytes = kKeys * 128;
constexpr int kTileBytes = kChunks * kChunkBytes;
constexpr int kSlots = 2;
constexpr int kSharedChunks = 6;  // of the query, in shared memory
constexpr int kThreads = 384;

// Shared memory. Two buffers of probabilities, rows of 64 keys (128 bytes).
constexpr int kQuery = kSlots * kTileBytes;
constexpr int kP = kQuery + kSharedChunks * kRows * 128;
constexpr int kPBytes = kRows * kKeys * 2;
constexpr int kStats = kP + 2 * kPBytes;
constexpr int kBarriers = kStats + 3 * 2 * kRows * 4;
constexpr int kScratch = kBarriers + (2 * kSlots + 4) * 8;
constexpr int kSharedBytes = kScratch + (kThreads / 32 + 2 + 4) * 4;
static_assert(kSharedBytes <= 227 * 1024);

struct Params {
  const std::int32_t* seq_lens;
  const std::int32_t* block_table;
  int max_pages;
  int requests;
  int query_tokens;
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  float* o;
  float* log2_sum;
  int heads;
  float scale_log2;  // score scale times log2(e)
  int columns;       // blocks of 64 query rows
  int lanes;
  std::uint32_t* sm_ids;
};

/// Walks the units of this block's lane, request by request.
struct Walk {
  int request, unit, left;
  int seq_len, units, begin, end;  // the current request: its units, and the part [begin, end) of this lane
  __device__ Walk(const Params& p, const split::Start& s) : request(s.request), unit(s.unit), left(s.count) {
    if (left > 0) open(p);
  }
  __device__ void open(const Params& p) {
    seq_len = p.seq_lens[request];
    units = split::units<kKeys>(seq_len);
    begin = unit;
    end = min(units, unit + left);
  }
  /// To the next request of the lane that has keys; false at the end.
  __device__ bool next_request(const Params& p) {
    left -= end - begin;
    if (left <= 0) return false;
    unit = 0;
    do {
      ++request;
    } while (split::units<kKeys>(p.seq_lens[request]) == 0);
    open(p);
    return true;
  }
};

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

struct Stats {
  float* alpha;     // [2][kRows] factor of the output so far
  float* inverse;   // [2][kRows] one over the sum, with the last tile of a request's part
  float* log2_sum;  // [2][kRows]
};

/// What step j of 16 columns adds to a descriptor.
__device__ __forceinline__ constexpr std::uint64_t step(int j, int chunk_bytes) {
  return static_cast<std::uint64_t>((j / 4 * chunk_bytes + j % 4 * 32) >> 4);
}

/// The block's rows of the query: columns [0, 256) to shared memory, the rest to registers as the left operand wants
/// them. Rows past the end are zero.
__device__ __forceinline__ void load_query(const Params& p, int request, int column, std::uint32_t to,
                                           std::uint32_t (&q)[(kChunks - kSharedChunks) * 16]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = p.query_tokens * p.heads;
  const auto* const base = p.q + (static_cast<std::int64_t>(request) * rows + column * kRows) * kMlaCached;
  const int inside = min(kRows, rows - column * kRows);
  sm90::named_barrier(1, 128);                 // nobody multiplies by the rows before these any more
  constexpr int kVectors = kSharedChunks * 8;  // of 16 bytes in a row
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += 128) {
    const int row = i / kVectors, v = i % kVectors;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < inside) x = __ldg(reinterpret_cast<const uint4*>(base + row * kMlaCached + v * 8));
    const std::uint32_t at =
        to + static_cast<std::uint32_t>(v / 8 * kRows * 128 + row * 128 + (((v % 8) ^ (row & 7)) << 4));
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
  }
  const int row0 = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, row1 = row0 + 8;
  const auto* const q0 = reinterpret_cast<const std::uint32_t*>(base + row0 * kMlaCached) + lane % 4;
  const auto* const q1 = reinterpret_cast<const std::uint32_t*>(base + row1 * kMlaCached) + lane % 4;
#pragma unroll
  for (int j = 0; j < (kChunks - kSharedChunks) * 4; ++j) {
    const int at = (kSharedChunks * 4 + j) * 8;
    q[4 * j] = row0 < inside ? __ldg(q0 + at) : 0;
    q[4 * j + 1] = row1 < inside ? __ldg(q1 + at) : 0;
    q[4 * j + 2] = row0 < inside ? __ldg(q0 + at + 4) : 0;
    q[4 * j + 3] = row1 < inside ? __ldg(q1 + at + 4) : 0;
  }
  sm90::fence_async_shared();
  sm90::named_barrier(1, 128);
}

/// Scores and probabilities: the first warpgroup.
__device__ __forceinline__ void make_probabilities(const Params& p, const split::Start& start, std::uint32_t shared,
                                                   const Stats& stats, int column) {
  const std::uint32_t k_full = shared + kBarriers, p_full = k_full + 2 * kSlots * 8, p_empty = p_full + 16;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, quad = lane % 4;
  const int local = warp * 16 + g;
  const int rows = p.query_tokens * p.heads;
  const int row0 = column * kRows + local, row1 = row0 + 8;
  std::uint32_t slot = 0, k_parity = 0, buffer = 0, p_parity = 1;
  std::uint32_t q[(kChunks - kSharedChunks) * 16];
  Walk walk(p, start);
  bool more = walk.left > 0;
  while (more) {
    load_query(p, walk.request, column, shared + kQuery, q);
    // A query sees the keys up to its own token.
    const int limit0 = walk.seq_len - p.query_tokens + min(row0, rows - 1) / p.heads + 1;
    const int limit1 = walk.seq_len - p.query_tokens + min(row1, rows - 1) / p.heads + 1;
    float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
    for (int unit = walk.begin; unit < walk.end; ++unit) {
      sm90::barrier_wait(k_full + slot * 8, k_parity);
      float s[kKeys / 2];
      const std::uint64_t query = sm90::k_major_descriptor(shared + kQuery);
      const std::uint64_t keys = sm90::k_major_descriptor(shared + slot * kTileBytes);
      sm90::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSharedChunks * 4; ++j) {
        sm90::wgmma_64(s, query + step(j, kRows * 128), keys + step(j, kChunkBytes), j > 0);
      }
#pragma unroll
      for (int j = kSharedChunks * 4; j < kMlaCached / 16; ++j) {
        const int i = (j - kSharedChunks * 4) * 4;
        sm90::wgmma_64_ra(s, q[i], q[i + 1], q[i + 2], q[i + 3], keys + step(j, kChunkBytes), 1);
      }
      sm90::wgmma_commit();
      if (++slot == kSlots) {
        slot = 0;
        k_parity ^= 1;
      }
      sm90::wgmma_wait<0>();
      sm90::fence_registers(s);

      const int key = unit * kKeys + quad * 2;
      const bool masked = unit * kKeys + kKeys > walk.seq_len - p.query_tokens + 1;
      float top0 = -INFINITY, top1 = -INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x0 = s[4 * j + i];
          float& x1 = s[4 * j + 2 + i];
          x0 *= p.scale_log2;
          x1 *= p.scale_log2;
          if (masked) {
            if (key + j * 8 + i >= limit0) x0 = -INFINITY;
            if (key + j * 8 + i >= limit1) x1 = -INFINITY;
          }
          top0 = fmaxf(top0, x0);
          top1 = fmaxf(top1, x1);
        }
      }
      const float n0 = fmaxf(m0, quad_max(top0)), n1 = fmaxf(m1, quad_max(top1));
      const float c0 = n0 == -INFINITY ? 0.0f : n0, c1 = n1 == -INFINITY ? 0.0f : n1;
      const float alpha0 = sm90::exp2_approx(m0 - c0), alpha1 = sm90::exp2_approx(m1 - c1);
      m0 = n0;
      m1 = n1;
      l0 *= alpha0;
      l1 *= alpha1;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          s[4 * j + i] = sm90::exp2_approx(s[4 * j + i] - c0);
          s[4 * j + 2 + i] = sm90::exp2_approx(s[4 * j + 2 + i] - c1);
          l0 += s[4 * j + i];
          l1 += s[4 * j + 2 + i];
        }
      }
      sm90::barrier_wait(p_empty + buffer * 8, p_parity);
      const std::uint32_t at = shared + kP + buffer * kPBytes + static_cast<std::uint32_t>(local * 128 + quad * 4);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const std::uint32_t chunk = static_cast<std::uint32_t>(j ^ g) << 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + chunk), "r"(sm90::pack_bf16(s[4 * j], s[4 * j + 1]))
                     : "memory");
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + chunk + 8 * 128),
                     "r"(sm90::pack_bf16(s[4 * j + 2], s[4 * j + 3]))
                     : "memory");
      }
      const bool last = unit + 1 == walk.end;
      float sum0 = 0.0f, sum1 = 0.0f;
      if (last) {
        sum0 = quad_sum(l0);
        sum1 = quad_sum(l1);
      }
      if (quad == 0) {
        const int i = static_cast<int>(buffer) * kRows + local;
        stats.alpha[i] = alpha0;
        stats.alpha[i + 8] = alpha1;
        if (last) {
          stats.inverse[i] = sum0 > 0.0f ? 1.0f / sum0 : 0.0f;
          stats.inverse[i + 8] = sum1 > 0.0f ? 1.0f / sum1 : 0.0f;
          stats.log2_sum[i] = sum0 > 0.0f ? m0 + __log2f(sum0) : -INFINITY;
          stats.log2_sum[i + 8] = sum1 > 0.0f ? m1 + __log2f(sum1) : -INFINITY;
        }
      }
      sm90::fence_async_shared();
      sm90::barrier_arrive(p_full + buffer * 8);
      buffer ^= 1;
      if (buffer == 0) p_parity ^= 1;
    }
    more = walk.next_request(p);
  }
}

/// The copies of pages, by one thread of the second warpgroup. Its place is kept in shared memory: registers are short
/// there.
struct Loader {
  int* state;  // request, unit, units left of the lane, units of the request
  std::uint32_t shared;
  const CUtensorMap* map;
  const Params* p;

  __device__ void begin(const split::Start& start) const {
    state[0] = start.request;
    state[1] = start.unit;
    state[2] = start.count;
    state[3] = start.count > 0 ? split::units<kKeys>(p->seq_lens[start.request]) : 0;
  }
  /// The page to copy next, -1 when there is none. Asked for early, so that what follows hides the read.
  __device__ int next_page() const {
    if (state[2] == 0) return -1;
    return p->block_table[static_cast<std::int64_t>(state[0]) * p->max_pages + state[1]];
  }
  __device__ void load(std::uint32_t slot, int page) const {
    const std::uint32_t bar = shared + kBarriers + slot * 8;
    sm90::barrier_arrive_expect(bar, kTileBytes);
    sm90::tma_load_3d(shared + slot * kTileBytes, map, bar, 0, page * kPageTokens, 0);
    state[2] -= 1;
    if (++state[1] == state[3] && state[2] > 0) {
      state[1] = 0;
      do {
        state[0] += 1;
        state[3] = split::units<kKeys>(p->seq_lens[state[0]]);
      } while (state[3] == 0);
    }
  }
};

/// Output columns [half * 256, half * 256 + 256): the second and third warpgroups.
template <bool kLoads>
__device__ __forceinline__ void accumulate(const Params& p, const split::Start& start, std::uint32_t shared,
                                           const Stats& stats, int column, int lane_index, int half,
                                           const Loader& loader) {
  const std::uint32_t k_empty = shared + kBarriers + kSlots * 8, p_full = k_empty + kSlots * 8, p_empty = p_full + 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int local = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const bool loads = kLoads && threadIdx.x % 128 == 0;
  if (loads) {
    loader.begin(start);
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      const int page = loader.next_page();
      if (page >= 0) loader.load(i, page);
    }
  }
  if constexpr (kLoads) __syncwarp();
  std::uint32_t slot = 0, k_parity = 0, buffer = 0, p_parity = 0;
  float o[128];
  Walk walk(p, start);
  bool more = walk.left > 0;
  while (more) {
    float scale0 = 0.0f, scale1 = 0.0f, log0 = 0.0f, log1 = 0.0f;
    for (int unit = walk.begin; unit < walk.end; ++unit) {
      sm90::barrier_wait(p_full + buffer * 8, p_parity);
      const int at = static_cast<int>(buffer) * kRows + local;
      if (unit > walk.begin) {
        const float alpha0 = stats.alpha[at], alpha1 = stats.alpha[at + 8];
        // The largest score seldom changes after the first tiles.
        if (__any_sync(0xffffffffu, alpha0 != 1.0f || alpha1 != 1.0f)) {
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            o[4 * j] *= alpha0;
            o[4 * j + 1] *= alpha0;
            o[4 * j + 2] *= alpha1;
            o[4 * j + 3] *= alpha1;
          }
        }
      }
      const std::uint64_t probabilities = sm90::k_major_descriptor(shared + kP + buffer * kPBytes);
      const std::uint64_t values = sm90::mn_major_descriptor(
          shared + slot * kTileBytes + static_cast<std::uint32_t>(half * 4 * kChunkBytes), kChunkBytes);
      sm90::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        sm90::wgmma_256_bn(o, probabilities + j * 2, values + j * (2048 >> 4), j > 0 || unit > walk.begin);
      }
      sm90::wgmma_commit();
      int page = -1;
      if (loads) page = loader.next_page();
      sm90::wgmma_wait<0>();
      sm90::fence_registers(o);
      if (unit + 1 == walk.end) {
        scale0 = stats.inverse[at];
        scale1 = stats.inverse[at + 8];
        log0 = stats.log2_sum[at];
        log1 = stats.log2_sum[at + 8];
        __syncwarp();
      }
      if (lane == 0) {
        sm90::barrier_arrive(k_empty + slot * 8);
        sm90::barrier_arrive(p_empty + buffer * 8);
      }
      if constexpr (kLoads) {
        if (page >= 0) {
          sm90::barrier_wait(k_empty + slot * 8, k_parity);  // the other half is about as far
          loader.load(slot, page);
        }
        __syncwarp();
      }
      if (++slot == kSlots) {
        slot = 0;
        k_parity ^= 1;
      }
      buffer ^= 1;
      if (buffer == 0) p_parity ^= 1;
    }
    const int rows = p.query_tokens * p.heads;
    const int row = column * kRows + local;
    const int first_column = half * 256 + lane % 4 * 2;
    if (walk.begin == 0 && walk.end == walk.units) {
      __nv_bfloat16* const to =
          p.out + (static_cast<std::int64_t>(walk.request) * rows + row) * kMlaLatent + first_column;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        if (row < rows) {
          *reinterpret_cast<std::uint32_t*>(to + j * 8) = sm90::pack_bf16(o[4 * j] * scale0, o[4 * j + 1] * scale0);
        }
        if (row + 8 < rows) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * kMlaLatent + j * 8) =
              sm90::pack_bf16(o[4 * j + 2] * scale1, o[4 * j + 3] * scale1);
        }
      }
    } else {
      const std::int64_t at =
          (static_cast<std::int64_t>(split::slot(lane_index, walk.begin == 0)) * p.columns + column) * kRows + local;
      float* const to = p.o + at * kMlaLatent + first_column;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(to + j * 8) = make_float2(o[4 * j] * scale0, o[4 * j + 1] * scale0);
        *reinterpret_cast<float2*>(to + 8 * kMlaLatent + j * 8) =
            make_float2(o[4 * j + 2] * scale1, o[4 * j + 3] * scale1);
      }
      if (half == 0 && lane % 4 == 0) {
        p.log2_sum[at] = log0;
        p.log2_sum[at + 8] = log1;
      }
    }
    more = walk.next_request(p);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t shared = sm90::shared_address(shared_memory);
  int* const scratch = reinterpret_cast<int*>(shared_memory + kScratch);
  float* const alpha = reinterpret_cast<float*>(shared_memory + kStats);
  const Stats stats{alpha, alpha + 2 * kRows, alpha + 4 * kRows};
  const int column = static_cast<int>(blockIdx.x) % p.columns, lane = static_cast<int>(blockIdx.x) / p.columns;
  if (threadIdx.x == 0 && p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  if (lane >= p.lanes) return;
  if (threadIdx.x == 0) {
    if (shared % 1024 != 0) __trap();
    const std::uint32_t bar = shared + kBarriers;
    for (int i = 0; i < kSlots; ++i) {
      sm90::barrier_init(bar + i * 8, 1);
      sm90::barrier_init(bar + (kSlots + i) * 8, 8);
    }
    for (int i = 0; i < 2; ++i) {
      sm90::barrier_init(bar + (2 * kSlots + i) * 8, 128);
      sm90::barrier_init(bar + (2 * kSlots + 2 + i) * 8, 8);
    }
    sm90::barrier_init_fence();
    sm90::prefetch_tensor_map(&map);
  }
  const split::Start start = split::find_start<kThreads, kKeys>(p.seq_lens, p.requests, lane, p.lanes, scratch);
  __syncthreads();
  if (threadIdx.x < 128) {
    make_probabilities(p, start, shared, stats, column);
  } else {
    const Loader loader{scratch + kThreads / 32 + 2, shared, &map, &p};
    if (threadIdx.x < 256) {
      accumulate<true>(p, start, shared, stats, column, lane, 0, loader);
    } else {
      accumulate<false>(p, start, shared, stats, column, lane, 1, loader);
    }
  }
}

__global__ void __launch_bounds__(split::kCombineThreads) mla_combine_kernel(const split::CombineParams p) {
  split::combine<kRows, kMlaLatent, kKeys>(p, [&](int request, int column, int row) -> __nv_bfloat16* {
    const int r = column * kRows + row;
    return r < p.rows ? p.out + (static_cast<std::int64_t>(request) * p.rows + r) * kMlaLatent : nullptr;
  });
}

}  // namespace mla

cudaError_t make_mla_cache_map(const TensorMapEncoder& encoder, const void* cache, int pages, TensorMap& map) {
  // The row's nine pieces of 64 columns as a third dimension, so that one copy brings a tile.
  TensorMapShape shape;
  shape.base = cache;
  shape.rank = 3;
  shape.size[0] = 64;
  shape.size[1] = static_cast<std::uint64_t>(pages) * kPageTokens;
  shape.size[2] = mla::kChunks;
  shape.stride_bytes[0] = kMlaCached * 2;
  shape.stride_bytes[1] = 128;
  shape.box[0] = 64;
  shape.box[1] = mla::kKeys;
  shape.box[2] = mla::kChunks;
  return encode_tensor_map(encoder, shape, map);
}

namespace mla {
cudaError_t prepare_decode() {
  return cudaFuncSetAttribute(mla_decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}
}  // namespace mla

cudaError_t launch_mla_decode(const MlaDecodeArgs& args, cudaStream_t stream) {
  if (args.batch.requests == 0) return cudaSuccess;
  const int rows = args.batch.query_tokens * args.heads;
  const int columns = (rows + mla::kRows - 1) / mla::kRows;
  if (args.batch.requests < 0 || rows < 1 || args.sms < columns) return cudaErrorInvalidValue;
  const mla::Params params{.seq_lens = args.batch.seq_lens,
                           .block_table = args.batch.block_table,
                           .max_pages = args.batch.max_pages,
                           .requests = args.batch.requests,
                           .query_tokens = args.batch.query_tokens,
                           .q = static_cast<const __nv_bfloat16*>(args.q),
                           .out = static_cast<__nv_bfloat16*>(args.out),
                           .o = args.partials.o,
                           .log2_sum = args.partials.log2_sum,
                           .heads = args.heads,
                           .scale_log2 = args.scale * 1.4426950408889634f,
                           .columns = columns,
                           .lanes = args.sms / columns,
                           .sm_ids = args.sm_ids};
  mla::mla_decode_kernel<<<static_cast<unsigned>(args.sms), mla::kThreads, mla::kSharedBytes, stream>>>(
      native(args.cache), params);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const split::CombineParams combine{.seq_lens = args.batch.seq_lens,
                                     .o = args.partials.o,
                                     .log2_sum = args.partials.log2_sum,
                                     .out = params.out,
                                     .requests = args.batch.requests,
                                     .lanes = params.lanes,
                                     .columns = columns,
                                     .rows = rows};
  mla::mla_combine_kernel<<<dim3(static_cast<unsigned>(args.batch.requests), static_cast<unsigned>(columns)),
                            split::kCombineThreads, 0, stream>>>(combine);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
