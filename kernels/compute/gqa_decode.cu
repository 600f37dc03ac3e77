// GQA decode. A block takes 16 query rows (the heads that share a KV head, times the query tokens) of one request at a
// time; its four warps each take 16 of every 64 keys with a copy pipeline and running sums of their own, and meet only
// at the end of the request.
#include "kernels/compute/attention.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/split.cuh"

namespace dbo::kernels {
namespace gqa {

constexpr int kRows = kGqaDecodeRows;
constexpr int kDim = kGqaHeadDim;
constexpr int kUnitKeys = 64;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpKeys = kUnitKeys / kWarps;
constexpr int kStages = 3;
constexpr int kTileBytes = kWarpKeys * kDim * 2;
constexpr int kMerge = kWarps * kStages * 2 * kTileBytes;
constexpr int kStats = kMerge + kRows * kDim * 4;
constexpr int kScratch = kStats + 2 * kWarps * kRows * 4;
constexpr int kSharedBytes = kScratch + (kWarps + 2) * 4;
static_assert(kUnitKeys == kPageTokens && 2 * (kSharedBytes + 1024) <= 228 * 1024);

struct Params {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  const std::int32_t* seq_lens;
  const std::int32_t* block_table;
  int max_pages;
  int requests;
  int query_tokens;
  const __nv_bfloat16* q;
  std::int64_t q_stride;
  __nv_bfloat16* out;
  float* o;
  float* log2_sum;
  int heads;
  int kv_heads;
  float scale_log2;
  int columns;
  int lanes;
  std::uint32_t* sm_ids;
};

__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Byte offset of 16-byte chunk `c` of row `r` in a tile of 256-byte rows: eight rows of one chunk fall on all banks.
__device__ __forceinline__ std::uint32_t tile_offset(int r, int c) {
  return static_cast<std::uint32_t>(r * 256 + ((c ^ (r & 7)) << 4));
}

/// Copies this warp's keys, ahead of their use.
struct Loader {
  int request, unit, left;
  __device__ void load(const Params& p, int kv_head, std::uint32_t to) {
    if (left > 0) {
      const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
      const int page = p.block_table[static_cast<std::int64_t>(request) * p.max_pages + unit];
      const std::int64_t first =
          (static_cast<std::int64_t>(page) * kPageTokens + warp * kWarpKeys) * p.kv_heads + kv_head;
#pragma unroll
      for (int i = 0; i < kWarpKeys / 2; ++i) {
        const int r = i * 2 + lane / 16, c = lane % 16;
        const std::int64_t from = (first + static_cast<std::int64_t>(r) * p.kv_heads) * kDim + c * 8;
        copy_16(to + tile_offset(r, c), p.k + from);
        copy_16(to + kTileBytes + tile_offset(r, c), p.v + from);
      }
      --left;
      if (++unit == split::units<kUnitKeys>(p.seq_lens[request]) && left > 0) {
        unit = 0;
        do {
          ++request;
        } while (split::units<kUnitKeys>(p.seq_lens[request]) == 0);
      }
    }
    copy_commit();
  }
};

struct Softmax {
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
};

/// Scores of 16 rows and this warp's 16 keys, then their part of the output.
__device__ __forceinline__ void attend(const Params& p, const std::uint32_t (&q)[kDim / 16][4], std::uint32_t tile,
                                       int first_key, int limit0, int limit1, bool masked, Softmax& run,
                                       float (&o)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float s[2][4] = {};
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j) {
    std::uint32_t b[4];
    load_matrices(b, tile + tile_offset(lane / 16 * 8 + lane % 8, j * 2 + lane / 8 % 2));
    mma(s[0], q[j], b[0], b[1]);
    mma(s[1], q[j], b[2], b[3]);
  }
  float top0 = -INFINITY, top1 = -INFINITY;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + n * 8 + lane % 4 * 2 + i;
      s[n][i] = masked && key >= limit0 ? -INFINITY : s[n][i] * p.scale_log2;
      s[n][2 + i] = masked && key >= limit1 ? -INFINITY : s[n][2 + i] * p.scale_log2;
      top0 = fmaxf(top0, s[n][i]);
      top1 = fmaxf(top1, s[n][2 + i]);
    }
  }
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(0xffffffffu, top0, d));
    top1 = fmaxf(top1, __shfl_xor_sync(0xffffffffu, top1, d));
  }
  const float n0 = fmaxf(run.m0, top0), n1 = fmaxf(run.m1, top1);
  const float c0 = n0 == -INFINITY ? 0.0f : n0, c1 = n1 == -INFINITY ? 0.0f : n1;
  const float alpha0 = sm90::exp2_approx(run.m0 - c0), alpha1 = sm90::exp2_approx(run.m1 - c1);
  run.m0 = n0;
  run.m1 = n1;
  run.l0 *= alpha0;
  run.l1 *= alpha1;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[n][i] = sm90::exp2_approx(s[n][i] - c0);
      s[n][2 + i] = sm90::exp2_approx(s[n][2 + i] - c1);
      run.l0 += s[n][i];
      run.l1 += s[n][2 + i];
    }
  }
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    o[j][0] *= alpha0;
    o[j][1] *= alpha0;
    o[j][2] *= alpha1;
    o[j][3] *= alpha1;
  }
  const std::uint32_t a[4] = {sm90::pack_bf16(s[0][0], s[0][1]), sm90::pack_bf16(s[0][2], s[0][3]),
                              sm90::pack_bf16(s[1][0], s[1][1]), sm90::pack_bf16(s[1][2], s[1][3])};
#pragma unroll
  for (int j = 0; j < kDim / 8; j += 2) {
    std::uint32_t b[4];
    load_matrices_transposed(b, tile + kTileBytes + tile_offset(lane / 8 % 2 * 8 + lane % 8, j + lane / 16));
    mma(o[j], a, b[0], b[1]);
    mma(o[j + 1], a, b[2], b[3]);
  }
}

/// Brings the four warps' results together, in the order of the warps; the last warp ends with the sum, divided.
/// Returns log2 of the sums of its rows.
__device__ __forceinline__ float2 merge(Softmax run, float (&o)[kDim / 8][4], float* stats, float* buffer) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    run.l0 += __shfl_xor_sync(0xffffffffu, run.l0, d);
    run.l1 += __shfl_xor_sync(0xffffffffu, run.l1, d);
  }
  float* const m = stats;
  float* const l = stats + kWarps * kRows;
  if (lane % 4 == 0) {
    m[warp * kRows + g] = run.m0;
    m[warp * kRows + g + 8] = run.m1;
    l[warp * kRows + g] = run.l0;
    l[warp * kRows + g + 8] = run.l1;
  }
  __syncthreads();
  float top0 = -INFINITY, top1 = -INFINITY, sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    top0 = fmaxf(top0, m[w * kRows + g]);
    top1 = fmaxf(top1, m[w * kRows + g + 8]);
  }
  const float c0 = top0 == -INFINITY ? 0.0f : top0, c1 = top1 == -INFINITY ? 0.0f : top1;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sum0 += l[w * kRows + g] * exp2f(m[w * kRows + g] - c0);
    sum1 += l[w * kRows + g + 8] * exp2f(m[w * kRows + g + 8] - c1);
  }
  const float f0 = sum0 > 0.0f ? exp2f(run.m0 - c0) / sum0 : 0.0f;
  const float f1 = sum1 > 0.0f ? exp2f(run.m1 - c1) / sum1 : 0.0f;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) {
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        float2* const top = reinterpret_cast<float2*>(buffer + g * kDim + j * 8 + lane % 4 * 2);
        float2* const bottom = reinterpret_cast<float2*>(buffer + (g + 8) * kDim + j * 8 + lane % 4 * 2);
        o[j][0] *= f0;
        o[j][1] *= f0;
        o[j][2] *= f1;
        o[j][3] *= f1;
        if (w > 0) {
          const float2 t = *top, b = *bottom;
          o[j][0] += t.x;
          o[j][1] += t.y;
          o[j][2] += b.x;
          o[j][3] += b.y;
        }
        *top = make_float2(o[j][0], o[j][1]);
        *bottom = make_float2(o[j][2], o[j][3]);
      }
    }
    __syncthreads();
  }
  return make_float2(sum0 > 0.0f ? top0 + log2f(sum0) : -INFINITY, sum1 > 0.0f ? top1 + log2f(sum1) : -INFINITY);
}

struct Rows {
  int heads_per_kv, kv_head, block;  // block of 16 among the query rows of one KV head
  __device__ Rows(const Params& p, int column) {
    heads_per_kv = p.heads / p.kv_heads;
    const int blocks = p.columns / p.kv_heads;
    kv_head = column / blocks;
    block = column % blocks;
  }
  /// Index of the row's head vector among those of a request, or -1 past the end.
  __device__ int token(const Params& p, int row) const {
    const int i = block * kRows + row;
    return i < heads_per_kv * p.query_tokens ? i / heads_per_kv : -1;
  }
  __device__ int head(int row) const { return kv_head * heads_per_kv + (block * kRows + row) % heads_per_kv; }
};

__device__ __forceinline__ void load_query(const Params& p, const Rows& rows, int request,
                                           std::uint32_t (&q)[kDim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    const int token = rows.token(p, row);
    const auto* const from =
        reinterpret_cast<const std::uint32_t*>(
            p.q + (static_cast<std::int64_t>(request) * p.query_tokens + max(token, 0)) * p.q_stride +
            rows.head(row) * kDim) +
        lane % 4;
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      q[j][half] = token >= 0 ? __ldg(from + j * 8) : 0;
      q[j][2 + half] = token >= 0 ? __ldg(from + j * 8 + 4) : 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) gqa_decode_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  int* const scratch = reinterpret_cast<int*>(shared_memory + kScratch);
  float* const stats = reinterpret_cast<float*>(shared_memory + kStats);
  float* const buffer = reinterpret_cast<float*>(shared_memory + kMerge);
  const int column = static_cast<int>(blockIdx.x) % p.columns, lane_index = static_cast<int>(blockIdx.x) / p.columns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0 && p.sm_ids != nullptr) p.sm_ids[blockIdx.x] = sm90::sm_id();
  if (lane_index >= p.lanes) return;
  const std::uint32_t tiles =
      sm90::shared_address(shared_memory) + static_cast<std::uint32_t>(warp * kStages * 2 * kTileBytes);
  const split::Start start =
      split::find_start<kThreads, kUnitKeys>(p.seq_lens, p.requests, lane_index, p.lanes, scratch);
  const Rows rows(p, column);
  Loader loader{start.request, start.unit, start.count};
  for (int i = 0; i < kStages - 1; ++i) loader.load(p, rows.kv_head, tiles + i * 2 * kTileBytes);
  int stage = 0, fill = kStages - 1;
  int request = start.request, unit = start.unit, left = start.count;
  while (left > 0) {
    const int seq_len = p.seq_lens[request];
    const int all = split::units<kUnitKeys>(seq_len);
    const int begin = unit, end = min(all, unit + left);
    std::uint32_t q[kDim / 16][4];
    load_query(p, rows, request, q);
    const int token0 = rows.token(p, lane / 4), token1 = rows.token(p, lane / 4 + 8);
    const int limit0 = seq_len - p.query_tokens + max(token0, 0) + 1;
    const int limit1 = seq_len - p.query_tokens + max(token1, 0) + 1;
    Softmax run;
    float o[kDim / 8][4] = {};
    for (; unit < end; ++unit) {
      copy_wait<kStages - 2>();
      __syncwarp();
      loader.load(p, rows.kv_head, tiles + fill * 2 * kTileBytes);
      const int key = unit * kUnitKeys + warp * kWarpKeys;
      attend(p, q, tiles + stage * 2 * kTileBytes, key, limit0, limit1, key + kWarpKeys > seq_len - p.query_tokens + 1,
             run, o);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      fill = fill + 1 == kStages ? 0 : fill + 1;
    }
    const float2 log2_sum = merge(run, o, stats, buffer);
    if (warp == kWarps - 1) {
      const bool whole = begin == 0 && end == all;
      const std::int64_t at =
          (static_cast<std::int64_t>(split::slot(lane_index, begin == 0)) * p.columns + column) * kRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + half * 8, token = half == 0 ? token0 : token1;
        if (token < 0) continue;
        if (whole) {
          __nv_bfloat16* const to =
              p.out +
              ((static_cast<std::int64_t>(request) * p.query_tokens + token) * p.heads + rows.head(row)) * kDim +
              lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < kDim / 8; ++j) {
            *reinterpret_cast<std::uint32_t*>(to + j * 8) = sm90::pack_bf16(o[j][half * 2], o[j][half * 2 + 1]);
          }
        } else {
          float* const to = p.o + (at + row) * kDim + lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < kDim / 8; ++j) {
            *reinterpret_cast<float2*>(to + j * 8) = make_float2(o[j][half * 2], o[j][half * 2 + 1]);
          }
          if (lane % 4 == 0) p.log2_sum[at + row] = half == 0 ? log2_sum.x : log2_sum.y;
        }
      }
    }
    left -= end - begin;
    unit = 0;
    if (left > 0) {
      do {
        ++request;
      } while (split::units<kUnitKeys>(p.seq_lens[request]) == 0);
    }
  }
  copy_wait<0>();
}

__global__ void __launch_bounds__(split::kCombineThreads)
    gqa_combine_kernel(const split::CombineParams p, const __grid_constant__ Params params) {
  split::combine<kRows, kDim, kUnitKeys>(p, [&](int request, int column, int row) -> __nv_bfloat16* {
    const Rows rows(params, column);
    const int token = rows.token(params, row);
    if (token < 0) return nullptr;
    return p.out +
           ((static_cast<std::int64_t>(request) * params.query_tokens + token) * params.heads + rows.head(row)) * kDim;
  });
}

cudaError_t prepare_decode() {
  return cudaFuncSetAttribute(gqa_decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

}  // namespace gqa

cudaError_t launch_gqa_decode(const GqaDecodeArgs& args, cudaStream_t stream) {
  if (args.batch.requests == 0) return cudaSuccess;
  if (args.batch.requests < 0 || args.kv_heads < 1 || args.heads % args.kv_heads != 0 || args.batch.query_tokens < 1) {
    return cudaErrorInvalidValue;
  }
  const int rows = args.heads / args.kv_heads * args.batch.query_tokens;
  const int columns = args.kv_heads * ((rows + gqa::kRows - 1) / gqa::kRows);
  if (2 * args.sms < columns) return cudaErrorInvalidValue;
  const gqa::Params params{.k = static_cast<const __nv_bfloat16*>(args.k_cache),
                           .v = static_cast<const __nv_bfloat16*>(args.v_cache),
                           .seq_lens = args.batch.seq_lens,
                           .block_table = args.batch.block_table,
                           .max_pages = args.batch.max_pages,
                           .requests = args.batch.requests,
                           .query_tokens = args.batch.query_tokens,
                           .q = static_cast<const __nv_bfloat16*>(args.q),
                           .q_stride = args.q_stride,
                           .out = static_cast<__nv_bfloat16*>(args.out),
                           .o = args.partials.o,
                           .log2_sum = args.partials.log2_sum,
                           .heads = args.heads,
                           .kv_heads = args.kv_heads,
                           .scale_log2 = args.scale * 1.4426950408889634f,
                           .columns = columns,
                           .lanes = 2 * args.sms / columns,
                           .sm_ids = args.sm_ids};
  gqa::gqa_decode_kernel<<<static_cast<unsigned>(2 * args.sms), gqa::kThreads, gqa::kSharedBytes, stream>>>(params);
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
  gqa::gqa_combine_kernel<<<dim3(static_cast<unsigned>(args.batch.requests), static_cast<unsigned>(columns)),
                            split::kCombineThreads, 0, stream>>>(combine, params);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
