#include "runtime/cuda/nccl_comm.h"

#include <nccl_device/impl/comm__types.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/a2a/nccl_exchange.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/peer_memory.h"
#include "runtime/cuda/process.h"
#include "runtime/mpi_group.h"
#include "runtime/ring.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// What aborting a communicator gets on a GPU that may never answer.
constexpr Ns kAbortTime{5'000'000'000};

}  // namespace

NcclComm NcclComm::create(HostGroup& group) {
  check_nccl_version();
  ncclUniqueId id{};
  std::string mine;
  if (group.rank() == 0) {
    DBO_NCCL_CHECK(ncclGetUniqueId(&id));
    mine.assign(id.internal, sizeof id.internal);
  }
  const std::string root = group.gather(mine)[0];
  DBO_CHECK(root.size() == sizeof id.internal, "rank 0 sent an id of another length");
  std::memcpy(id.internal, root.data(), sizeof id.internal);
  NcclComm comm;
  comm.rank_ = group.rank();
  comm.size_ = group.size();
  DBO_NCCL_CHECK(ncclCommInitRank(&comm.comm_, comm.size_, id, comm.rank_));
  return comm;
}

NcclComm NcclComm::bootstrap(const std::string& root, int rank, int size) {
  check_nccl_version();
  // With NCCL_COMM_ID set, ncclGetUniqueId gives every process the same id, and rank 0 listens there.
  setenv("NCCL_COMM_ID", root.c_str(), 1);
  ncclUniqueId id{};
  DBO_NCCL_CHECK(ncclGetUniqueId(&id));
  NcclComm comm;
  comm.rank_ = rank;
  comm.size_ = size;
  DBO_NCCL_CHECK(ncclCommInitRank(&comm.comm_, size, id, rank));
  // A later communicator gets an id of its own.
  unsetenv("NCCL_COMM_ID");
  return comm;
}

void NcclComm::check_async() const {
  ncclResult_t state = ncclSuccess;
  DBO_NCCL_CHECK(ncclCommGetAsyncError(comm_, &state));
  if (state != ncclInProgress) DBO_NCCL_CHECK(state);
}

void NcclComm::abort() noexcept {
  if (comm_ != nullptr) (void)ncclCommAbort(comm_);
  comm_ = nullptr;
}

bool NcclComm::abort_within(Ns limit) {
  const ncclComm_t comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return true;
  const auto done = std::make_shared<std::atomic<bool>>(false);
  int gpu = 0;
  (void)cudaGetDevice(&gpu);
  std::thread([comm, done, gpu] {
    (void)cudaSetDevice(gpu);
    (void)ncclCommAbort(comm);
    *done = true;
  }).detach();
  const auto give_up = std::chrono::steady_clock::now() + limit;
  while (!*done && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return *done;
}

void NcclComm::reset() {
  if (comm_ != nullptr) (void)ncclCommDestroy(comm_);
  comm_ = nullptr;
}

NcclHostGroup::NcclHostGroup(NcclComm& comm, Ns deadline)
    : comm_(comm), deadline_(deadline), stream_(Stream::create(true)) {}

void NcclHostGroup::exchange(const std::byte* mine, std::byte* all, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(size());
  if (send_.bytes() < bytes) {
    send_ = DeviceBuffer(bytes);
    receive_ = DeviceBuffer(bytes * ranks);
  }
  const cudaStream_t stream = stream_.get();
  DBO_CUDA_CHECK(cudaMemcpyAsync(send_.get(), mine, bytes, cudaMemcpyHostToDevice, stream));
  DBO_NCCL_CHECK(ncclAllGather(send_.get(), receive_.get(), bytes, ncclInt8, comm_.get(), stream));
  const auto give_up = std::chrono::steady_clock::now() + deadline_;
  for (;;) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaSuccess) break;
    if (code != cudaErrorNotReady) DBO_CUDA_CHECK(code);
    try {
      comm_.check_async();
      if (aborted_) throw Stopped{};
      if (std::chrono::steady_clock::now() > give_up) {
        throw NcclError("rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                        " waits at a host barrier over NCCL; a rank has not come for " +
                        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(deadline_).count()) +
                        " ms");
      }
    } catch (...) {
      (void)comm_.abort_within(kAbortTime);
      throw;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  DBO_CUDA_CHECK(cudaMemcpy(all, receive_.get(), bytes * ranks, cudaMemcpyDeviceToHost));
}

std::vector<std::string> NcclHostGroup::gather(const std::string& mine) {
  if (aborted_) throw Stopped{};
  // First the lengths, then texts padded to the longest.
  const auto ranks = static_cast<std::size_t>(size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(ranks);
  exchange(reinterpret_cast<const std::byte*>(&length), reinterpret_cast<std::byte*>(lengths.data()), sizeof length);
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::vector<std::byte> padded(longest), all(longest * ranks);
  std::memcpy(padded.data(), mine.data(), mine.size());
  exchange(padded.data(), all.data(), longest);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(all.data() + rank * longest), lengths[rank]);
  }
  return texts;
}

ProcessGroup join_processes(const LauncherRank& launcher) {
  ProcessGroup joined;
  if (launcher.mpi) {
    joined.group = open_mpi_group();
    if (joined.group != nullptr) {
      joined.how = "MPI";
      return joined;
    }
  }
  if (launcher.root.empty()) {
    throw InputError("started by " + launcher.launcher + " as rank " + std::to_string(launcher.rank) + " of " +
                     std::to_string(launcher.size) +
                     ", but nothing says where rank 0 is: set NCCL_COMM_ID=HOST:PORT for all ranks" +
                     (launcher.mpi ? " (the MPI plug-in could not be loaded)" : ""));
  }
  joined.bootstrap = std::make_shared<NcclComm>(NcclComm::bootstrap(launcher.root, launcher.rank, launcher.size));
  joined.group = std::make_unique<NcclHostGroup>(*joined.bootstrap);
  joined.how = "NCCL bootstrap at " + launcher.root;
  return joined;
}

struct SymmetricBuffer::Parts {
  ~Parts() {
    if (window != nullptr) (void)ncclCommWindowDeregister(comm, window);
    if (memory != nullptr) (void)ncclMemFree(memory);
  }

  // A window.
  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  std::vector<std::byte*> window_peers;
  // Or plain memory.
  DeviceBuffer plain;
  PeerMemory mapped;

  DeviceBuffer table;
  std::string how;
};

namespace {

/// Why this communicator has no symmetric memory, or empty. Registering a window succeeds without it too, with a handle
/// that must not reach the device, so the device communicator is asked first.
std::string symmetric_problem(HostGroup& group, NcclComm& comm) {
  ncclDevCommRequirements needs;
  std::memset(&needs, 0, sizeof needs);
  ncclDevComm device{};
  const ncclResult_t made = ncclDevCommCreate(comm.get(), &needs, &device);
  std::string problem;
  if (made != ncclSuccess) {
    problem = std::string("no device communicator (") + ncclGetErrorString(made) + ")";
  } else {
    if (device.lsaSize != comm.size()) {
      problem = "only " + std::to_string(device.lsaSize) + " of " + std::to_string(comm.size()) +
                " ranks can address each other's memory";
    }
    DBO_NCCL_CHECK(ncclDevCommDestroy(comm.get(), &device));
  }
  // One rank without it means none may use it.
  for (const std::string& theirs : group.gather(problem)) {
    if (!theirs.empty()) return theirs;
  }
  return {};
}

}  // namespace

SymmetricBuffer::SymmetricBuffer(HostGroup& group, NcclComm* comm, int gpu, std::size_t bytes)
    : parts_(std::make_unique<Parts>()) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::string problem = comm == nullptr ? "no communicator" : symmetric_problem(group, *comm);
  parts_->table = DeviceBuffer(ranks * sizeof(std::byte*));
  if (problem.empty()) {
    parts_->comm = comm->get();
    DBO_NCCL_CHECK(ncclMemAlloc(&parts_->memory, bytes));
    DBO_CUDA_CHECK(cudaMemset(parts_->memory, 0, bytes));
    DBO_CUDA_CHECK(cudaDeviceSynchronize());
    // Plain windows: the symmetric flag would make NCCL set up collectives of its own, multicast included.
    DBO_NCCL_CHECK(ncclCommWindowRegister(comm->get(), parts_->memory, bytes, &parts_->window, NCCL_WIN_DEFAULT));
    DBO_CHECK(parts_->window != nullptr, "NCCL registered no window");
    const Stream stream = Stream::create(false);
    DBO_CUDA_CHECK(
        kernels::launch_window_peers(parts_->window, group.size(), parts_->table.as<std::byte*>(), stream.get()));
    DBO_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
    parts_->window_peers.resize(ranks);
    DBO_CUDA_CHECK(cudaMemcpy(parts_->window_peers.data(), parts_->table.get(), ranks * sizeof(std::byte*),
                              cudaMemcpyDeviceToHost));
    parts_->how = "NCCL window";
  } else {
    parts_->plain = DeviceBuffer(bytes);
    parts_->mapped = PeerMemory(group, exchange_placement(group, gpu), parts_->plain.get());
    DBO_CUDA_CHECK(cudaMemcpy(parts_->table.get(), parts_->mapped.pointers().data(), ranks * sizeof(std::byte*),
                              cudaMemcpyHostToDevice));
    parts_->how = "peer-mapped memory: " + problem;
  }
  group.barrier();
}

SymmetricBuffer::SymmetricBuffer() = default;
SymmetricBuffer::~SymmetricBuffer() = default;
SymmetricBuffer::SymmetricBuffer(SymmetricBuffer&&) noexcept = default;
SymmetricBuffer& SymmetricBuffer::operator=(SymmetricBuffer&&) noexcept = default;

std::byte* SymmetricBuffer::base() const {
  return is_window() ? static_cast<std::byte*>(parts_->memory) : parts_->plain.get();
}

const std::vector<std::byte*>& SymmetricBuffer::peers() const {
  return is_window() ? parts_->window_peers : parts_->mapped.pointers();
}

std::byte* const* SymmetricBuffer::device_peers() const {
  return parts_->table.as<std::byte*>();
}

bool SymmetricBuffer::is_window() const {
  return parts_->window != nullptr;
}

const std::string& SymmetricBuffer::how() const {
  return parts_->how;
}

}  // namespace dbo::runtime
