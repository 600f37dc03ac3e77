// A program's linear order with its costs laid out for the inner loop: one step a host instruction, durations of all
// its rank groups side by side, and where its layers begin.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/engine/fold.h"
#include "sim/plan/linearise.h"

namespace dbo {

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
  bool notify = false;       ///< HostWait
  bool crosses = false;      ///< Wait: for an event of another lane
  bool last = false;         ///< launches: the last op of its lane
  std::uint32_t op = kNone;  ///< index into Linear::ops
  std::uint32_t value =
      kNone;                   ///< the event or op end that a Record or launch defines, or a Wait or HostWait waits for
  std::uint32_t slot = kNone;  ///< of the value, among those alive at the same time
  std::uint32_t tag = kNone;   ///< Send, Recv, Collective, HostWait of one: number of the call across ranks
  std::uint32_t cost = kNone;  ///< first of this step's durations in Tape::times, one a group
  std::uint32_t wire = kNone;  ///< Send: the same for its receive, whose wire it starts
  Ns host{};                   ///< host time of the instruction
};

/// The first step of an iteration of the repeated MoE block.
struct TapeMark {
  std::uint32_t step = 0;   ///< index into Tape::steps
  std::uint32_t op = 0;     ///< ops launched before
  std::uint32_t value = 0;  ///< values defined before
  std::int32_t layer = 0;
  /// Iterations with the same number have equal instructions and costs; the last one of a tape has none (-1), because
  /// nothing says where it ends.
  int content = -1;
  std::vector<std::uint32_t> live_values,
      live_tags;  ///< defined or sent before, waited for or received after; ascending
};

struct Tape {
  std::vector<TapeStep> steps;
  std::vector<TapeMark> marks;
  std::vector<std::int64_t> times, wires, peers, notifies, data_after,
      data_floor;  ///< ns, indexed by TapeStep::cost + group within the program
  std::vector<std::uint32_t> slot_of_value;
  std::uint32_t slots = 0, values = 0;
  std::uint32_t tags = 0;  ///< one more than its highest
  bool host_waits = false;
};

/// Lays out programs. Tags number the dispatch and combine calls by layer, ubatch and direction, alike in every
/// program.
class TapeMaker {
 public:
  TapeMaker(const Plan& plan, const CostTable& costs, const Folding& folding)
      : plan_(plan), costs_(costs), folding_(folding) {}

  Tape make(std::size_t program, const Linear& linear);
  std::uint32_t tags_per_layer() const { return static_cast<std::uint32_t>(costs_.ubatches()) * 2; }

 private:
  TapeStep launch(Tape& tape, std::size_t program, const Linear& linear, std::uint32_t op_index);
  std::uint32_t tag(const LinearOp& op) const;
  std::uint32_t cost(Tape& tape, std::size_t program, const LinearOp& op, std::uint32_t op_index);

  const Plan& plan_;
  const CostTable& costs_;
  const Folding& folding_;
  std::vector<std::uint32_t> cost_index_;  ///< by (layer class, ubatch, op), for the program being made
};

/// Iterations from mark `from` on, in steps of `cycle`, that repeat the `cycle` iterations before them on every tape:
/// the number of whole cycles.
int repeated_cycles(const std::vector<Tape>& tapes, int from, int cycle);

/// Whether all that is alive at mark `to` has its counterpart alive at mark `from`.
bool alive_alike(const std::vector<Tape>& tapes, int from, int to, std::uint32_t tags_per_layer);

}  // namespace dbo
