// The words of check_data's findings.
#pragma once

#include <string>
#include <vector>

#include "sim/plan/linearise.h"

namespace dbo {

/// The later op of a pair of accesses to one slot, and the earlier one.
enum class Conflict : std::uint8_t { ReadAfterWrite, WriteAfterWrite, WriteAfterRead };

class DataCheckWords {
 public:
  DataCheckWords(const Plan& plan, const RankClass& rank_class, const Linear& linear)
      : plan_(plan), rank_class_(rank_class), linear_(linear) {}

  std::string name(std::uint32_t op) const { return describe(plan_, linear_.ops[op]); }

  std::string race(Conflict type, std::uint32_t before, std::uint32_t op, BufferId buffer, int slot) const;
  std::string overwritten(std::uint32_t op, BufferId buffer, int slot, std::uint32_t writer) const;
  std::string late(std::uint32_t op, BufferId buffer, std::int32_t layer, std::uint32_t stale) const;
  std::string overflow(std::uint32_t send, const std::vector<std::uint32_t>& unreceived, int slots) const;
  std::string crowded(std::uint32_t send, const std::vector<std::uint32_t>& unreceived, int slots) const;
  std::string late_event(std::uint32_t op, const LinearWait& wait, std::uint32_t needed, std::uint32_t extra) const;

 private:
  /// The op that writes what `reader` misses: the one the plan launches for its ubatch in that layer, or else the
  /// first op that writes the buffer.
  OpId producer(BufferId buffer, const LinearOp& reader, std::int32_t layer) const;
  std::string lane_of(std::uint32_t op) const { return plan_.lanes[linear_.ops[op].lane]; }
  std::string slot_name(BufferId buffer, int slot) const;
  std::string event_name(std::uint16_t thread, EventId event) const;
  std::string names(const std::vector<std::uint32_t>& ops) const;
  std::string why_unordered(std::uint32_t before, std::uint32_t op) const;
  /// The last launch on the record's lane that it covers; kNone when it covers none.
  std::uint32_t covered(const LinearRecord& record) const;

  const Plan& plan_;
  const RankClass& rank_class_;
  const Linear& linear_;
};

}  // namespace dbo
