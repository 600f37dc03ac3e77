// Split-KV work of decode attention. The keys of all requests, cut into units, are laid end to end and divided evenly
// into lanes; a block serves one lane for one column (a block of query rows). A request whose units fall into several
// lanes leaves partial results that a second kernel adds up in the order of its keys. The division depends only on the
// context lengths and the number of lanes, so results are the same in every run.
#pragma once

#include <cstdint>

#include "kernels/compute/sm90.cuh"

namespace dbo::kernels::split {

/// Units of `kUnitKeys` keys of one request.
template <int kUnitKeys>
__device__ __forceinline__ int units(std::int32_t seq_len) {
  return seq_len > 0 ? (seq_len + kUnitKeys - 1) / kUnitKeys : 0;
}

__device__ __forceinline__ int lane_begin(int lane, int lanes, int total) {
  return static_cast<int>(static_cast<std::int64_t>(lane) * total / lanes);
}

/// The lane that has unit `u`: the smallest l with lane_begin(l + 1) > u.
__device__ __forceinline__ int lane_of(int u, int lanes, int total) {
  return static_cast<int>((static_cast<std::int64_t>(u + 1) * lanes + total - 1) / total) - 1;
}

/// Partial results have two slots a lane: one for the request that began in an earlier lane, one for the request that
/// goes on in a later one.
__device__ __forceinline__ int slot(int lane, bool begins_here) {
  return lane * 2 + (begins_here ? 1 : 0);
}

/// Inclusive sum over the block; `scratch` holds kThreads / 32 ints. All threads call it; it ends with a barrier.
template <int kThreads>
__device__ __forceinline__ int block_scan(int value, int* scratch, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return sum + before;
}

/// Where a lane starts.
struct Start {
  int request = 0;
  int unit = 0;   ///< within the request
  int count = 0;  ///< units of the lane
};

/// All threads of the block call it. `scratch` holds kThreads / 32 + 2 ints.
template <int kThreads, int kUnitKeys>
__device__ Start find_start(const std::int32_t* seq_lens, int requests, int lane, int lanes, int* scratch) {
  const int each = (requests + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, requests), end = min(begin + each, requests);
  int sum = 0;
  for (int r = begin; r < end; ++r) sum += units<kUnitKeys>(seq_lens[r]);
  int total;
  int at = block_scan<kThreads>(sum, scratch, total) - sum;
  Start start;
  const int first = lane_begin(lane, lanes, total);
  start.count = lane_begin(lane + 1, lanes, total) - first;
  int* const found = scratch + kThreads / 32;
  for (int r = begin; r < end; ++r) {
    const int n = units<kUnitKeys>(seq_lens[r]);
    if (at <= first && first < at + n) {
      found[0] = r;
      found[1] = first - at;
    }
    at += n;
  }
  __syncthreads();
  if (start.count > 0) {
    start.request = found[0];
    start.unit = found[1];
  }
  return start;
}

/// Adds the partial results of requests that were cut, one block per (request, column); rows of requests without keys
/// become zero. Partials: o [slots][columns][kRows][kDim] already divided by its own sum, log2_sum
/// [slots][columns][kRows]. Row i of column c of a request is row c * kRows + i of its `rows` rows in `out`
/// [requests][rows][kDim].
struct CombineParams {
  const std::int32_t* seq_lens;
  const float* o;
  const float* log2_sum;
  __nv_bfloat16* out;
  int requests;
  int lanes;
  int columns;
  int rows;
};

inline constexpr int kCombineThreads = 256;

/// `Place` maps (request, column, row in the column) to the output row, or null when there is none.
template <int kRows, int kDim, int kUnitKeys, class Place>
__device__ __forceinline__ void combine(const CombineParams& p, const Place& place) {
  __shared__ int scratch[kCombineThreads / 32];
  const int request = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y);
  int before = 0, all = 0;
  for (int r = static_cast<int>(threadIdx.x); r < p.requests; r += kCombineThreads) {
    const int n = units<kUnitKeys>(p.seq_lens[r]);
    all += n;
    if (r < request) before += n;
  }
  int total, start;
  block_scan<kCombineThreads>(all, scratch, total);
  block_scan<kCombineThreads>(before, scratch, start);
  const int n = units<kUnitKeys>(p.seq_lens[request]);
  const int first = n == 0 ? 0 : lane_of(start, p.lanes, total),
            last = n == 0 ? 0 : lane_of(start + n - 1, p.lanes, total);
  if (n > 0 && first == last) return;
  constexpr int kVectors = kDim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kCombineThreads) {
    const int row = i / kVectors, d = i % kVectors * 4;
    __nv_bfloat16* const to = place(request, column, row);
    if (to == nullptr) continue;
    float largest = -INFINITY, sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (n > 0) {
      for (int lane = first; lane <= last; ++lane) {
        if (lane_begin(lane, p.lanes, total) == lane_begin(lane + 1, p.lanes, total)) continue;
        const std::int64_t at = static_cast<std::int64_t>(slot(lane, lane == first)) * p.columns + column;
        largest = fmaxf(largest, p.log2_sum[at * kRows + row]);
      }
      for (int lane = first; lane <= last && largest > -INFINITY; ++lane) {
        if (lane_begin(lane, p.lanes, total) == lane_begin(lane + 1, p.lanes, total)) continue;
        const std::int64_t at = static_cast<std::int64_t>(slot(lane, lane == first)) * p.columns + column;
        const float w = exp2f(p.log2_sum[at * kRows + row] - largest);
        const float4 v = *reinterpret_cast<const float4*>(p.o + (at * kRows + row) * kDim + d);
        sum += w;
        acc.x += w * v.x;
        acc.y += w * v.y;
        acc.z += w * v.z;
        acc.w += w * v.w;
      }
      const float scale = sum > 0.0f ? 1.0f / sum : 0.0f;
      acc.x *= scale;
      acc.y *= scale;
      acc.z *= scale;
      acc.w *= scale;
    }
    uint2 packed;
    packed.x = sm90::pack_bf16(acc.x, acc.y);
    packed.y = sm90::pack_bf16(acc.z, acc.w);
    *reinterpret_cast<uint2*>(to + d) = packed;
  }
}

}  // namespace dbo::kernels::split
