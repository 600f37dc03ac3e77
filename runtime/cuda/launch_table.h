// What each op of a plan enqueues on a GPU: the only place that knows both the plan's ops and the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace dbo::runtime {

/// One op's launches.
struct OpLaunch {
  /// Enqueues all of the op on the stream, asynchronously: no allocation, no synchronisation, no first use of a
  /// library. Throws CudaError or NcclError.
  std::function<void(cudaStream_t stream)> enqueue;
  /// The kernels write the op's OpStamp and progress word themselves.
  bool stamped = false;
};

/// All of a rank's ops, prepared before the first step so that a step only launches.
struct LaunchTable {
  std::vector<OpLaunch> ops;  ///< by plan_op
  /// The step's first launches, on `compute`. May be empty.
  std::function<void(cudaStream_t compute)> begin;
  /// Whether the counts of a dispatch that blocks the host are known; asked again and again. May be empty.
  std::function<bool(std::uint32_t plan_op, std::uint32_t step)> counts_known;
  /// Streams besides the lanes that ops enqueue on; they fork from `compute` and join it like lanes.
  std::vector<cudaStream_t> side_streams;
};

}  // namespace dbo::runtime
