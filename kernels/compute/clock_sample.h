// The SM clock while other kernels run: what a rate has to be divided by when power limits the clock. Plain C++
// interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dbo::kernels {

/// One warp without shared memory and with few registers, so that it finds room beside kernels that fill the SMs. It
/// counts its SM's cycles for `duration_ns`.
struct ClockSampleArgs {
  std::int64_t* cycles = nullptr;  ///< [2]: cycles, nanoseconds
  std::int64_t duration_ns = 0;
};
[[nodiscard]] cudaError_t launch_clock_sample(const ClockSampleArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
