// Offset between the %globaltimer clocks of two GPUs, by question and answer over the peers' clock boxes.
#include "kernels/a2a/launch.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels {
namespace {

/// A clock box, one per peer: [0] question number, [1] answer number, [2] the answerer's time, [3] gate (probe.h).
__device__ std::uint64_t* box_of(const A2aCall& c, std::byte* base, int peer) {
  return reinterpret_cast<std::uint64_t*>(base + c.layout.clock_box) + static_cast<std::size_t>(peer) * 4;
}

__device__ void wait_number(const A2aCall& c, const std::uint64_t* word, std::uint64_t number, int peer) {
  const std::uint64_t begin = device::global_time_ns();
  while (device::load_acquire(word) < number) {
    const std::uint64_t waited = device::global_time_ns() - begin;
    if (waited > c.deadline_ns) {
      device::fail_wait(WaitOp::Clock, c.layout.dims.rank, c.slot, peer, static_cast<std::uint32_t>(number),
                        static_cast<std::uint32_t>(device::load_acquire(word)), waited);
    }
  }
}

__global__ void clock_probe_kernel(const __grid_constant__ ClockProbeArgs a) {
  const A2aCall& c = a.call;
  std::uint64_t* const own = box_of(c, c.base, a.peer);
  std::uint64_t* const other = box_of(c, c.peers[a.peer], c.layout.dims.rank);
  // Numbers go on from the previous probe of this pair; the asker's box says how many it had answered. (Its question
  // may be here already, so the question number would not do.)
  const std::uint64_t done = device::load_acquire(a.asks ? own + 1 : other + 1);
  std::uint64_t quickest = ~std::uint64_t{0};
  for (int round = 1; round <= a.rounds; ++round) {
    const std::uint64_t number = done + static_cast<std::uint64_t>(round);
    if (a.asks) {
      const std::uint64_t asked = device::global_time_ns();
      device::store_release(other, number);
      wait_number(c, own + 1, number, a.peer);
      const std::uint64_t answered = device::global_time_ns();
      if (answered - asked < quickest) {
        quickest = answered - asked;
        *a.offset_ns = static_cast<std::int64_t>(own[2] - (asked + (answered - asked) / 2));
      }
    } else {
      wait_number(c, own, number, a.peer);
      device::store_relaxed(other + 2, device::global_time_ns());
      device::store_release(other + 1, number);
    }
  }
}

}  // namespace

cudaError_t launch_clock_probe(const ClockProbeArgs& args, cudaStream_t stream) {
  const MoeDims& dims = args.call.layout.dims;
  const bool peer_valid = args.peer >= 0 && args.peer < dims.ranks && args.peer != dims.rank;
  if (args.call.base == nullptr || args.call.peers == nullptr || !peer_valid || args.rounds < 1)
    return cudaErrorInvalidValue;
  if (args.asks && args.offset_ns == nullptr) return cudaErrorInvalidValue;
  return launch(clock_probe_kernel, 1, 1, 0, stream, args);
}

namespace detail {

cudaError_t preload_clock_probe() {
  return preload(clock_probe_kernel);
}

}  // namespace detail
}  // namespace dbo::kernels
