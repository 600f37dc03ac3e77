#include "sim/plan/program_cursor.h"

#include <algorithm>

#include "sim/base/units.h"

namespace dbo {

std::int32_t iterations(const Plan& plan, const Instruction& repeat) {
  std::int32_t smallest = 0;
  for (const Instruction& instruction : plan.blocks[repeat.block].body) {
    if (instruction.verb == Verb::Launch || instruction.verb == Verb::HostWait)
      smallest = std::min(smallest, instruction.op.layer_offset);
    for (const OpRef& ref : instruction.hook) smallest = std::min(smallest, ref.layer_offset);
  }
  if (repeat.count == 0) return 0;
  return repeat.count + static_cast<std::int32_t>(ceil_div(-smallest, repeat.stride));
}

bool ProgramCursor::enter(const Instruction& instruction) {
  frame_ = ProgramStep{};
  frame_.block = instruction.block;
  iterations_left_ = 0;
  if (instruction.verb == Verb::Repeat) {
    iterations_left_ = iterations(*plan_, instruction) - 1;
    stride_ = instruction.stride;
    frame_.first_layer = next_layer_;
    frame_.end_layer = next_layer_ + instruction.count * instruction.stride;
    frame_.base_layer = next_layer_;
    next_layer_ = frame_.end_layer;
    if (iterations_left_ < 0) return false;
  }
  inner_ = &plan_->blocks[instruction.block].body;
  position_ = 0;
  return true;
}

ProgramStep ProgramCursor::next() {
  for (;;) {
    if (inner_ != nullptr) {
      if (position_ < inner_->size()) {
        ProgramStep step = frame_;
        step.instruction = &(*inner_)[position_];
        step.begins_iteration = position_ == 0 && frame_.in_repeat();
        ++position_;
        const Verb verb = step.instruction->verb;
        const bool skipped = (verb == Verb::Launch || verb == Verb::HostWait) && !step.has_layer(step.instruction->op);
        // An iteration begins with its first instruction even when that launch is skipped: keep the mark for the next.
        if (skipped) {
          if (step.begins_iteration) pending_mark_ = true;
          continue;
        }
        if (pending_mark_) {
          step.begins_iteration = true;
          pending_mark_ = false;
        }
        return step;
      }
      if (iterations_left_ > 0) {
        --iterations_left_;
        frame_.base_layer += stride_;
        position_ = 0;
        continue;
      }
      inner_ = nullptr;
    }
    if (outer_ >= body_->size()) return ProgramStep{};
    const Instruction& instruction = (*body_)[outer_++];
    if (instruction.verb == Verb::Repeat || instruction.verb == Verb::Block) {
      enter(instruction);
      continue;
    }
    ProgramStep step;
    step.instruction = &instruction;
    return step;
  }
}

}  // namespace dbo
