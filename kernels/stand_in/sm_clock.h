// What clock the SMs ran at between two moments: each SM's own count of cycles against the GPU's timer. Plain C++
// interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dbo::kernels {

/// One SM's counters; both 0 where no block ran.
struct SmClock {
  std::uint64_t cycles, ns;
};

/// Reads the counters of the `sms` SMs into `out` (device memory, zeroed before). On an idle GPU every SM gets a block.
[[nodiscard]] cudaError_t launch_sm_clock(SmClock* out, int sms, cudaStream_t stream);

}  // namespace dbo::kernels
