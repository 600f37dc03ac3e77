#include "validate/memory_audit.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo::validate {

using runtime::ArenaSlot;
using runtime::SlotValue;

MemoryAudit::MemoryAudit(const Plan& plan, const Linear& linear, const std::vector<ArenaSlot>& slots)
    : plan_(plan), linear_(linear), slots_(slots), named_(slots.size(), false) {}

void MemoryAudit::begin(const std::vector<SlotSight>& seen) {
  DBO_CHECK(seen.size() == slots_.size(), "a sight of each slot");
  last_ = seen;
  previous_ = kNone;
}

/// The value that is in a slot at an op: begun before it (`begun`: or by it) and not read for the last time before it.
const SlotValue* MemoryAudit::alive_at(std::size_t slot, std::uint32_t plan_op, bool begun) const {
  const auto host = [&](std::uint32_t op) { return linear_.ops[op].host; };
  // The latest that has begun: values of a slot follow each other in host order.
  const SlotValue* latest = nullptr;
  for (const SlotValue& value : slots_[slot].values) {
    const std::uint32_t first = value.ops.front();
    if (value.live_in || host(first) < host(plan_op) || (begun && first == plan_op)) latest = &value;
  }
  if (latest == nullptr) return nullptr;
  const bool is_over = !latest->live_out && host(latest->ops.back()) < host(plan_op);
  return is_over ? nullptr : latest;
}

bool MemoryAudit::may_write(const ArenaSlot& slot, const SlotValue& value, std::uint32_t plan_op) const {
  if (std::find(value.ops.begin(), value.ops.end(), plan_op) == value.ops.end()) return false;
  const std::vector<BufferId>& writes = plan_.op(linear_.ops[plan_op].op).writes;
  return std::find(writes.begin(), writes.end(), slot.use.buffer) != writes.end();
}

std::string MemoryAudit::slot_name(std::size_t slot) const {
  const runtime::SlotUse& use = slots_[slot].use;
  return "slot " + std::to_string(use.slot) + " of \"" + plan_.buffers[use.buffer].name + "\"";
}

/// Who left the value and who is still to read it.
std::string MemoryAudit::use_of(const SlotValue& value, std::uint32_t plan_op) const {
  std::uint32_t writer = kNone, reader = kNone;
  for (const std::uint32_t op : value.ops) {
    if (linear_.ops[op].host < linear_.ops[plan_op].host) writer = op;
    if (linear_.ops[op].host >= linear_.ops[plan_op].host && op != plan_op && reader == kNone) reader = op;
  }
  std::string text = writer == kNone ? "what the step began with" : "what " + describe(plan_, linear_.ops[writer]);
  if (writer != kNone) text += " left";
  return reader == kNone ? text : text + " for " + describe(plan_, linear_.ops[reader]);
}

void MemoryAudit::add(std::size_t slot, std::string text) {
  // One a slot: what follows is mostly the same fault in the next layer.
  if (named_[slot]) return;
  named_[slot] = true;
  problems_.push_back(std::move(text));
}

std::vector<std::size_t> MemoryAudit::before(std::uint32_t plan_op, const std::vector<SlotSight>& seen) {
  DBO_CHECK(seen.size() == slots_.size() && last_.size() == slots_.size(), "a sight of each slot");
  std::vector<std::size_t> begun;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (const SlotValue* value = alive_at(i, plan_op, false)) {
      if (!(seen[i] == last_[i]))
        add(i, "F14 lifetime: " + slot_name(i) + " changed " +
                   (previous_ == kNone ? "before the first op" : "behind " + describe(plan_, linear_.ops[previous_])) +
                   ", while no op ran; it held " + use_of(*value, plan_op));
    }
    for (const SlotValue& value : slots_[i].values)
      if (!value.live_in && value.ops.front() == plan_op) begun.push_back(i);
  }
  last_ = seen;
  return begun;
}

void MemoryAudit::after(std::uint32_t plan_op, const std::vector<SlotSight>& seen) {
  DBO_CHECK(seen.size() == slots_.size() && last_.size() == slots_.size(), "a sight of each slot");
  const std::string op = describe(plan_, linear_.ops[plan_op]);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const SlotValue* value = alive_at(i, plan_op, true);
    if (value == nullptr) continue;
    if (!seen[i].guard_kept) add(i, "guard: " + op + " wrote behind the end of " + slot_name(i));
    if (seen[i].content == last_[i].content || may_write(slots_[i], *value, plan_op)) continue;
    const bool others = linear_.ops[value->ops.front()].ubatch != linear_.ops[plan_op].ubatch;
    add(i, (others ? "F8 shared buffer: " : "F14 lifetime: ") + op + " wrote into " + slot_name(i) + ", which holds " +
               use_of(*value, plan_op));
  }
  last_ = seen;
  previous_ = plan_op;
}

std::string check_choices(const std::vector<std::int32_t>& experts, const std::vector<std::int64_t>& token_of_row,
                          int top_k, int count) {
  const auto k = static_cast<std::size_t>(top_k);
  DBO_CHECK(experts.size() == token_of_row.size() * k, "experts of each row");
  int padding = 0, wrong = 0;
  for (std::size_t row = 0; row < token_of_row.size(); ++row) {
    std::vector<std::int32_t> mine(experts.begin() + static_cast<std::ptrdiff_t>(row * k),
                                   experts.begin() + static_cast<std::ptrdiff_t>((row + 1) * k));
    if (token_of_row[row] < 0) {
      padding += std::any_of(mine.begin(), mine.end(), [](std::int32_t expert) { return expert >= 0; }) ? 1 : 0;
      continue;
    }
    std::sort(mine.begin(), mine.end());
    const bool distinct = std::adjacent_find(mine.begin(), mine.end()) == mine.end();
    if (!distinct || mine.front() < 0 || mine.back() >= count) ++wrong;
  }
  if (padding > 0)
    return "F12 padding routed as real tokens: " + std::to_string(padding) + " rows of padding chose experts";
  if (wrong > 0)
    return "routing: " + std::to_string(wrong) + " rows did not choose " + std::to_string(top_k) +
           " different experts below " + std::to_string(count);
  return {};
}

}  // namespace dbo::validate
