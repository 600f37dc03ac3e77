// Whether every op leaves alone what is not its to write: a step run op by op, with what lies in memory looked at
// between them. Pure: who looks, and how, is the caller's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/arena.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::validate {

/// What a look at one slot of the arena found.
struct SlotSight {
  std::uint64_t content = 0;  ///< checksum of the bytes that ops use
  bool guard_kept = true;     ///< the bytes behind them are as they were filled

  friend bool operator==(const SlotSight&, const SlotSight&) = default;
};

/// Follows one rank's step in the plan's host order. `before` and `after` come around each op, with all of the GPU's
/// work ended and the sight of every slot of the arena.
///
/// A slot is alive from the op that writes it to the last op that reads it. While it is, only ops of its value that
/// write may change it: another ubatch's op that does shares the buffer (F8); one of its own ubatch, or nobody's op at
/// all, got memory that was not free (F14).
class MemoryAudit {
 public:
  /// References must outlive the audit.
  MemoryAudit(const Plan& plan, const Linear& linear, const std::vector<runtime::ArenaSlot>& slots);

  void begin(const std::vector<SlotSight>& seen);
  /// Returns the slots, by index, whose content begins with this op: the caller may fill them with a pattern.
  std::vector<std::size_t> before(std::uint32_t plan_op, const std::vector<SlotSight>& seen);
  void after(std::uint32_t plan_op, const std::vector<SlotSight>& seen);

  /// "F8 shared buffer: ...", each slot's first one.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const runtime::SlotValue* alive_at(std::size_t slot, std::uint32_t plan_op, bool begun) const;
  bool may_write(const runtime::ArenaSlot& slot, const runtime::SlotValue& value, std::uint32_t plan_op) const;
  std::string slot_name(std::size_t slot) const;
  std::string use_of(const runtime::SlotValue& value, std::uint32_t plan_op) const;
  void add(std::size_t slot, std::string text);

  const Plan& plan_;
  const Linear& linear_;
  const std::vector<runtime::ArenaSlot>& slots_;
  std::vector<SlotSight> last_;
  std::vector<bool> named_;
  std::uint32_t previous_ = kNone;  ///< op before, for messages
  std::vector<std::string> problems_;
};

/// What is wrong with the experts that a ubatch's rows chose, or nothing. `experts` [rows][top_k]; `token_of_row` is -1
/// for padding, whose rows must choose none (F12); others must choose `top_k` different ones below `count`.
std::string check_choices(const std::vector<std::int32_t>& experts, const std::vector<std::int64_t>& token_of_row,
                          int top_k, int count);

}  // namespace dbo::validate
