// Where the buffers of a plan lie in one allocation: slots may share bytes only where the plan orders one's last use
// before the other's first, which is also what makes a slot's own reuse safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/ordering.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "sim/plan/slot_map.h"

namespace dbo::runtime {

/// A slot of a buffer an op touches.
struct SlotUse {
  BufferId buffer = 0;
  int slot = 0;

  friend bool operator==(const SlotUse&, const SlotUse&) = default;
};

/// One content of a slot: from the op that writes it anew to its last reader. Ops are in host order.
struct SlotValue {
  std::vector<std::uint32_t> ops;
  bool live_in = false;   ///< read before it is written: it comes from outside the step
  bool live_out = false;  ///< written and not read any more: somebody wants it after the step
};

struct ArenaSlot {
  SlotUse use;
  std::size_t bytes = 0;
  std::size_t offset = 0;
  bool shares = false;  ///< some of its bytes belong to another slot too
  std::vector<SlotValue> values;
};

inline constexpr std::size_t kArenaAlign = 256;

/// The layout of one rank's buffers.
class Arena {
 public:
  /// `slot_bytes` [buffers]: size of a slot of each buffer; 0 leaves the buffer out (it lies elsewhere). Throws
  /// FindingError naming both ops where a slot is written while a use of its former content is not ordered before.
  Arena(const Plan& plan, const Linear& linear, const std::vector<std::size_t>& slot_bytes);

  std::size_t bytes() const { return bytes_; }              ///< of the whole allocation
  std::size_t plain_bytes() const { return plain_bytes_; }  ///< if no slot shared bytes with another
  const std::vector<ArenaSlot>& slots() const { return slots_; }

  /// Where a slot begins.
  std::size_t slot_offset(BufferId buffer, int slot) const;
  /// Where the slot of `buffer` that the op uses begins.
  std::size_t offset(BufferId buffer, std::uint32_t plan_op) const;
  /// Slots whose content begins with this op: what a debug run fills with a pattern before it.
  std::vector<const ArenaSlot*> begun_by(std::uint32_t plan_op) const;

 private:
  const ArenaSlot& find(BufferId buffer, std::uint32_t plan_op) const;
  void collect_values(const Linear& linear);
  void check_reuse(const Linear& linear, const Ordering& ordering) const;
  bool interfere(const ArenaSlot& a, const ArenaSlot& b, const Ordering& ordering) const;
  void place(const Ordering& ordering);

  const Plan& plan_;
  SlotMap map_;
  std::vector<ArenaSlot> slots_;
  std::vector<std::size_t> first_slot_;  ///< by buffer: index of its slot 0, or SIZE_MAX when left out
  std::size_t bytes_ = 0, plain_bytes_ = 0;
};

}  // namespace dbo::runtime
