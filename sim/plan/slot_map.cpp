#include "sim/plan/slot_map.h"

#include "sim/base/error.h"

namespace dbo {

SlotMap::SlotMap(const Plan& plan, const Linear& linear) : plan_(plan), linear_(linear) {
  std::vector<std::uint32_t> latest;  // by ubatch
  call_.reserve(linear.ops.size());
  for (const LinearOp& op : linear.ops) {
    if (latest.size() <= op.ubatch) latest.resize(op.ubatch + 1u, 0);
    if (op.call != kNone) latest[op.ubatch] = op.call;
    call_.push_back(latest[op.ubatch]);
  }
}

int SlotMap::slot(BufferId buffer, std::uint32_t plan_op) const {
  const Buffer& def = plan_.buffers[buffer];
  DBO_CHECK(def.slots >= 1, "a buffer without slots");
  const std::uint32_t turn = def.by == SlotBy::Ubatch ? linear_.ops[plan_op].ubatch : call_[plan_op];
  return static_cast<int>(turn % static_cast<std::uint32_t>(def.slots));
}

}  // namespace dbo
