// The launches of a MoE model's plan with real kernels: op kind times transport.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/a2a/a2a.h"
#include "runtime/cuda/moe_memory.h"
#include "runtime/cuda/nccl_comm.h"
#include "runtime/cuda/op_source.h"
#include "runtime/cuda/rank_replay.h"

namespace dbo::runtime {

struct MoeOptions {
  MoeMemoryOptions memory;
  /// By plan_op: time an emulated wire takes, on receives (low latency) and comm kernels. Empty: none.
  std::vector<Ns> wires;
  /// SMs of sends and packs where the plan sets none aside for communication.
  int send_sms = 64;
  /// Fills what an op is about to write anew with 0xFF (NaN in every float) just before it: whoever reads what is not
  /// there any more, or not yet, spoils the result.
  bool poison = false;
};

/// What a step's head computed: a row for each token that needs logits.
struct MoeLogits {
  std::vector<std::int64_t> token;  ///< of the rank's batch, by row
  int width = 0;
  std::vector<std::uint16_t> bf16;  ///< [rows][width]
};

/// A rank with the kernels of kernels/compute and kernels/a2a. With fewer ranks here than the plan has, every rank here
/// plays the same rank of the plan, and the next one plays all of that rank's peers.
class MoeTable final : public OpSource {
 public:
  /// Collective. Throws InputError for plans the kernels cannot run: no dimensions, tensor parallelism, a
  /// simulated-only transport, `nccl` with fewer ranks here than the plan has.
  MoeTable(const RankSetup& setup, NcclComm* comm, MoeOptions options);

  const LaunchTable& table() const override { return table_; }
  std::vector<OpTime> times() const override { return {}; }
  std::int64_t step_begin_ns() const override;
  void set_clocks(const std::vector<ClockOffset>& clocks, cudaStream_t stream) override;
  void check_arrivals() const override {}  // the kernels trap instead
  void watch_entries(bool on) override { watch_entries_ = on; }
  /// Of dispatch kernels that are one comm op, and of packs.
  std::vector<std::int64_t> entries() const override;

  /// Hash of what the last step computed: logits, or, without a head, the residual stream and the last layer's outputs.
  std::uint64_t output_hash() const;
  /// Of the last step; no rows without a head.
  MoeLogits logits() const;
  const MoeMemory& memory() const { return *memory_; }
  /// For people: how peers' memory is reached, how many sets of weights and caches there are.
  const std::string& how() const { return how_; }

 private:
  void add_op(std::uint32_t plan_op);
  void poison(std::uint32_t plan_op);
  void make_entries();
  /// Makes the arguments of a launch: with a place for its times while entries are watched.
  std::function<kernels::DispatchArgs()> timed(std::uint32_t plan_op, const kernels::DispatchArgs& args) const;
  OpLaunch compute_op(const LinearOp& op, OpKind kind);
  OpLaunch mlp_op(const LinearOp& op);
  OpLaunch dispatch_op(std::uint32_t plan_op, OpKind kind);
  OpLaunch combine_op(std::uint32_t plan_op, OpKind kind);
  OpLaunch copy_op(std::uint32_t plan_op, OpKind kind);
  kernels::A2aCall call_of(std::uint32_t plan_op) const;
  kernels::TokenView tokens_of(int ubatch) const;
  int exact_sms(SmPool pool) const;
  int sm_target() const;
  bool adds_shared(int layer) const;
  std::vector<std::int32_t> expert_rows(int layer, std::size_t ubatch) const;
  std::int64_t count_rows();
  const kernels::MlpChoice& mlp_choice(int layer, int ubatch);
  void connect(const RankSetup& setup, NcclComm* comm);
  void warm_dense_products();

  const Plan& plan_;
  const Linear& linear_;
  int plan_rank_, ranks_here_, device_sms_ = 0;
  int comm_sms_, compute_sms_;
  Ns deadline_;
  MoeOptions options_;
  NcclComm* comm_;
  Router router_;
  kernels::MoeDims moe_;
  kernels::A2aLayout layout_;
  /// By the layer's routing class and the ubatch: rows of each expert here, and what serves them best.
  std::map<std::pair<int, int>, std::vector<std::int32_t>> expert_rows_;
  std::map<std::pair<int, int>, kernels::MlpChoice> mlp_choices_;
  std::unique_ptr<MoeMemory> memory_;
  SymmetricBuffer exchange_;
  DeviceBuffer peers_, clocks_, begin_;
  DeviceBuffer entries_;                  ///< [dispatch kernels][blocks][kernels::kScatterTimes]
  std::vector<std::uint32_t> entry_ops_;  ///< plan_op of each
  std::size_t entry_blocks_ = 0;
  bool watch_entries_ = false;
  std::vector<std::byte*> host_peers_;
  std::vector<int> players_;             ///< by rank of the plan: who plays it here
  kernels::StreamMemoryOps memory_ops_;  ///< copy-engine: empty where the driver has none
  Stream copies_;                        ///< copy-engine, low latency: the copies that are on the wire
  std::vector<Event> packed_, copied_;   ///< by plan_op of a send: its pack is done, its copies are
  bool embeds_ = false;
  std::string how_;
  LaunchTable table_;
};

/// `comm` may be null: then peers are mapped.
SourceMaker moe_source(NcclComm* comm, MoeOptions options);

}  // namespace dbo::runtime
