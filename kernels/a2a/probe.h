// What measurements need around the all-to-all: a common start on all GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/a2a/call.h"

namespace dbo::kernels {

/// Holds each rank's stream until the host has opened the gate and all ranks have come to it, so that what follows
/// starts together and finds everything already enqueued. Uses the clock boxes of the call's buffers.
struct GateArgs {
  A2aCall call;
  const std::uint64_t* open = nullptr;  ///< host-mapped: number of the latest gate the host has opened
  std::uint64_t number = 0;             ///< of this gate: 1, 2, ... the same on all ranks
};
[[nodiscard]] cudaError_t launch_gate(const GateArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
