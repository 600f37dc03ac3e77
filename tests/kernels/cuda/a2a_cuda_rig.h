// Runs the cases of a2a_rig.h on real GPUs: several ranks on one (loopback), or one on each.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <vector>

#include "kernels/a2a/a2a.h"
#include "kernels/a2a/nccl_exchange.h"
#include "tests/kernels/a2a_rig.h"

namespace dbo::a2a_test {

/// Communicators over `devices`, one rank each, in this process. Empty `error` if all went well.
class NcclWorld {
 public:
  explicit NcclWorld(const std::vector<int>& devices);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  /// Whether NCCL can map the ranks' memory to each other (windows are only usable then).
  bool has_device_comms();
  ncclComm_t comm(int rank) const { return comms_[static_cast<std::size_t>(rank)]; }

  std::string error;

 private:
  std::vector<int> devices_;
  std::vector<ncclComm_t> comms_;
};

struct CudaOptions {
  std::vector<int> devices = {};  ///< of each player
  bool graph = false;             ///< capture each slot's calls once, then replay
  bool windows = false;           ///< buffers are NCCL windows, peers their LSA pointers
  bool epochs = false;            ///< copy-engine: arrival by epochs, not by stream memory operations
  NcclWorld* nccl = nullptr;      ///< needed for windows and the nccl transport
  std::uint64_t wire_ns = 0;
  std::uint64_t deadline_ns = 2'000'000'000;
  std::vector<int> silent = {};  ///< players that take no part in dispatches
};

class CudaRig final : public Rig {
 public:
  explicit CudaRig(CudaOptions options) : options_(std::move(options)) {}
  ~CudaRig() override;

  std::string prepare(const Case& c, const std::vector<kernels::A2aLayout>& layouts) override;
  std::string set_tokens(int player, const TokenData& data) override;
  std::string set_rows(const std::vector<std::vector<std::int32_t>>& send,
                       const std::vector<std::vector<std::int32_t>>& receive) override;
  std::string dispatch(int slot) override;
  std::string combine(int slot) override;
  std::vector<std::byte> read(int player) override;
  void write(int player, const std::vector<std::byte>& buffer) override;
  std::vector<std::uint16_t> result(int player) override;

  /// GPU time of the latest dispatch (combine) on a player, by events around it.
  double last_us(int player) const;
  /// What the player's progress word holds.
  std::uint64_t progress(int player) const;
  kernels::A2aCall call_of(int player, int slot) const;
  cudaStream_t stream(int player) const { return players_[static_cast<std::size_t>(player)].stream; }
  /// Waits for all players; text if one failed. A hang ends the process with exit code 3.
  std::string wait();

 private:
  struct Player {
    int device = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    kernels::A2aLayout layout;
    std::byte* base = nullptr;
    std::byte** peers = nullptr;  // device
    std::vector<std::byte*> host_peers;
    std::uint16_t *rows = nullptr, *out = nullptr;
    std::int32_t *expert = nullptr, *send_limit = nullptr;
    float* weight = nullptr;
    int tokens = 0;
    std::uint64_t* progress = nullptr;  // host-mapped
    ncclWindow_t window = nullptr;
    std::vector<cudaGraphExec_t> graphs;  // [2 * slot + combine]
  };

  std::string allocate(Player& player, const Case& c);
  std::string connect(const Case& c);
  std::string run(int slot, bool combine);
  std::string enqueue_all(int slot, bool combine);
  std::string before_exchange(int player, int slot, bool combine);
  std::string exchange(int player, int slot, bool combine);
  std::string after_exchange(int player, int slot, bool combine);
  std::string capture(int slot, bool combine);
  kernels::CopyArgs copies_of(int player, int slot) const;
  kernels::TokenView tokens_of(int player) const;
  bool is_silent(int player, bool combine) const;

  CudaOptions options_;
  Case case_;
  std::vector<Player> players_;
  std::vector<std::vector<std::int32_t>> send_, receive_;
  kernels::StreamMemoryOps memory_ops_;
};

}  // namespace dbo::a2a_test
