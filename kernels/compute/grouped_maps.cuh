// What the grouped GEMMs' kernels share: the maps of A and W as they take them, and how they are launched.
#pragma once

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/sm90.cuh"
#include "kernels/compute/tensor_map.cuh"

namespace dbo::kernels {

struct GroupedMaps {
  static constexpr int kCount = GroupedRowsMap::kBoxes + 2;
  CUtensorMap map[kCount];  // of A as in GroupedRowsMap, then of W: whole, half

  /// Rows that are copied for `count`.
  static __device__ __forceinline__ int rows_copied(int count) {
    return tiles_up(count, GroupedRowsMap::kStep) * GroupedRowsMap::kStep;
  }
  __device__ __forceinline__ const CUtensorMap* rows(int count) const {
    return map + tiles_up(count, GroupedRowsMap::kStep) - 1;
  }
  __device__ __forceinline__ const CUtensorMap* weights(bool whole) const {
    return map + GroupedRowsMap::kBoxes + (whole ? 0 : 1);
  }
  /// Each of the block's first threads fetches one.
  __device__ __forceinline__ void prefetch() const {
    if (threadIdx.x < kCount) sm90::prefetch_tensor_map(map + threadIdx.x);
  }
};

inline GroupedMaps native(const GroupedRowsMap& rows, const GroupedWeightsMap& weights) {
  GroupedMaps maps;
  for (int i = 0; i < GroupedRowsMap::kBoxes; ++i) maps.map[i] = native(rows.box[i]);
  maps.map[GroupedRowsMap::kBoxes] = native(weights.whole);
  maps.map[GroupedRowsMap::kBoxes + 1] = native(weights.half);
  return maps;
}

constexpr int kGroupedThreads = 384;

template <class... Parameters, class... Arguments>
cudaError_t launch_grouped(void (*kernel)(Parameters...), const GroupedGemmArgs& args, int shared_bytes,
                           cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.sms));
  config.blockDim = dim3(kGroupedThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = args.early_start ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace dbo::kernels
