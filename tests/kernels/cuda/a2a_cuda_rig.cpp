#include "tests/kernels/cuda/a2a_cuda_rig.h"

#include <nccl_device.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

namespace dbo::a2a_test {

using kernels::A2aCall;
using kernels::A2aLayout;

namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

std::string text(cudaError_t status, const char* what) {
  return status == cudaSuccess
             ? ""
             : std::string(what) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status);
}
std::string text(ncclResult_t status, const char* what) {
  return status == ncclSuccess ? "" : std::string(what) + ": " + ncclGetErrorString(status);
}

#define RIG_CHECK(call)                                                      \
  do {                                                                       \
    if (std::string fault = text(call, #call); !fault.empty()) return fault; \
  } while (false)
#define RIG_DO(call)                                              \
  do {                                                            \
    if (std::string fault = (call); !fault.empty()) return fault; \
  } while (false)

constexpr double kHangSeconds = 15;

/// Lets `device`, which is current, address the other's memory. Asking twice is an error that a memory checker counts,
/// so what was asked for is kept, for the life of the process as the access itself.
cudaError_t enable_peer(int device, int other) {
  static std::set<std::pair<int, int>> enabled;
  if (!enabled.emplace(device, other).second) return cudaSuccess;
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled) return status;
  (void)cudaGetLastError();  // NCCL had enabled it; clears the error
  return cudaSuccess;
}

}  // namespace

NcclWorld::NcclWorld(const std::vector<int>& devices) : devices_(devices), comms_(devices.size(), nullptr) {
  error = text(ncclCommInitAll(comms_.data(), static_cast<int>(devices.size()), devices.data()), "ncclCommInitAll");
}

NcclWorld::~NcclWorld() {
  for (ncclComm_t comm : comms_) {
    if (comm != nullptr) (void)ncclCommAbort(comm);  // nothing useful to do about a failure here
  }
}

bool NcclWorld::has_device_comms() {
  std::vector<ncclDevComm> made(comms_.size());
  ncclDevCommRequirements requirements;
  std::memset(&requirements, 0, sizeof requirements);
  requirements.lsaBarrierCount = 1;
  bool good = ncclGroupStart() == ncclSuccess;
  for (std::size_t i = 0; i < comms_.size(); ++i) {
    good = cudaSetDevice(devices_[i]) == cudaSuccess && good;
    good = ncclDevCommCreate(comms_[i], &requirements, &made[i]) == ncclSuccess && good;
  }
  good = ncclGroupEnd() == ncclSuccess && good;
  if (!good) return false;
  for (std::size_t i = 0; i < comms_.size(); ++i) {
    good = made[i].lsaSize == static_cast<int>(comms_.size()) && good;
    (void)cudaSetDevice(devices_[i]);
    (void)ncclDevCommDestroy(comms_[i], &made[i]);
  }
  return good;
}

CudaRig::~CudaRig() {
  // Failures are ignored: the case has been judged, and after a trap every call fails.
  if (options_.windows) (void)ncclGroupStart();
  for (std::size_t i = 0; i < players_.size() && options_.windows; ++i) {
    (void)cudaSetDevice(players_[i].device);
    if (players_[i].window != nullptr) {
      (void)ncclCommWindowDeregister(options_.nccl->comm(static_cast<int>(i)), players_[i].window);
    }
  }
  if (options_.windows) (void)ncclGroupEnd();
  for (std::size_t i = 0; i < players_.size(); ++i) {
    Player& p = players_[i];
    (void)cudaSetDevice(p.device);
    (void)cudaDeviceSynchronize();
    for (cudaGraphExec_t graph : p.graphs) {
      if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
    }
    if (options_.windows) {
      (void)ncclMemFree(p.base);
    } else {
      (void)cudaFree(p.base);
    }
    for (void* memory :
         {static_cast<void*>(p.peers), static_cast<void*>(p.rows), static_cast<void*>(p.out),
          static_cast<void*>(p.expert), static_cast<void*>(p.weight), static_cast<void*>(p.send_limit)}) {
      (void)cudaFree(memory);
    }
    (void)cudaFreeHost(p.progress);
    if (p.begin != nullptr) (void)cudaEventDestroy(p.begin);
    if (p.end != nullptr) (void)cudaEventDestroy(p.end);
    if (p.stream != nullptr) (void)cudaStreamDestroy(p.stream);
  }
}

std::string CudaRig::allocate(Player& p, const Case& c) {
  const auto& dims = c.shape.dims;
  RIG_CHECK(cudaSetDevice(p.device));
  RIG_CHECK(kernels::preload_a2a());
  RIG_CHECK(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
  RIG_CHECK(cudaEventCreate(&p.begin));
  RIG_CHECK(cudaEventCreate(&p.end));
  if (options_.windows) {
    RIG_CHECK(ncclMemAlloc(reinterpret_cast<void**>(&p.base), p.layout.total_bytes));
  } else {
    RIG_CHECK(cudaMalloc(&p.base, p.layout.total_bytes));
  }
  RIG_CHECK(cudaMemsetAsync(p.base, 0, p.layout.control_bytes, p.stream));
  RIG_CHECK(cudaMemsetAsync(p.base + p.layout.control_bytes, std::to_integer<int>(kPoison),
                            p.layout.total_bytes - p.layout.control_bytes, p.stream));
  RIG_CHECK(cudaMalloc(&p.peers, at(dims.ranks) * sizeof(std::byte*)));
  RIG_CHECK(cudaMalloc(&p.rows, at(dims.max_tokens) * at(dims.hidden) * 2));
  RIG_CHECK(cudaMalloc(&p.out, at(dims.max_tokens) * at(dims.hidden) * 2));
  RIG_CHECK(cudaMalloc(&p.expert, at(dims.max_tokens) * at(dims.top_k) * 4));
  RIG_CHECK(cudaMalloc(&p.weight, at(dims.max_tokens) * at(dims.top_k) * 4));
  RIG_CHECK(cudaMalloc(&p.send_limit, at(dims.ranks) * 4));
  RIG_CHECK(cudaHostAlloc(&p.progress, sizeof(std::uint64_t), cudaHostAllocMapped | cudaHostAllocPortable));
  *p.progress = 0;
  p.graphs.resize(at(2 * c.shape.slots), nullptr);
  return {};
}

std::string CudaRig::connect(const Case& c) {
  for (std::size_t i = 0; i < players_.size(); ++i) {
    for (const Player& other : players_) {
      if (players_[i].device == other.device || options_.windows) continue;
      RIG_CHECK(cudaSetDevice(players_[i].device));
      RIG_CHECK(enable_peer(players_[i].device, other.device));
    }
  }
  if (options_.windows) {
    RIG_CHECK(ncclGroupStart());
    for (std::size_t i = 0; i < players_.size(); ++i) {
      Player& p = players_[i];
      RIG_CHECK(cudaSetDevice(p.device));
      RIG_CHECK(ncclCommWindowRegister(options_.nccl->comm(static_cast<int>(i)), p.base, p.layout.total_bytes,
                                       &p.window, NCCL_WIN_DEFAULT));
    }
    RIG_CHECK(ncclGroupEnd());
  }
  for (std::size_t i = 0; i < players_.size(); ++i) {
    Player& p = players_[i];
    RIG_CHECK(cudaSetDevice(p.device));
    for (int rank = 0; rank < c.shape.dims.ranks; ++rank) {
      const bool own = rank == p.layout.dims.rank;
      p.host_peers.push_back(players_[!c.mirrored ? at(rank) : own ? i : (i + 1) % players_.size()].base);
    }
    if (options_.windows) {
      RIG_CHECK(kernels::launch_window_peers(p.window, c.shape.dims.ranks, p.peers, p.stream));
      RIG_CHECK(cudaMemcpyAsync(p.host_peers.data(), p.peers, p.host_peers.size() * sizeof(std::byte*),
                                cudaMemcpyDefault, p.stream));
    } else {
      RIG_CHECK(cudaMemcpyAsync(p.peers, p.host_peers.data(), p.host_peers.size() * sizeof(std::byte*),
                                cudaMemcpyDefault, p.stream));
    }
  }
  return wait();
}

std::string CudaRig::prepare(const Case& c, const std::vector<A2aLayout>& layouts) {
  case_ = c;
  players_ = std::vector<Player>(layouts.size());
  if (!options_.epochs) {
    RIG_CHECK(cudaSetDevice(options_.devices.at(0)));
    RIG_CHECK(kernels::find_stream_memory_ops(&memory_ops_));
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    players_[i].device = options_.devices.at(i);
    players_[i].layout = layouts[i];
    RIG_DO(allocate(players_[i], c));
  }
  return connect(c);
}

std::string CudaRig::wait() {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < players_.size();) {
    const cudaError_t status = cudaStreamQuery(players_[i].stream);
    if (status == cudaSuccess) {
      ++i;
      continue;
    }
    if (status != cudaErrorNotReady) return "player " + std::to_string(i) + ": " + text(status, "kernels");
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > kHangSeconds) {
      std::printf("HANG: case \"%s\": player %zu's stream did not finish in %g s (progress word %llx)\n",
                  case_.name.c_str(), i, kHangSeconds, static_cast<unsigned long long>(*players_[i].progress));
      std::fflush(stdout);
      _exit(3);
    }
  }
  return {};
}

std::string CudaRig::set_tokens(int player, const TokenData& data) {
  Player& p = players_[at(player)];
  RIG_CHECK(cudaSetDevice(p.device));
  p.tokens = data.tokens;
  RIG_CHECK(cudaMemcpyAsync(p.rows, data.rows.data(), data.rows.size() * 2, cudaMemcpyDefault, p.stream));
  RIG_CHECK(cudaMemcpyAsync(p.expert, data.expert.data(), data.expert.size() * 4, cudaMemcpyDefault, p.stream));
  RIG_CHECK(cudaMemcpyAsync(p.weight, data.weight.data(), data.weight.size() * 4, cudaMemcpyDefault, p.stream));
  RIG_CHECK(cudaMemsetAsync(p.out, 0xa5, at(case_.shape.dims.max_tokens) * at(case_.shape.dims.hidden) * 2, p.stream));
  if (!send_.empty()) {
    RIG_CHECK(cudaMemcpyAsync(p.send_limit, send_[at(player)].data(), send_[at(player)].size() * 4, cudaMemcpyDefault,
                              p.stream));
  }
  return text(cudaStreamSynchronize(p.stream), "upload");
}

std::string CudaRig::set_rows(const std::vector<std::vector<std::int32_t>>& send,
                              const std::vector<std::vector<std::int32_t>>& receive) {
  send_ = send;
  receive_ = receive;
  return {};
}

std::vector<std::byte> CudaRig::read(int player) {
  const Player& p = players_[at(player)];
  std::vector<std::byte> buffer(p.layout.total_bytes);
  (void)cudaSetDevice(p.device);
  if (cudaMemcpyAsync(buffer.data(), p.base, buffer.size(), cudaMemcpyDefault, p.stream) != cudaSuccess ||
      cudaStreamSynchronize(p.stream) != cudaSuccess) {
    std::fill(buffer.begin(), buffer.end(), std::byte{0});  // fails the comparison that follows
  }
  return buffer;
}

void CudaRig::write(int player, const std::vector<std::byte>& buffer) {
  const Player& p = players_[at(player)];
  (void)cudaSetDevice(p.device);
  // The control part is the kernels' own. A failure shows in what is read back.
  (void)cudaMemcpyAsync(p.base + p.layout.control_bytes, buffer.data() + p.layout.control_bytes,
                        buffer.size() - p.layout.control_bytes, cudaMemcpyDefault, p.stream);
  (void)cudaStreamSynchronize(p.stream);
}

std::vector<std::uint16_t> CudaRig::result(int player) {
  const Player& p = players_[at(player)];
  std::vector<std::uint16_t> out(at(case_.shape.dims.max_tokens) * at(case_.shape.dims.hidden));
  (void)cudaSetDevice(p.device);
  if (cudaMemcpy(out.data(), p.out, out.size() * 2, cudaMemcpyDefault) != cudaSuccess) out.clear();
  return out;
}

double CudaRig::last_us(int player) const {
  float ms = -1;
  const Player& p = players_[at(player)];
  return cudaEventElapsedTime(&ms, p.begin, p.end) == cudaSuccess ? double{ms} * 1000 : -1;
}

std::uint64_t CudaRig::progress(int player) const {
  return *players_[at(player)].progress;
}

A2aCall CudaRig::call_of(int player, int slot) const {
  const Player& p = players_[at(player)];
  A2aCall call;
  call.layout = p.layout;
  call.base = p.base;
  call.peers = case_.shape.transport == Transport::Nccl ? nullptr : p.peers;
  call.mirrored = case_.mirrored;
  call.slot = slot;
  call.blocks = case_.blocks;
  call.deadline_ns = options_.deadline_ns;
  call.wire_ns = options_.wire_ns;
  call.progress = p.progress;
  return call;
}

kernels::TokenView CudaRig::tokens_of(int player) const {
  const Player& p = players_[at(player)];
  return {p.rows, p.expert, p.weight, p.tokens};
}

kernels::CopyArgs CudaRig::copies_of(int player, int slot) const {
  kernels::CopyArgs args;
  args.call = call_of(player, slot);
  args.peers = players_[at(player)].host_peers.data();
  args.send_rows = send_.empty() ? nullptr : send_[at(player)].data();
  args.receive_rows = receive_.empty() ? nullptr : receive_[at(player)].data();
  args.memory_ops = memory_ops_;
  return args;
}

bool CudaRig::is_silent(int player, bool combine) const {
  return !combine && std::find(options_.silent.begin(), options_.silent.end(), player) != options_.silent.end();
}

/// What a rank launches before messages are exchanged between ranks (all of it, for most transports).
std::string CudaRig::before_exchange(int player, int slot, bool combine) {
  if (is_silent(player, combine)) return {};
  const Player& p = players_[at(player)];
  RIG_CHECK(cudaSetDevice(p.device));
  kernels::DispatchArgs dispatch{call_of(player, slot), tokens_of(player), nullptr};
  dispatch.tuning = case_.tuning;
  const kernels::CombineArgs gather{call_of(player, slot), tokens_of(player), p.out};
  kernels::DispatchArgs pack = dispatch;
  pack.row_limit = send_.empty() ? nullptr : p.send_limit;
  const kernels::CopyArgs copies = copies_of(player, slot);
  switch (case_.shape.transport) {
    case Transport::LsaHt:
      if (combine) {
        RIG_CHECK(kernels::launch_ht_combine(gather, p.stream));
      } else {
        RIG_CHECK(kernels::launch_ht_dispatch(dispatch, p.stream));
      }
      return {};
    case Transport::LsaLl:
      if (combine) {
        RIG_CHECK(kernels::launch_ll_combine_send(gather.call, p.stream));
        RIG_CHECK(kernels::launch_ll_combine_receive(gather, p.stream));
      } else {
        RIG_CHECK(kernels::launch_ll_dispatch_send(dispatch, p.stream));
        RIG_CHECK(kernels::launch_ll_dispatch_receive(dispatch.call, p.stream));
      }
      return {};
    case Transport::CopyEngine:
      if (combine) {
        RIG_CHECK(kernels::launch_copy_combine_stamp(gather.call, p.stream));
        RIG_CHECK(kernels::launch_copy_combine(copies, p.stream));
        RIG_CHECK(kernels::launch_copy_combine_receive(gather, copies, p.stream));
      } else {
        RIG_CHECK(kernels::launch_copy_pack(pack, p.stream));
        RIG_CHECK(kernels::launch_copy_dispatch(copies, p.stream));
        RIG_CHECK(kernels::launch_copy_dispatch_receive(copies, p.stream));
      }
      return {};
    case Transport::Nccl:
      if (!combine) RIG_CHECK(kernels::launch_nccl_pack(pack, p.stream));
      return {};
    default:
      return "simulated-only transport";
  }
}

std::string CudaRig::exchange(int player, int slot, bool combine) {
  if (case_.shape.transport != Transport::Nccl) return {};
  const Player& p = players_[at(player)];
  RIG_CHECK(cudaSetDevice(p.device));
  const kernels::CopyArgs copies = copies_of(player, slot);
  const kernels::NcclArgs args{copies.call, copies.send_rows, copies.receive_rows, options_.nccl->comm(player)};
  RIG_CHECK(combine ? kernels::nccl_combine(args, p.stream) : kernels::nccl_dispatch(args, p.stream));
  return {};
}

std::string CudaRig::after_exchange(int player, int slot, bool combine) {
  if (case_.shape.transport != Transport::Nccl) return {};
  const Player& p = players_[at(player)];
  RIG_CHECK(cudaSetDevice(p.device));
  if (combine) {
    RIG_CHECK(kernels::launch_nccl_reduce({call_of(player, slot), tokens_of(player), p.out}, p.stream));
  } else {
    RIG_CHECK(kernels::launch_nccl_unpack(call_of(player, slot), p.stream));
  }
  return {};
}

std::string CudaRig::enqueue_all(int slot, bool combine) {
  const int number = static_cast<int>(players_.size());
  for (int i = 0; i < number; ++i) RIG_DO(before_exchange(i, slot, combine));
  if (case_.shape.transport == Transport::Nccl) {
    RIG_CHECK(ncclGroupStart());
    for (int i = 0; i < number; ++i) RIG_DO(exchange(i, slot, combine));
    RIG_CHECK(ncclGroupEnd());
    for (int i = 0; i < number; ++i) RIG_DO(after_exchange(i, slot, combine));
  }
  return {};
}

std::string CudaRig::capture(int slot, bool combine) {
  for (const Player& p : players_) {
    RIG_CHECK(cudaSetDevice(p.device));
    RIG_CHECK(cudaStreamBeginCapture(p.stream, cudaStreamCaptureModeRelaxed));
  }
  RIG_DO(enqueue_all(slot, combine));
  for (Player& p : players_) {
    RIG_CHECK(cudaSetDevice(p.device));
    cudaGraph_t graph = nullptr;
    RIG_CHECK(cudaStreamEndCapture(p.stream, &graph));
    RIG_CHECK(cudaGraphInstantiate(&p.graphs[at(2 * slot + (combine ? 1 : 0))], graph, 0));
    RIG_CHECK(cudaGraphDestroy(graph));
  }
  return {};
}

std::string CudaRig::run(int slot, bool combine) {
  const std::size_t index = at(2 * slot + (combine ? 1 : 0));
  if (options_.graph && players_[0].graphs[index] == nullptr) RIG_DO(capture(slot, combine));
  for (const Player& p : players_) {
    RIG_CHECK(cudaSetDevice(p.device));
    RIG_CHECK(cudaEventRecord(p.begin, p.stream));
  }
  if (options_.graph) {
    for (const Player& p : players_) {
      RIG_CHECK(cudaSetDevice(p.device));
      RIG_CHECK(cudaGraphLaunch(p.graphs[index], p.stream));
    }
  } else {
    RIG_DO(enqueue_all(slot, combine));
  }
  for (const Player& p : players_) {
    RIG_CHECK(cudaSetDevice(p.device));
    RIG_CHECK(cudaEventRecord(p.end, p.stream));
  }
  return wait();
}

std::string CudaRig::dispatch(int slot) {
  return run(slot, false);
}
std::string CudaRig::combine(int slot) {
  return run(slot, true);
}

}  // namespace dbo::a2a_test
