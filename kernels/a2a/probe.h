// Kernels that measurements need around the all-to-all: a common start on all GPUs, and data.
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

/// Fills with bf16 drawn evenly from [-1, 1), a function of seed and index.
struct FillArgs {
  void* rows = nullptr;
  std::size_t elements = 0;  ///< a multiple of 8; rows 16-byte aligned
  std::uint64_t seed = 0;
};
[[nodiscard]] cudaError_t launch_fill_bf16(const FillArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
