// Prefill attention, causal, for requests whose query is a range at the end of a longer context. A block takes 128
// query rows of one head: one warp copies tiles of 128 keys and values, two warpgroups take 64 rows each.
#include "kernels/compute/attention.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/tensor_map.cuh"
#include "kernels/compute/wgmma.cuh"

namespace dbo::kernels {
namespace prefill {

constexpr int kRows = 128;  // of a block
constexpr int kKeys = 128;
constexpr int kV = 128;  // value columns of a head
constexpr int kThreads = 384;
constexpr int kChunkBytes = 128 * 128;  // 128 rows of 64 columns
constexpr int kStages = 2;
constexpr int kBoxRows = 64;  // of a copy: one page

/// Columns of q and k in pieces of 64.
template <int kQkChunks>
struct Shared {
  static constexpr int kQ = 0;
  static constexpr int kKBytes = kQkChunks * kChunkBytes;
  static constexpr int kVBytes = kV / 64 * kChunkBytes;
  static constexpr int kK = kQkChunks * kChunkBytes;
  static constexpr int kVAt = kK + kStages * kKBytes;
  static constexpr int kBarriers = kVAt + kStages * kVBytes;
  static constexpr int kWork = kBarriers + (1 + 4 * kStages) * 8;
  static constexpr int kBytes = kWork + 4 * 4;
};

struct Params {
  const std::int32_t* query_start;
  const std::int32_t* seq_lens;
  const std::int32_t* kv_start;     // MLA
  const std::int32_t* block_table;  // GQA
  int max_pages;
  int requests;
  int query_blocks;
  __nv_bfloat16* out;
  int heads;
  int heads_per_kv;
  float scale_log2;
};

struct Maps {
  CUtensorMap q, k, v, rope;  // MLA: k and v are the same array
};

/// The request and block of rows of a block index, by the first warp; others read it from shared memory.
__device__ __forceinline__ void find_work(const Params& p, int index, int* work) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int base = 0; base < p.requests; base += 32) {
    const int r = base + lane;
    const int length = r < p.requests ? p.query_start[r + 1] - p.query_start[r] : 0;
    const int blocks = (length + kRows - 1) / kRows;
    int sum = blocks;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    const int first = before + sum - blocks;
    if (first <= index && index < first + blocks) {
      work[0] = r;
      work[1] = index - first;
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0 && index >= before) work[0] = -1;
}

/// One block's piece of work.
struct Work {
  int request, row;  // first query row among the request's
  int rows;          // query rows of the request
  int token;         // first query row of the block in q and out
  int first_limit;   // keys the first row sees
  int tiles;         // tiles of keys that any row sees
};

__device__ __forceinline__ Work open_work(const Params& p, const int* work) {
  Work w;
  w.request = work[0];
  w.row = work[1] * kRows;
  const int start = p.query_start[w.request];
  w.rows = p.query_start[w.request + 1] - start;
  w.token = start + w.row;
  const int seq_len = p.seq_lens[w.request];
  w.first_limit = seq_len - w.rows + w.row + 1;
  const int last_limit = min(seq_len, w.first_limit + kRows - 1);
  w.tiles = (last_limit + kKeys - 1) / kKeys;
  return w;
}

template <bool kMla>
__device__ __forceinline__ void produce(const Maps& maps, const Params& p, const Work& w, int head,
                                        std::uint32_t shared) {
  constexpr int kQkChunks = kMla ? 3 : 2;
  using S = Shared<kQkChunks>;
  const std::uint32_t q_full = shared + S::kBarriers, k_full = q_full + 8, k_empty = k_full + kStages * 8,
                      v_full = k_empty + kStages * 8, v_empty = v_full + kStages * 8;
  constexpr int kBoxBytes = kBoxRows * 128;
  sm90::barrier_arrive_expect(q_full, kQkChunks * kChunkBytes);
  for (int c = 0; c < kQkChunks; ++c) {
    for (int half = 0; half < 2; ++half) {
      sm90::tma_load_2d(shared + S::kQ + c * kChunkBytes + half * kBoxBytes, &maps.q, q_full,
                        head * kQkChunks * 64 + c * 64, w.token + half * kBoxRows);
    }
  }
  const int kv_head = kMla ? head : head / p.heads_per_kv;
  const int kv_first = kMla ? p.kv_start[w.request] : 0;
  const std::int32_t* const table = kMla ? nullptr : p.block_table + static_cast<std::int64_t>(w.request) * p.max_pages;
  const int pages = kMla ? 0 : (p.seq_lens[w.request] + kPageTokens - 1) / kPageTokens;
  std::uint32_t stage = 0, parity = 1;
  for (int tile = 0; tile < w.tiles; ++tile) {
    int row[2];
    for (int half = 0; half < 2; ++half) {
      if constexpr (kMla) {
        row[half] = kv_first + tile * kKeys + half * kBoxRows;
      } else {
        // The second page of the last tile may not exist; its keys are masked, so any page does.
        row[half] = table[min(tile * 2 + half, pages - 1)] * kPageTokens;
      }
    }
    const std::uint32_t k = shared + S::kK + stage * S::kKBytes, v = shared + S::kVAt + stage * S::kVBytes;
    sm90::barrier_wait(k_empty + stage * 8, parity);
    sm90::barrier_arrive_expect(k_full + stage * 8, S::kKBytes);
    for (int c = 0; c < 2; ++c) {
      for (int half = 0; half < 2; ++half) {
        sm90::tma_load_2d(k + c * kChunkBytes + half * kBoxBytes, &maps.k, k_full + stage * 8,
                          (kMla ? head * 256 : kv_head * 128) + c * 64, row[half]);
      }
    }
    if constexpr (kMla) {
      for (int half = 0; half < 2; ++half) {
        sm90::tma_load_2d(k + 2 * kChunkBytes + half * kBoxBytes, &maps.rope, k_full + stage * 8, kMlaLatent,
                          row[half]);
      }
    }
    sm90::barrier_wait(v_empty + stage * 8, parity);
    sm90::barrier_arrive_expect(v_full + stage * 8, S::kVBytes);
    for (int c = 0; c < 2; ++c) {
      for (int half = 0; half < 2; ++half) {
        sm90::tma_load_2d(v + c * kChunkBytes + half * kBoxBytes, &maps.v, v_full + stage * 8,
                          (kMla ? head * 256 + 128 : kv_head * 128) + c * 64, row[half]);
      }
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

struct Softmax {
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
};

/// Scores to probabilities, in place; returns the factors of the output so far.
__device__ __forceinline__ float2 softmax(float (&s)[64], Softmax& run, float scale_log2, int key, bool masked,
                                          int limit0, int limit1) {
  float top0 = -INFINITY, top1 = -INFINITY;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (masked) {
        if (key + j * 8 + i >= limit0) s[4 * j + i] = -INFINITY;
        if (key + j * 8 + i >= limit1) s[4 * j + 2 + i] = -INFINITY;
      }
      top0 = fmaxf(top0, s[4 * j + i]);
      top1 = fmaxf(top1, s[4 * j + 2 + i]);
    }
  }
  const float n0 = fmaxf(run.m0, quad_max(top0) * scale_log2), n1 = fmaxf(run.m1, quad_max(top1) * scale_log2);
  const float c0 = n0 == -INFINITY ? 0.0f : n0, c1 = n1 == -INFINITY ? 0.0f : n1;
  const float2 alpha = make_float2(sm90::exp2_approx(run.m0 - c0), sm90::exp2_approx(run.m1 - c1));
  run.m0 = n0;
  run.m1 = n1;
  run.l0 *= alpha.x;
  run.l1 *= alpha.y;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[4 * j + i] = sm90::exp2_approx(fmaf(s[4 * j + i], scale_log2, -c0));
      s[4 * j + 2 + i] = sm90::exp2_approx(fmaf(s[4 * j + 2 + i], scale_log2, -c1));
      run.l0 += s[4 * j + i];
      run.l1 += s[4 * j + 2 + i];
    }
  }
  return alpha;
}

template <int kQkChunks>
__device__ __forceinline__ void consume(const Params& p, const Work& w, int head, std::uint32_t shared) {
  using S = Shared<kQkChunks>;
  const std::uint32_t q_full = shared + S::kBarriers, k_full = q_full + 8, k_empty = k_full + kStages * 8,
                      v_full = k_empty + kStages * 8, v_empty = v_full + kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / 4;
  const int local = warp * 16 + lane / 4;  // row of the block; the second is 8 further
  const int limit0 = w.first_limit + local, limit1 = limit0 + 8;
  float o[64], s[64];
  Softmax run;
  std::uint32_t stage = 0, parity = 0;
  sm90::barrier_wait(q_full, 0);
  const std::uint64_t q = sm90::k_major_descriptor(shared + S::kQ + group * 64 * 128);
  for (int tile = 0; tile < w.tiles; ++tile) {
    sm90::barrier_wait(k_full + stage * 8, parity);
    const std::uint64_t k = sm90::k_major_descriptor(shared + S::kK + stage * S::kKBytes);
    sm90::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kQkChunks * 4; ++j) {
      const std::uint64_t at = static_cast<std::uint64_t>((j / 4 * kChunkBytes + j % 4 * 32) >> 4);
      sm90::wgmma_128(s, q + at, k + at, j > 0);
    }
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    sm90::fence_registers(s);
    if (lane == 0) sm90::barrier_arrive(k_empty + stage * 8);
    const float2 alpha = softmax(s, run, p.scale_log2, tile * kKeys + lane % 4 * 2,
                                 tile * kKeys + kKeys > w.first_limit + group * 64, limit0, limit1);
    if (tile > 0) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        o[4 * j] *= alpha.x;
        o[4 * j + 1] *= alpha.x;
        o[4 * j + 2] *= alpha.y;
        o[4 * j + 3] *= alpha.y;
      }
    }
    std::uint32_t a[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) a[i] = sm90::pack_bf16(s[2 * i], s[2 * i + 1]);
    sm90::barrier_wait(v_full + stage * 8, parity);
    const std::uint64_t v = sm90::mn_major_descriptor(shared + S::kVAt + stage * S::kVBytes, kChunkBytes);
    sm90::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      sm90::wgmma_128_ra_bn(o, a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3], v + j * (2048 >> 4),
                            tile > 0 || j > 0);
    }
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    sm90::fence_registers(o);
    if (lane == 0) sm90::barrier_arrive(v_empty + stage * 8);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  const float sum0 = quad_sum(run.l0), sum1 = quad_sum(run.l1);
  const float f0 = 1.0f / sum0, f1 = 1.0f / sum1;
  __nv_bfloat16* const to = p.out + (static_cast<std::int64_t>(w.token + local) * p.heads + head) * kV + lane % 4 * 2;
  const std::int64_t below = std::int64_t{8} * p.heads * kV;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (w.row + local < w.rows) {
      *reinterpret_cast<std::uint32_t*>(to + j * 8) = sm90::pack_bf16(o[4 * j] * f0, o[4 * j + 1] * f0);
    }
    if (w.row + local + 8 < w.rows) {
      *reinterpret_cast<std::uint32_t*>(to + below + j * 8) = sm90::pack_bf16(o[4 * j + 2] * f1, o[4 * j + 3] * f1);
    }
  }
}

template <bool kMla>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  using S = Shared<kMla ? 3 : 2>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t shared = sm90::shared_address(shared_memory);
  int* const work = reinterpret_cast<int*>(shared_memory + S::kWork);
  // The last rows of a request see the most keys: long blocks go first.
  find_work(p, p.query_blocks - 1 - static_cast<int>(blockIdx.y), work);
  if (threadIdx.x == 0) {
    if (shared % 1024 != 0) __trap();
    const std::uint32_t bar = shared + S::kBarriers;
    sm90::barrier_init(bar, 1);
    for (int i = 0; i < kStages; ++i) {
      sm90::barrier_init(bar + (1 + i) * 8, 1);
      sm90::barrier_init(bar + (1 + kStages + i) * 8, 8);
      sm90::barrier_init(bar + (1 + 2 * kStages + i) * 8, 1);
      sm90::barrier_init(bar + (1 + 3 * kStages + i) * 8, 8);
    }
    sm90::barrier_init_fence();
  }
  __syncthreads();
  if (work[0] < 0) return;
  const int head = static_cast<int>(blockIdx.x);
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x == 0) produce<kMla>(maps, p, open_work(p, work), head, shared);
  } else {
    sm90::registers_increase<232>();
    consume<kMla ? 3 : 2>(p, open_work(p, work), head, shared);
  }
}

__global__ void __launch_bounds__(256)
    gather_kernel(const uint4* cache, const std::int32_t* kv_start, const std::int32_t* block_table, int max_pages,
                  int requests, int kv_rows, uint4* out) {
  constexpr int kVectors = kMlaCached * 2 / 16;
  const int row = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
  if (row >= kv_rows) return;
  int low = 0, high = requests - 1;  // the last request that starts at or before the row
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (kv_start[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int key = row - kv_start[low];
  const int page = block_table[static_cast<std::int64_t>(low) * max_pages + key / kPageTokens];
  const uint4* const from = cache + (static_cast<std::int64_t>(page) * kPageTokens + key % kPageTokens) * kVectors;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kVectors; i += 32) {
    out[static_cast<std::int64_t>(row) * kVectors + i] = __ldg(from + i);
  }
}

template <bool kMla>
cudaError_t prepare() {
  return cudaFuncSetAttribute(prefill_kernel<kMla>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Shared < kMla ? 3 : 2 > ::kBytes);
}

Params params_of(const PrefillBatch& batch, void* out, int heads, int heads_per_kv, float scale) {
  return {.query_start = batch.query_start,
          .seq_lens = batch.seq_lens,
          .kv_start = batch.kv_start,
          .block_table = batch.block_table,
          .max_pages = batch.max_pages,
          .requests = batch.requests,
          .query_blocks = batch.query_blocks,
          .out = static_cast<__nv_bfloat16*>(out),
          .heads = heads,
          .heads_per_kv = heads_per_kv,
          .scale_log2 = scale * 1.4426950408889634f};
}

}  // namespace prefill

namespace mla {
cudaError_t prepare_decode();
}
namespace gqa {
cudaError_t prepare_decode();
}

cudaError_t prepare_attention() {
  cudaError_t status = cudaSuccess;
  for (const cudaError_t s :
       {mla::prepare_decode(), gqa::prepare_decode(), prefill::prepare<true>(), prefill::prepare<false>()}) {
    if (status == cudaSuccess) status = s;
  }
  return status;
}

cudaError_t launch_mla_prefill(const MlaPrefillArgs& args, cudaStream_t stream) {
  if (args.batch.query_blocks == 0) return cudaSuccess;
  if (args.batch.query_blocks < 0 || args.batch.query_blocks > 65535 || args.heads < 1) return cudaErrorInvalidValue;
  const prefill::Maps maps{native(args.q), native(args.kv), native(args.kv), native(args.rope)};
  prefill::prefill_kernel<true>
      <<<dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.batch.query_blocks)), prefill::kThreads,
         prefill::Shared<3>::kBytes, stream>>>(maps,
                                               prefill::params_of(args.batch, args.out, args.heads, 1, args.scale));
  return cudaGetLastError();
}

cudaError_t launch_gqa_prefill(const GqaPrefillArgs& args, cudaStream_t stream) {
  if (args.batch.query_blocks == 0) return cudaSuccess;
  if (args.batch.query_blocks < 0 || args.batch.query_blocks > 65535 || args.kv_heads < 1 ||
      args.heads % args.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const prefill::Maps maps{native(args.q), native(args.k), native(args.v), native(args.v)};
  prefill::prefill_kernel<false>
      <<<dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.batch.query_blocks)), prefill::kThreads,
         prefill::Shared<2>::kBytes, stream>>>(
          maps, prefill::params_of(args.batch, args.out, args.heads, args.heads / args.kv_heads, args.scale));
  return cudaGetLastError();
}

cudaError_t launch_gather_latent(const GatherLatentArgs& args, cudaStream_t stream) {
  if (args.kv_rows == 0) return cudaSuccess;
  if (args.kv_rows < 0) return cudaErrorInvalidValue;
  prefill::gather_kernel<<<static_cast<unsigned>((args.kv_rows + 7) / 8), 256, 0, stream>>>(
      static_cast<const uint4*>(args.cache), args.batch.kv_start, args.batch.block_table, args.batch.max_pages,
      args.batch.requests, args.kv_rows, static_cast<uint4*>(args.out));
  return cudaGetLastError();
}

}  // namespace dbo::kernels
