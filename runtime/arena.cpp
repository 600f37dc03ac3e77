#include "runtime/arena.h"

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

std::size_t align_up(std::size_t bytes) {
  return (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
}

bool contains(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

}  // namespace

Arena::Arena(const Plan& plan, const Linear& linear, const std::vector<std::size_t>& slot_bytes)
    : plan_(plan), map_(plan, linear) {
  DBO_CHECK(slot_bytes.size() == plan.buffers.size(), "a size for each buffer of the plan");
  for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    first_slot_.push_back(slot_bytes[buffer] == 0 ? SIZE_MAX : slots_.size());
    if (slot_bytes[buffer] == 0) continue;
    for (int slot = 0; slot < plan.buffers[buffer].slots; ++slot) {
      slots_.push_back({{static_cast<BufferId>(buffer), slot}, align_up(slot_bytes[buffer]), 0, false, {}});
    }
  }
  collect_values(linear);
  const Ordering ordering(plan, linear);
  check_reuse(linear, ordering);
  place(ordering);
}

const ArenaSlot& Arena::find(BufferId buffer, std::uint32_t plan_op) const {
  DBO_CHECK(first_slot_[buffer] != SIZE_MAX, "the arena does not hold this buffer");
  return slots_[first_slot_[buffer] + static_cast<std::size_t>(map_.slot(buffer, plan_op))];
}

std::size_t Arena::slot_offset(BufferId buffer, int slot) const {
  DBO_CHECK(first_slot_[buffer] != SIZE_MAX, "the arena does not hold this buffer");
  DBO_CHECK(slot >= 0 && slot < plan_.buffers[buffer].slots, "a slot the buffer does not have");
  return slots_[first_slot_[buffer] + static_cast<std::size_t>(slot)].offset;
}

std::size_t Arena::offset(BufferId buffer, std::uint32_t plan_op) const {
  return find(buffer, plan_op).offset;
}

std::vector<const ArenaSlot*> Arena::begun_by(std::uint32_t plan_op) const {
  std::vector<const ArenaSlot*> begun;
  for (const ArenaSlot& slot : slots_) {
    for (const SlotValue& value : slot.values) {
      if (!value.live_in && value.ops.front() == plan_op) begun.push_back(&slot);
    }
  }
  return begun;
}

void Arena::collect_values(const Linear& linear) {
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    const OpDef& def = plan_.op(linear.ops[i].op);
    const auto touch = [&](BufferId buffer, bool reads, bool writes) {
      if (first_slot_[buffer] == SIZE_MAX) return;
      ArenaSlot& slot = slots_[first_slot_[buffer] + static_cast<std::size_t>(map_.slot(buffer, i))];
      if (slot.values.empty() || (writes && !reads)) slot.values.push_back({{}, reads, false});
      slot.values.back().ops.push_back(i);
      slot.values.back().live_out = writes;
    };
    for (const BufferId buffer : def.reads) touch(buffer, true, contains(def.writes, buffer));
    for (const BufferId buffer : def.writes) {
      if (!contains(def.reads, buffer)) touch(buffer, false, true);
    }
  }
}

void Arena::check_reuse(const Linear& linear, const Ordering& ordering) const {
  const auto fail = [&](const ArenaSlot& slot, std::uint32_t later, std::uint32_t earlier) {
    throw FindingError("F14 unordered reuse: " + describe(plan_, linear.ops[later]) + " writes slot " +
                       std::to_string(slot.use.slot) + " of buffer " + plan_.buffers[slot.use.buffer].name + " while " +
                       describe(plan_, linear.ops[earlier]) +
                       " may still use it: the plan has no path from one to the other");
  };
  for (const ArenaSlot& slot : slots_) {
    const SlotValue* former = nullptr;
    for (const SlotValue& value : slot.values) {
      // Within a value: a write in place after every use before it, a read after the write it sees.
      std::size_t last_write = 0;
      for (std::size_t i = 1; i < value.ops.size(); ++i) {
        const bool writes = contains(plan_.op(linear.ops[value.ops[i]].op).writes, slot.use.buffer);
        for (std::size_t j = writes ? last_write : i; j < i; ++j) {
          if (!ordering.before(value.ops[j], value.ops[i])) fail(slot, value.ops[i], value.ops[j]);
        }
        if (!value.live_in || last_write > 0) {
          if (!ordering.before(value.ops[last_write], value.ops[i])) {
            throw FindingError("F5 missing wait: " + describe(plan_, linear.ops[value.ops[i]]) + " reads buffer " +
                               plan_.buffers[slot.use.buffer].name + ", which " +
                               describe(plan_, linear.ops[value.ops[last_write]]) +
                               " may still write: the plan has no path from one to the other");
          }
        }
        if (writes) last_write = i;
      }
      if (former != nullptr) {
        for (const std::uint32_t use : former->ops) {
          if (!ordering.before(use, value.ops.front())) fail(slot, value.ops.front(), use);
        }
      }
      former = &value;
    }
  }
}

bool Arena::interfere(const ArenaSlot& a, const ArenaSlot& b, const Ordering& ordering) const {
  const auto all_before = [&](const SlotValue& first, const SlotValue& second) {
    if (first.live_out) return false;
    return std::all_of(first.ops.begin(), first.ops.end(),
                       [&](std::uint32_t op) { return ordering.before(op, second.ops.front()); });
  };
  for (const SlotValue& x : a.values) {
    for (const SlotValue& y : b.values) {
      // What comes from outside the step must survive the step before, too.
      if (x.live_in || y.live_in) return true;
      if (!all_before(x, y) && !all_before(y, x)) return true;
    }
  }
  return false;
}

void Arena::place(const Ordering& ordering) {
  // Largest first, each at the lowest offset that no slot it interferes with covers.
  std::vector<std::size_t> order(slots_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return slots_[a].bytes > slots_[b].bytes; });
  std::vector<std::size_t> placed;
  for (const std::size_t index : order) {
    ArenaSlot& slot = slots_[index];
    std::vector<std::pair<std::size_t, std::size_t>> taken;
    for (const std::size_t other : placed) {
      if (interfere(slot, slots_[other], ordering)) {
        taken.emplace_back(slots_[other].offset, slots_[other].offset + slots_[other].bytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    for (const auto& [begin, end] : taken) {
      if (slot.offset + slot.bytes <= begin) break;
      slot.offset = std::max(slot.offset, end);
    }
    for (const std::size_t other : placed) {
      ArenaSlot& neighbour = slots_[other];
      if (slot.offset < neighbour.offset + neighbour.bytes && neighbour.offset < slot.offset + slot.bytes) {
        slot.shares = neighbour.shares = true;
      }
    }
    placed.push_back(index);
    bytes_ = std::max(bytes_, slot.offset + slot.bytes);
    plain_bytes_ += slot.bytes;
  }
}

}  // namespace dbo::runtime
