// Walks one thread's program instruction by instruction, expanding blocks and repeats. linearise and the runtime's
// threads use the same walk, so that both number layers and skip launches alike.
#pragma once

#include <cstdint>

#include "sim/plan/plan.h"

namespace dbo {

/// One instruction as executed: blocks and repeats resolved, launches outside the repeat's layers left out.
struct ProgramStep {
  const Instruction* instruction = nullptr;  ///< nullptr: the program is over
  std::int32_t base_layer = -1;              ///< first layer of the iteration; -1 outside a repeat
  std::int32_t first_layer = -1;             ///< layers of the repeat: [first_layer, end_layer)
  std::int32_t end_layer = -1;
  bool begins_iteration = false;  ///< the first instruction of an iteration of a repeat
  BlockId block = 0;

  bool in_repeat() const { return base_layer >= 0; }
  /// The layer `ref` works on, or -1 outside a repeat.
  std::int32_t layer(const OpRef& ref) const { return in_repeat() ? base_layer + ref.layer_offset : -1; }
  /// Whether the repeat has that layer. Always true outside a repeat.
  bool has_layer(const OpRef& ref) const {
    return !in_repeat() || (layer(ref) >= first_layer && layer(ref) < end_layer);
  }
};

class ProgramCursor {
 public:
  ProgramCursor(const Plan& plan, const Thread& thread) : plan_(&plan), body_(&thread.body) {}

  /// The next instruction that is executed: never Repeat or Block, never a launch or host wait whose op has no layer.
  /// A step without instruction marks the end.
  ProgramStep next();

 private:
  bool enter(const Instruction& instruction);

  const Plan* plan_;
  const Program* body_;
  std::size_t outer_ = 0;             ///< next instruction of the thread's body
  const Program* inner_ = nullptr;    ///< body of the block being walked
  std::size_t position_ = 0;          ///< next instruction of it
  std::int32_t iterations_left_ = 0;  ///< after the current one
  std::int32_t stride_ = 1;
  std::int32_t next_layer_ = 0;  ///< first layer of the next repeat
  bool pending_mark_ = false;    ///< the iteration began with a skipped launch
  ProgramStep frame_;
};

/// How often a repeat's block runs: its iterations plus those its most negative layer offset adds.
std::int32_t iterations(const Plan& plan, const Instruction& repeat);

}  // namespace dbo
