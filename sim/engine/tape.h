// A class's linear order with its costs laid out for the inner loop: one step a host instruction, durations of all its
// rank groups side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/plan/linearise.h"

namespace dbo {

/// Ranks that are simulated once: same class, same costs.
struct FoldGroup {
  int class_index = 0;
  int cost_group = 0;
  int first_rank = 0;  ///< the lowest rank of the group
  int ranks = 0;
};

/// The fold groups of a plan, class by class, and the group of every rank.
struct Folding {
  std::vector<FoldGroup> groups;
  std::vector<int> group_of_rank;
  std::vector<std::pair<int, int>> of_class;  ///< half-open range of groups
};

Folding fold_ranks(const Plan& plan, const CostTable& costs);

struct TapeStep {
  enum class Kind : std::uint8_t {
    Launch,      ///< an op of one lane
    Send,        ///< a launch whose end lets data go
    Recv,        ///< a launch that ends when the data of every sender is there
    Collective,  ///< a launch that moves data from when every rank has started it
    Record,
    Wait,
    HostWait,
    HostOnly  ///< takes host time only
  };
  Kind kind = Kind::Launch;
  LaneId lane = 0;
  bool notify = false;
  std::uint32_t op = kNone;    ///< index into Linear::ops
  std::uint32_t slot = kNone;  ///< Record, Wait: event slot; launches: where their end is kept for a HostWait
  std::uint32_t tag = kNone;   ///< Send, Recv, Collective, HostWait of one: number of the call across ranks
  std::uint32_t cost = 0;      ///< first of this step's durations in Tape::times, one a group
  std::uint32_t wire = 0;      ///< Send: the same for its receive, whose wire it starts
  Ns host{};                   ///< host time of the instruction
};

struct TapeMark {
  std::uint32_t step = 0;  ///< index into Tape::steps
  std::int32_t layer = 0;
  bool moe = false;                                  ///< of the repeated MoE block
  std::vector<std::uint32_t> live_slots, live_tags;  ///< recorded or sent before, waited for or received after
};

struct Tape {
  std::vector<TapeStep> steps;
  std::vector<TapeMark> marks;
  std::vector<std::int64_t> times, wires, notifies;  ///< ns, indexed by TapeStep::cost + group within the class
  std::uint32_t slots = 0;
  std::uint32_t tags = 0;
};

/// Lays out one class. Tags number the dispatch and combine calls by (dispatch or combine, ubatch, layer), the same on
/// every class; `tag_names` gets one entry a tag.
struct TagName {
  bool dispatch = false;
  int ubatch = 0;
  std::int32_t layer = 0;
};

class TapeMaker {
 public:
  TapeMaker(const Plan& plan, const CostTable& costs, const Folding& folding)
      : plan_(plan), costs_(costs), folding_(folding) {}

  Tape make(int class_index, const Linear& linear);
  const std::vector<TagName>& tags() const { return tags_; }

 private:
  std::uint32_t tag(const LinearOp& op);
  std::uint32_t cost(Tape& tape, int class_index, const LinearOp& op, std::uint32_t op_index);

  const Plan& plan_;
  const CostTable& costs_;
  const Folding& folding_;
  std::vector<TagName> tags_;
  std::vector<std::uint32_t> tag_index_;   ///< by (layer, ubatch, dispatch)
  std::vector<std::uint32_t> cost_index_;  ///< by (layer class, ubatch, op), for the class being made
};

}  // namespace dbo
