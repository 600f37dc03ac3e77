// Every rank's buffer as every other rank's GPU addresses it: plain device memory, mapped from peer to peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cuda/handles.h"
#include "runtime/host_group.h"

namespace dbo::runtime {

/// Which GPU each rank drives; the same on all ranks.
struct Placement {
  std::vector<int> gpu;             ///< by rank: index in its own process
  std::vector<int> process;         ///< by rank: process id
  std::vector<std::string> host;    ///< by rank
  std::vector<std::string> bus_id;  ///< by rank
};

/// Collective. Throws InputError when two ranks share a GPU (their spinning kernels would wait for each other's SMs) or
/// when the GPUs are of different kinds.
Placement exchange_placement(HostGroup& group, int gpu);

/// The buffers of all ranks; mappings of other processes' memory are closed when it goes.
class PeerMemory {
 public:
  PeerMemory() = default;
  /// Collective: `mine` is this rank's buffer (from cudaMalloc, its first byte). In one process peer access is enabled;
  /// across processes on one host buffers are opened by handle. Throws CudaError where neither works.
  PeerMemory(HostGroup& group, const Placement& placement, std::byte* mine);
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept { swap(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  const std::vector<std::byte*>& pointers() const { return pointers_; }

 private:
  void swap(PeerMemory& other) noexcept {
    pointers_.swap(other.pointers_);
    opened_.swap(other.opened_);
    std::swap(gpu_, other.gpu_);
  }

  std::vector<std::byte*> pointers_;
  std::vector<void*> opened_;
  int gpu_ = 0;
};

/// Another GPU's clock against ours.
struct ClockOffset {
  std::int64_t offset_ns = 0;    ///< its %globaltimer minus ours
  std::int64_t residual_ns = 0;  ///< how wrong that may be
};

/// Measures GPUs' clocks against each other. They drift apart, so whoever compares times of two GPUs measures
/// shortly before.
class ClockAligner {
 public:
  /// Collective. `group` must outlive it.
  ClockAligner(HostGroup& group, const Placement& placement);

  /// Collective, while the GPUs have nothing else to do: every pair of ranks by questions and answers between their
  /// GPUs. By rank; own entry zero. Throws NcclError naming the pair when a GPU does not answer.
  std::vector<ClockOffset> measure();

 private:
  HostGroup& group_;
  DeviceBuffer boxes_, result_;  // a box a pair, so that nothing has to be cleared between pairs
  PeerMemory peers_;
  Stream stream_;
  std::uint64_t rounds_ = 0;  ///< asked so far
};

}  // namespace dbo::runtime
