// NCCL: the communicator of the ranks, the host group over its bootstrap, and buffers every rank can address.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/handles.h"
#include "runtime/host_group.h"
#include "runtime/launcher_env.h"

namespace dbo::runtime {

/// A communicator of all ranks. Destroyed without talking to the peers, so that a failing rank does not wait for them.
class NcclComm {
 public:
  NcclComm() = default;
  /// Collective, on the GPU selected by the calling thread: rank 0's id reaches the others through `group`.
  static NcclComm create(HostGroup& group);
  /// Collective without any host group: all processes know `root` (host:port), where rank 0 listens. `root` is given to
  /// NCCL as NCCL_COMM_ID, so one such communicator a process.
  static NcclComm bootstrap(const std::string& root, int rank, int size);
  ~NcclComm() { reset(); }
  NcclComm(NcclComm&& other) noexcept { swap(other); }
  NcclComm& operator=(NcclComm&& other) noexcept {
    swap(other);
    return *this;
  }

  ncclComm_t get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  explicit operator bool() const { return comm_ != nullptr; }
  /// Throws NcclError when an error came in the background (a peer that is gone, for one).
  void check_async() const;
  /// Ends what the GPU waits for. May block when the GPU is dead: call it from a thread that may be left behind.
  void abort() noexcept;
  /// The same from such a thread, which gets `limit`; returns whether it came to its end.
  bool abort_within(Ns limit);

 private:
  void reset();
  void swap(NcclComm& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
  }

  ncclComm_t comm_ = nullptr;
  int rank_ = 0, size_ = 1;
};

/// Processes that only share NCCL: texts travel as all-gathers of small device buffers. When a rank does not come the
/// communicator is aborted before the exception leaves, so that destructors do not wait for its kernels.
class NcclHostGroup final : public HostGroup {
 public:
  /// The communicator must outlive the group.
  NcclHostGroup(NcclComm& comm, Ns deadline = kHostDeadline);

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::vector<std::string> gather(const std::string& mine) override;
  void abort() noexcept override { aborted_ = true; }
  void limit(Ns deadline) override { deadline_ = deadline; }

 private:
  void exchange(const std::byte* mine, std::byte* all, std::size_t bytes);

  NcclComm& comm_;
  Ns deadline_;
  Stream stream_;
  DeviceBuffer send_, receive_;
  std::atomic<bool> aborted_{false};
};

/// The processes a launcher started, over MPI's plug-in where there is one (see mpi_group.h), else over NCCL.
struct ProcessGroup {
  std::shared_ptr<NcclComm> bootstrap;  ///< of a group over NCCL
  std::unique_ptr<HostGroup> group;
  std::string how;  ///< "NCCL bootstrap at 127.0.0.1:5000", "MPI", for people
};
/// Collective over the processes. Throws InputError when neither a root address nor MPI is there.
ProcessGroup join_processes(const LauncherRank& launcher);

/// Memory that all ranks of a node can address from their kernels: an NCCL window, or, where NCCL has no symmetric
/// memory, device memory mapped from peer to peer.
class SymmetricBuffer {
 public:
  SymmetricBuffer();
  /// Collective; the same `bytes` on every rank, in the same order of calls. `comm` may be null: then peers are mapped.
  SymmetricBuffer(HostGroup& group, NcclComm* comm, int gpu, std::size_t bytes);
  ~SymmetricBuffer();
  SymmetricBuffer(SymmetricBuffer&&) noexcept;
  SymmetricBuffer& operator=(SymmetricBuffer&&) noexcept;

  std::byte* base() const;
  const std::vector<std::byte*>& peers() const;  ///< by rank, as this GPU addresses them; own included
  std::byte* const* device_peers() const;        ///< the same array in device memory
  bool is_window() const;                        ///< false: peer-mapped
  const std::string& how() const;                ///< for people: what it is, and why no window

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dbo::runtime
