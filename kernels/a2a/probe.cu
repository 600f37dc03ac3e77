#include "kernels/a2a/probe.h"

#include "kernels/a2a/launch.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels {
namespace {

__device__ void wait_at_least(const A2aCall& c, const std::uint64_t* word, std::uint64_t number, int source) {
  const std::uint64_t begin = device::global_time_ns();
  while (device::load_acquire(word) < number) {
    const std::uint64_t waited = device::global_time_ns() - begin;
    if (waited > c.deadline_ns) {
      device::fail_wait(WaitOp::Gate, c.layout.dims.rank, c.slot, source, static_cast<std::uint32_t>(number),
                        static_cast<std::uint32_t>(device::load_acquire(word)), waited);
    }
  }
}

/// Word 3 of the clock box that `base`'s owner keeps for `rank`.
__device__ std::uint64_t* gate_word(const A2aCall& c, std::byte* base, int rank) {
  return reinterpret_cast<std::uint64_t*>(base + c.layout.clock_box) + static_cast<std::size_t>(rank) * 4 + 3;
}

__global__ void gate_kernel(const __grid_constant__ GateArgs a) {
  const A2aCall& c = a.call;
  if (threadIdx.x == 0) wait_at_least(c, a.open, a.number, c.layout.dims.rank);
  __syncthreads();
  for (int rank = device::thread_index(); rank < c.layout.dims.ranks; rank += device::block_threads()) {
    device::store_release(gate_word(c, c.peers[rank], c.layout.dims.rank), a.number);
  }
  for (int rank = device::thread_index(); rank < c.layout.dims.ranks; rank += device::block_threads()) {
    wait_at_least(c, gate_word(c, c.base, rank), a.number, rank);
  }
}

}  // namespace

cudaError_t launch_gate(const GateArgs& args, cudaStream_t stream) {
  if (args.call.base == nullptr || args.call.peers == nullptr || args.open == nullptr) return cudaErrorInvalidValue;
  return launch(gate_kernel, 1, 32, 0, stream, args);
}

}  // namespace dbo::kernels
