#include "sim/plan/steady.h"

#include <algorithm>

namespace dbo {
namespace {

bool has_experts(const Plan& plan, BlockId block) {
  const Program& body = plan.blocks[block].body;
  return std::any_of(body.begin(), body.end(), [&](const Instruction& i) {
    return i.verb == Verb::Launch && plan.ops[i.op.op].kind == OpKind::MLP;
  });
}

bool is_moe_repeat(const Plan& plan, const Instruction& i) {
  return i.verb == Verb::Repeat && has_experts(plan, i.block);
}

const Instruction* moe_repeat(const Plan& plan, int class_index) {
  for (const int t : plan.classes[static_cast<std::size_t>(class_index)].threads)
    for (const Instruction& i : plan.threads[static_cast<std::size_t>(t)].body)
      if (is_moe_repeat(plan, i)) return &i;
  return nullptr;
}

}  // namespace

std::optional<BlockId> moe_block(const Plan& plan, int class_index) {
  const Instruction* repeat = moe_repeat(plan, class_index);
  if (repeat == nullptr) return std::nullopt;
  return repeat->block;
}

int moe_iterations(const Plan& plan, int class_index) {
  const Instruction* repeat = moe_repeat(plan, class_index);
  return repeat == nullptr ? 0 : repeat->count;
}

int moe_stride(const Plan& plan, int class_index) {
  const Instruction* repeat = moe_repeat(plan, class_index);
  return repeat == nullptr ? 0 : repeat->stride;
}

Plan with_moe_iterations(const Plan& plan, int count) {
  Plan longer = plan;
  for (Thread& thread : longer.threads)
    for (Instruction& i : thread.body)
      if (is_moe_repeat(plan, i)) i.count = count;
  return longer;
}

}  // namespace dbo
