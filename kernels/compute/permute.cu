#include "kernels/compute/permute.h"

#include <cuda_fp8.h>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/split.cuh"
#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace permute {

constexpr int kIndexThreads = 256;  // of each of the rank-major index's kIndexBlocks blocks
constexpr int kIndexWarps = kIndexThreads / 32;
constexpr int kGroupThreads = 1024;  // of the expert-major index
constexpr int kMaxRanks = 4096;

/// Running counts of filled slots: start[r] for each source, start[ranks] in all.
template <int kThreads>
__device__ void load_counts(const std::int32_t* count, int ranks, std::int32_t* start, int* scratch) {
  int before = 0;
  for (int base = 0; base < ranks; base += kThreads) {
    const int r = base + static_cast<int>(threadIdx.x);
    const int n = r < ranks ? count[r] : 0;
    int total;
    const int sum = split::block_scan<kThreads>(n, scratch, total);
    if (r < ranks) start[r] = before + sum - n;
    before += total;
  }
  if (threadIdx.x == 0) start[ranks] = before;
  __syncthreads();
}

/// The received row of filled slot `v` of all.
__device__ __forceinline__ std::int32_t row_of(int v, const std::int32_t* start, int ranks, int max_tokens) {
  int low = 0, high = ranks - 1;  // the last source that starts at or before v
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (start[middle] <= v) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * max_tokens + (v - start[low]);
}

/// The choices of all filled slots in the order of rows and k, cut evenly into warps of the grid. Both kernels of the
/// rank-major index walk them alike.
struct Choices {
  const IndexArgs& p;
  const std::int32_t* start;
  int begin, end;  // of this warp

  __device__ Choices(const IndexArgs& args, const std::int32_t* starts) : p(args), start(starts) {
    const int all = starts[p.dims.ranks] * p.dims.top_k;
    const int warp = static_cast<int>(blockIdx.x) * kIndexWarps + static_cast<int>(threadIdx.x) / 32;
    const int each = ((all + kIndexBlocks * kIndexWarps - 1) / (kIndexBlocks * kIndexWarps) + 31) / 32 * 32;
    begin = min(warp * each, all);
    end = min(begin + each, all);
  }
  /// Where choice `i` lies in [ranks * max_tokens][top_k].
  __device__ std::int64_t place(int i) const {
    const int slot = i / p.dims.top_k;
    return static_cast<std::int64_t>(row_of(slot, start, p.dims.ranks, p.dims.max_tokens)) * p.dims.top_k +
           (i - slot * p.dims.top_k);
  }
  /// Adds this warp's choices of each expert to `counts`.
  __device__ void count(int* counts) const {
    for (int i = begin + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
      const int e = p.expert[place(i)];
      if (e >= 0) atomicAdd(counts + e, 1);
    }
  }
};

/// First of two: how often each block's choices name each expert.
__global__ void __launch_bounds__(kIndexThreads) rank_major_count_kernel(const IndexArgs p) {
  extern __shared__ std::int32_t start[];  // [ranks + 1], then counts [experts]
  __shared__ int scratch[kIndexWarps];
  const int experts = p.dims.experts_per_rank;
  int* const counts = start + p.dims.ranks + 1;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kIndexThreads) counts[e] = 0;
  load_counts<kIndexThreads>(p.count, p.dims.ranks, start, scratch);
  Choices(p, start).count(counts);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kIndexThreads) {
    p.block_count[static_cast<int>(blockIdx.x) * experts + e] = counts[e];
  }
}

/// Second: an expert's rows begin after those of lower experts, a block's among them after those of lower blocks, a
/// warp's after those of lower warps.
__global__ void __launch_bounds__(kIndexThreads) rank_major_place_kernel(const IndexArgs p) {
  extern __shared__ std::int32_t start[];  // [ranks + 1], then total [experts], before [experts], next [warps][experts]
  __shared__ int scratch[kIndexWarps];
  const int experts = p.dims.experts_per_rank;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int* const total = start + p.dims.ranks + 1;
  int* const before = total + experts;
  int* const next = before + experts;
  for (int e = thread; e < (2 + kIndexWarps) * experts; e += kIndexThreads) total[e] = 0;
  load_counts<kIndexThreads>(p.count, p.dims.ranks, start, scratch);
  const Choices choices(p, start);
  choices.count(next + warp * experts);
  static_assert(kIndexBlocks % kIndexWarps == 0);
  constexpr int kEach = kIndexBlocks / kIndexWarps;
  for (int e = lane; e < experts; e += 32) {
    int sum = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int block = warp * kEach + i;
      const int n = p.block_count[block * experts + e];
      sum += n;
      lower += block < static_cast<int>(blockIdx.x) ? n : 0;
    }
    atomicAdd(total + e, sum);
    atomicAdd(before + e, lower);
  }
  __syncthreads();
  int first = 0;
  for (int base = 0; base < experts; base += kIndexThreads) {
    const int e = base + thread;
    const int n = e < experts ? total[e] : 0;
    int all;
    const int offset = first + split::block_scan<kIndexThreads>(n, scratch, all) - n;
    first += all;
    if (e >= experts) continue;
    if (blockIdx.x == 0) p.index.offset[e] = offset;
    int at = offset + before[e];
    for (int w = 0; w < kIndexWarps; ++w) {
      const int own = next[w * experts + e];
      next[w * experts + e] = at;
      at += own;
    }
  }
  if (blockIdx.x == 0 && thread < kTickets && p.ticket != nullptr) p.ticket[thread] = 0;
  if (thread == 0) {
    if (blockIdx.x == 0) p.index.offset[experts] = first;
    if (first > p.max_rows) __trap();
  }
  __syncthreads();
  int* const own = next + warp * experts;
  for (int base = choices.begin; base < choices.end; base += 32) {
    const bool inside = base + lane < choices.end;
    const std::int64_t place = inside ? choices.place(base + lane) : 0;
    const int e = inside ? p.expert[place] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, e);
    const int rank = __popc(same & ((1u << lane) - 1u));
    const int at = e >= 0 ? own[e] + rank : -1;
    __syncwarp();
    if (e >= 0 && rank == 0) own[e] = at + __popc(same);
    __syncwarp();
    if (inside) p.index.position[place] = at;
    if (e >= 0 && at < p.max_rows) p.index.row[at] = static_cast<std::int32_t>(place / p.dims.top_k);
  }
}

/// One block an expert: the slots of its sources, one source after the other.
__global__ void __launch_bounds__(kGroupThreads, 1) expert_major_index_kernel(const IndexArgs p) {
  extern __shared__ std::int32_t start[];  // [ranks + 1]
  __shared__ int scratch[kGroupThreads / 32];
  const int self = static_cast<int>(blockIdx.x), ranks = p.dims.ranks;
  if (self == 0 && threadIdx.x < kTickets && p.ticket != nullptr) p.ticket[threadIdx.x] = 0;
  int lower = 0;
  for (int i = static_cast<int>(threadIdx.x); i < self * ranks; i += kGroupThreads) lower += p.count[i];
  int first;
  split::block_scan<kGroupThreads>(lower, scratch, first);
  load_counts<kGroupThreads>(p.count + static_cast<std::int64_t>(self) * ranks, ranks, start, scratch);
  const int filled = start[ranks];
  if (threadIdx.x == 0) {
    p.index.offset[self] = first;
    if (self + 1 == p.dims.experts_per_rank) p.index.offset[self + 1] = first + filled;
    if (first + filled > p.max_rows) __trap();
  }
  for (int v = static_cast<int>(threadIdx.x); v < filled && first + v < p.max_rows; v += kGroupThreads) {
    p.index.row[first + v] = self * ranks * p.dims.max_tokens + row_of(v, start, ranks, p.dims.max_tokens);
  }
}

__device__ __forceinline__ float2 fp8_pair(std::uint16_t v) {
  const __half2 h(__nv_cvt_fp8x2_to_halfraw2(v, __NV_E4M3));
  return __half22float2(h);
}

/// One warp a row.
template <bool kFp8>
__global__ void __launch_bounds__(256) gather_rows_kernel(const GatherRowsArgs p) {
  const int rows = p.index.offset[p.experts];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = p.hidden / 8;
  for (int r = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32; r < rows;
       r += static_cast<int>(gridDim.x) * 8) {
    const std::int64_t from = p.index.row[r];
    uint4* const to = static_cast<uint4*>(p.out) + static_cast<std::int64_t>(r) * vectors;
    if constexpr (kFp8) {
      const uint2* const in = static_cast<const uint2*>(p.rows) + from * vectors;
      const float* const scales = p.scales + from * (p.hidden / kScaleBlock);
      for (int i = lane; i < vectors; i += 32) {
        const uint2 x = __ldg(in + i);
        const float scale = __ldg(scales + i * 8 / kScaleBlock);
        Vector8 y;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t word = j < 2 ? x.x : x.y;
          const float2 pair = fp8_pair(static_cast<std::uint16_t>(word >> (j % 2 * 16)));
          y.v[2 * j] = pair.x * scale;
          y.v[2 * j + 1] = pair.y * scale;
        }
        to[i] = pack(y);
      }
    } else {
      const uint4* const in = static_cast<const uint4*>(p.rows) + from * vectors;
      int i = lane;
      for (; i + 96 < vectors; i += 128) {
        uint4 x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = __ldg(in + i + j * 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i + j * 32] = x[j];
      }
      for (; i < vectors; i += 32) to[i] = __ldg(in + i);
    }
  }
}

/// One block of 128 threads walks rows.
__global__ void __launch_bounds__(128) reduce_rows_kernel(const ReduceRowsArgs p) {
  const int vectors = p.dims.hidden / 8, top_k = p.dims.top_k;
  const int slots = p.dims.ranks * p.dims.max_tokens;
  for (int row = static_cast<int>(blockIdx.x); row < slots; row += static_cast<int>(gridDim.x)) {
    if (row % p.dims.max_tokens >= p.count[row / p.dims.max_tokens]) continue;
    const std::int32_t* const position = p.index.position + static_cast<std::int64_t>(row) * top_k;
    const float* const weight = p.weight + static_cast<std::int64_t>(row) * top_k;
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += 128) {
      Vector8 sum = {};
      for (int k = 0; k < top_k; ++k) {
        const int at = position[k];
        if (at < 0) continue;
        const float w = weight[k];
        const Vector8 x =
            unpack(__ldg(static_cast<const uint4*>(p.sorted) + static_cast<std::int64_t>(at) * vectors + i));
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.v[j] += w * x.v[j];
      }
      static_cast<uint4*>(p.out)[static_cast<std::int64_t>(row) * vectors + i] = pack(sum);
    }
  }
}

bool valid(const MoeDims& d) {
  return d.ranks >= 1 && d.ranks <= kMaxRanks && d.experts_per_rank >= 1 && d.experts_per_rank <= kMaxLocalExperts &&
         d.max_tokens >= 1 && d.top_k >= 1;
}

}  // namespace permute

cudaError_t launch_rank_major_index(const IndexArgs& args, cudaStream_t stream) {
  if (!permute::valid(args.dims) || args.expert == nullptr || args.index.position == nullptr ||
      args.block_count == nullptr) {
    return cudaErrorInvalidValue;
  }
  const auto ints = [](int n) { return static_cast<std::size_t>(n) * sizeof(std::int32_t); };
  const int experts = args.dims.experts_per_rank;
  permute::
      rank_major_count_kernel<<<kIndexBlocks, permute::kIndexThreads, ints(args.dims.ranks + 1 + experts), stream>>>(
          args);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  permute::rank_major_place_kernel<<<kIndexBlocks, permute::kIndexThreads,
                                     ints(args.dims.ranks + 1 + (2 + permute::kIndexWarps) * experts), stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_expert_major_index(const IndexArgs& args, cudaStream_t stream) {
  if (!permute::valid(args.dims)) return cudaErrorInvalidValue;
  permute::expert_major_index_kernel<<<static_cast<unsigned>(args.dims.experts_per_rank), permute::kGroupThreads,
                                       static_cast<std::size_t>(args.dims.ranks + 1) * sizeof(std::int32_t), stream>>>(
      args);
  return cudaGetLastError();
}

cudaError_t launch_gather_rows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.hidden < 8 || args.hidden % 8 != 0 || args.blocks < 1) return cudaErrorInvalidValue;
  if (args.type == ElementType::Fp8E4m3) {
    if (args.scales == nullptr || args.hidden % kScaleBlock != 0) return cudaErrorInvalidValue;
    permute::gather_rows_kernel<true><<<static_cast<unsigned>(args.blocks), 256, 0, stream>>>(args);
  } else {
    permute::gather_rows_kernel<false><<<static_cast<unsigned>(args.blocks), 256, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

cudaError_t launch_reduce_rows(const ReduceRowsArgs& args, cudaStream_t stream) {
  if (!permute::valid(args.dims) || args.dims.hidden < 8 || args.dims.hidden % 8 != 0 || args.blocks < 1) {
    return cudaErrorInvalidValue;
  }
  permute::reduce_rows_kernel<<<static_cast<unsigned>(args.blocks), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
