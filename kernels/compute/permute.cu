#include "kernels/compute/permute.h"

#include <cuda_fp8.h>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/split.cuh"
#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace permute {

constexpr int kIndexThreads = 1024;
constexpr int kMaxRanks = 4096;

/// Running counts of filled slots: start[r] for each source, start[ranks] in all.
__device__ void load_counts(const std::int32_t* count, int ranks, std::int32_t* start, int* scratch) {
  int before = 0;
  for (int base = 0; base < ranks; base += kIndexThreads) {
    const int r = base + static_cast<int>(threadIdx.x);
    const int n = r < ranks ? count[r] : 0;
    int total;
    const int sum = split::block_scan<kIndexThreads>(n, scratch, total);
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

/// One block an expert. The first pass over the filled slots counts the choices of lower experts, which gives the
/// expert's first sorted row, the second gives each choice its place.
__global__ void __launch_bounds__(kIndexThreads, 1) rank_major_index_kernel(const IndexArgs p) {
  extern __shared__ std::int32_t start[];  // [ranks + 1]
  __shared__ int scratch[kIndexThreads / 32];
  const int self = static_cast<int>(blockIdx.x), ranks = p.dims.ranks, top_k = p.dims.top_k;
  load_counts(p.count, ranks, start, scratch);
  const int filled = start[ranks];
  int lower = 0, own = 0;
  for (int v = static_cast<int>(threadIdx.x); v < filled; v += kIndexThreads) {
    const std::int64_t row = row_of(v, start, ranks, p.dims.max_tokens);
    for (int k = 0; k < top_k; ++k) {
      const int e = p.expert[row * top_k + k];
      lower += e >= 0 && e < self;
      own += e == self;
    }
  }
  int first, total;
  split::block_scan<kIndexThreads>(lower, scratch, first);
  split::block_scan<kIndexThreads>(own, scratch, total);
  if (threadIdx.x == 0) {
    p.index.offset[self] = first;
    if (self + 1 == p.dims.experts_per_rank) p.index.offset[self + 1] = first + total;
    if (first + total > p.max_rows) __trap();
  }
  for (int base = 0; base < filled; base += kIndexThreads) {
    const int v = base + static_cast<int>(threadIdx.x);
    std::int64_t row = 0;
    int here = 0;
    if (v < filled) {
      row = row_of(v, start, ranks, p.dims.max_tokens);
      for (int k = 0; k < top_k; ++k) here += p.expert[row * top_k + k] == self;
    }
    int all;
    int at = first + split::block_scan<kIndexThreads>(here, scratch, all) - here;
    if (v < filled) {
      for (int k = 0; k < top_k; ++k) {
        const int e = p.expert[row * top_k + k];
        if (e == self) {
          if (at < p.max_rows) p.index.row[at] = static_cast<std::int32_t>(row);
          p.index.position[row * top_k + k] = at++;
        } else if (self == 0 && e < 0) {
          p.index.position[row * top_k + k] = -1;
        }
      }
    }
    first += all;
  }
}

/// One block an expert: the slots of its sources, one source after the other.
__global__ void __launch_bounds__(kIndexThreads, 1) expert_major_index_kernel(const IndexArgs p) {
  extern __shared__ std::int32_t start[];  // [ranks + 1]
  __shared__ int scratch[kIndexThreads / 32];
  const int self = static_cast<int>(blockIdx.x), ranks = p.dims.ranks;
  int lower = 0;
  for (int i = static_cast<int>(threadIdx.x); i < self * ranks; i += kIndexThreads) lower += p.count[i];
  int first;
  split::block_scan<kIndexThreads>(lower, scratch, first);
  load_counts(p.count + static_cast<std::int64_t>(self) * ranks, ranks, start, scratch);
  const int filled = start[ranks];
  if (threadIdx.x == 0) {
    p.index.offset[self] = first;
    if (self + 1 == p.dims.experts_per_rank) p.index.offset[self + 1] = first + filled;
    if (first + filled > p.max_rows) __trap();
  }
  for (int v = static_cast<int>(threadIdx.x); v < filled && first + v < p.max_rows; v += kIndexThreads) {
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
  if (!permute::valid(args.dims) || args.expert == nullptr || args.index.position == nullptr)
    return cudaErrorInvalidValue;
  permute::rank_major_index_kernel<<<static_cast<unsigned>(args.dims.experts_per_rank), permute::kIndexThreads,
                                     static_cast<std::size_t>(args.dims.ranks + 1) * sizeof(std::int32_t), stream>>>(
      args);
  return cudaGetLastError();
}

cudaError_t launch_expert_major_index(const IndexArgs& args, cudaStream_t stream) {
  if (!permute::valid(args.dims)) return cudaErrorInvalidValue;
  permute::expert_major_index_kernel<<<static_cast<unsigned>(args.dims.experts_per_rank), permute::kIndexThreads,
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
