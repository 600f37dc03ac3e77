#include "kernels/a2a/probe.h"

#include "kernels/a2a/launch.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels {
namespace {

constexpr int kFillThreads = 256;
constexpr int kFillBlocks = 1056;

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

__device__ float draw(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 0x1p-31f;
}

__global__ void __launch_bounds__(kFillThreads) fill_kernel(const __grid_constant__ FillArgs a) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.elements / 8; i += step) {
    std::uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const std::uint64_t at = a.seed * 0x9e3779b97f4a7c15u + i * 8 + static_cast<std::uint64_t>(w) * 2;
      words[w] = device::pack_bf16(draw(at * 0x9e3779b97f4a7c15u), draw((at + 1) * 0x9e3779b97f4a7c15u));
    }
    device::store16(static_cast<std::byte*>(a.rows) + i * 16, {words[0], words[1], words[2], words[3]});
  }
}

}  // namespace

cudaError_t launch_gate(const GateArgs& args, cudaStream_t stream) {
  if (args.call.base == nullptr || args.call.peers == nullptr || args.open == nullptr) return cudaErrorInvalidValue;
  return launch(gate_kernel, 1, 32, 0, stream, args);
}

cudaError_t launch_fill_bf16(const FillArgs& args, cudaStream_t stream) {
  if (args.rows == nullptr || args.elements % 8 != 0) return cudaErrorInvalidValue;
  return launch(fill_kernel, kFillBlocks, kFillThreads, 0, stream, args);
}

}  // namespace dbo::kernels
