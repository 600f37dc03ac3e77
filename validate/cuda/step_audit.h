// Runs a step op by op on the GPU and looks at memory between the ops.
#pragma once

#include <string>
#include <vector>

#include "runtime/cuda/moe_table.h"
#include "runtime/cuda/op_observer.h"
#include "validate/memory_audit.h"

namespace dbo::validate {

/// Observes one eager step of one rank. Around each op it waits until the GPU has ended all work, so ops run one by one
/// in the plan's host order (on all ranks alike, so no exchange is kept waiting for ever). What an op is about to write
/// anew is filled with 0xFF, NaN in every float, with the guard behind it: who reads what is not there spoils the
/// result.
class StepAudit final : public runtime::OpObserver {
 public:
  /// References must outlive the audit. Looks once, so that no kernel is loaded while a peer's spins: a host barrier
  /// must lie between this and the step.
  StepAudit(const Plan& plan, const Linear& linear, const runtime::MoeTable& table);

  void before_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override;
  void after_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override;
  void begin_step(cudaStream_t compute, bool capturing) override;

  /// Of memory, guards and routing.
  std::vector<std::string> problems() const;
  int ops() const { return ops_; }

 private:
  std::vector<SlotSight> look();
  std::byte* start(const runtime::ArenaSlot& slot) const { return memory_.activations() + slot.offset; }
  std::size_t used(const runtime::ArenaSlot& slot) const;
  void check_routing(const LinearOp& op);

  const Plan& plan_;
  const Linear& linear_;
  const runtime::MoeMemory& memory_;
  MemoryAudit audit_;
  runtime::Stream stream_;
  runtime::DeviceBuffer areas_, results_;
  std::vector<std::string> routing_;
  int ops_ = 0;
};

}  // namespace dbo::validate
