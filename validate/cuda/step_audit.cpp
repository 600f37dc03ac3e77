#include "validate/cuda/step_audit.h"

#include <algorithm>

#include "kernels/audit/checksum.h"
#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::validate {

using runtime::ArenaSlot;

StepAudit::StepAudit(const Plan& plan, const Linear& linear, const runtime::MoeTable& table)
    : plan_(plan),
      linear_(linear),
      memory_(table.memory()),
      audit_(plan, linear, memory_.arena().slots()),
      stream_(runtime::Stream::create(false)) {
  std::vector<kernels::ChecksumArea> areas;
  for (const ArenaSlot& slot : memory_.arena().slots())
    areas.push_back({start(slot), used(slot), slot.bytes - used(slot)});
  areas_ = runtime::DeviceBuffer(areas.size() * sizeof(kernels::ChecksumArea));
  results_ = runtime::DeviceBuffer(areas.size() * sizeof(kernels::ChecksumResult));
  DBO_CUDA_CHECK(cudaMemcpy(areas_.get(), areas.data(), areas_.bytes(), cudaMemcpyHostToDevice));
  look();
}

/// Whole words of 16 bytes: what kernels carve is a multiple of 256.
std::size_t StepAudit::used(const ArenaSlot& slot) const {
  return std::min(slot.bytes, (memory_.slot_used(slot.use) + 15) / 16 * 16);
}

std::vector<SlotSight> StepAudit::look() {
  DBO_CUDA_CHECK(cudaDeviceSynchronize());
  const auto count = static_cast<int>(memory_.arena().slots().size());
  if (count == 0) return {};
  const kernels::ChecksumArgs args{areas_.as<kernels::ChecksumArea>(), results_.as<kernels::ChecksumResult>(), count};
  DBO_CUDA_CHECK(kernels::launch_checksums(args, stream_.get()));
  std::vector<kernels::ChecksumResult> results(static_cast<std::size_t>(count));
  DBO_CUDA_CHECK(
      cudaMemcpyAsync(results.data(), results_.get(), results_.bytes(), cudaMemcpyDeviceToHost, stream_.get()));
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  std::vector<SlotSight> seen;
  for (const kernels::ChecksumResult& result : results) seen.push_back({result.sum, result.guard_wrong == 0});
  return seen;
}

void StepAudit::begin_step(cudaStream_t, bool capturing) {
  DBO_CHECK(!capturing, "an audited step runs op by op, which cannot be captured");
  ops_ = 0;
  routing_.clear();
}

void StepAudit::before_op(std::uint32_t plan_op, cudaStream_t stream, bool) {
  if (plan_op >= linear_.ops.size()) return;  // the step's own first launches
  const auto& slots = memory_.arena().slots();
  for (const std::size_t slot : audit_.before(plan_op, look()))
    DBO_CUDA_CHECK(cudaMemsetAsync(start(slots[slot]), kernels::kGuardByte, slots[slot].bytes, stream));
}

void StepAudit::after_op(std::uint32_t plan_op, cudaStream_t stream, bool) {
  if (plan_op >= linear_.ops.size()) {
    // What the step begins with is there now; its guards nobody fills later.
    for (const ArenaSlot& slot : memory_.arena().slots()) {
      const bool live_in = std::any_of(slot.values.begin(), slot.values.end(),
                                       [](const runtime::SlotValue& value) { return value.live_in; });
      if (!live_in) continue;
      DBO_CUDA_CHECK(cudaMemsetAsync(start(slot) + used(slot), kernels::kGuardByte, slot.bytes - used(slot), stream));
    }
    audit_.begin(look());
    return;
  }
  audit_.after(plan_op, look());
  ++ops_;
  const LinearOp& op = linear_.ops[plan_op];
  if (plan_.op(op.op).kind == OpKind::A1 && plan_.shape.is_moe_layer(op.layer)) check_routing(op);
}

void StepAudit::check_routing(const LinearOp& op) {
  const runtime::MoeUbatch& ubatch = memory_.ubatch(op.ubatch);
  const int top_k = plan_.shape.moe.top_k;
  std::vector<std::int32_t> experts(static_cast<std::size_t>(ubatch.rows.tokens) * static_cast<std::size_t>(top_k));
  DBO_CUDA_CHECK(cudaMemcpyAsync(experts.data(), ubatch.buffers.expert, experts.size() * sizeof(std::int32_t),
                                 cudaMemcpyDeviceToHost, stream_.get()));
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  const int slots = memory_.dims().experts_per_rank * plan_.world.ranks;  // replicas count
  const std::string problem = check_choices(experts, ubatch.rows.token_of_row, top_k, slots);
  if (!problem.empty() && routing_.empty()) routing_.push_back(problem + " (" + describe(plan_, op) + ")");
}

std::vector<std::string> StepAudit::problems() const {
  std::vector<std::string> all = audit_.problems();
  all.insert(all.end(), routing_.begin(), routing_.end());
  return all;
}

}  // namespace dbo::validate
