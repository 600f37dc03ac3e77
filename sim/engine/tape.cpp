#include "sim/engine/tape.h"

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

/// Gives each record a slot that no other live record has, from its Record to its last Wait; records nobody waits for
/// get none.
std::vector<std::uint32_t> assign_slots(const Linear& linear, std::uint32_t& slots) {
  std::vector<std::uint32_t> last_wait(linear.records.size(), kNone);
  for (const LinearWait& wait : linear.waits)
    if (wait.record != kNone) last_wait[wait.record] = wait.host;
  std::vector<std::uint32_t> slot(linear.records.size(), kNone), free;
  for (std::uint32_t h = 0; h < linear.host.size(); ++h) {
    const HostStep& step = linear.host[h];
    if (step.verb == Verb::Record && last_wait[step.index] != kNone) {
      if (free.empty()) free.push_back(slots++);
      slot[step.index] = free.back();
      free.pop_back();
    } else if (step.verb == Verb::Wait) {
      const std::uint32_t record = linear.waits[step.index].record;
      if (record != kNone && last_wait[record] == h) free.push_back(slot[record]);
    }
  }
  return slot;
}

TapeStep::Kind kind_of(OpKind kind) {
  if (is_send(kind)) return TapeStep::Kind::Send;
  if (is_recv(kind)) return TapeStep::Kind::Recv;
  if (is_collective(kind)) return TapeStep::Kind::Collective;
  return TapeStep::Kind::Launch;
}

/// What is live at each mark: events recorded before and waited for after, calls sent before and received after.
void find_live(const Linear& linear, Tape& tape, const std::vector<std::uint32_t>& slot_of_record) {
  if (tape.marks.empty()) return;
  for (std::size_t w = 0; w < linear.waits.size(); ++w) {
    const LinearWait& wait = linear.waits[w];
    if (wait.record == kNone) continue;
    const std::uint32_t recorded = linear.records[wait.record].host;
    for (TapeMark& mark : tape.marks)
      if (recorded < mark.step && mark.step <= wait.host) mark.live_slots.push_back(slot_of_record[wait.record]);
  }
  for (std::uint32_t s = 0; s < tape.steps.size(); ++s) {
    const TapeStep& step = tape.steps[s];
    if (step.kind != TapeStep::Kind::Recv) continue;
    const std::uint32_t sent = linear.ops[linear.ops[step.op].pair].host;
    for (TapeMark& mark : tape.marks)
      if (sent < mark.step && mark.step <= s) mark.live_tags.push_back(step.tag);
  }
  for (TapeMark& mark : tape.marks) {
    // Two waits may share a record.
    std::sort(mark.live_slots.begin(), mark.live_slots.end());
    mark.live_slots.erase(std::unique(mark.live_slots.begin(), mark.live_slots.end()), mark.live_slots.end());
  }
}

}  // namespace

Folding fold_ranks(const Plan& plan, const CostTable& costs) {
  Folding folding;
  folding.group_of_rank.assign(static_cast<std::size_t>(plan.world.ranks), -1);
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const auto begin = static_cast<int>(folding.groups.size());
    std::map<int, int> group_of_cost;
    for (const auto& [first, last] : plan.classes[c].ranks) {
      for (int rank = first; rank < last; ++rank) {
        const int cost = costs.group_of_rank()[static_cast<std::size_t>(rank)];
        const auto [entry, fresh] = group_of_cost.emplace(cost, static_cast<int>(folding.groups.size()));
        if (fresh) folding.groups.push_back({static_cast<int>(c), cost, rank, 0});
        FoldGroup& group = folding.groups[static_cast<std::size_t>(entry->second)];
        group.first_rank = std::min(group.first_rank, rank);
        ++group.ranks;
        folding.group_of_rank[static_cast<std::size_t>(rank)] = entry->second;
      }
    }
    folding.of_class.emplace_back(begin, static_cast<int>(folding.groups.size()));
  }
  return folding;
}

std::uint32_t TapeMaker::tag(const LinearOp& op) {
  const bool dispatch = is_dispatch(plan_.ops[op.op].kind);
  const auto ubatches = static_cast<std::size_t>(costs_.ubatches());
  const std::size_t index = (static_cast<std::size_t>(op.layer + 1) * ubatches + op.ubatch) * 2 + (dispatch ? 1 : 0);
  if (index >= tag_index_.size()) tag_index_.resize(index + 1, kNone);
  if (tag_index_[index] == kNone) {
    tag_index_[index] = static_cast<std::uint32_t>(tags_.size());
    tags_.push_back({dispatch, op.ubatch, op.layer});
  }
  return tag_index_[index];
}

std::uint32_t TapeMaker::cost(Tape& tape, int class_index, const LinearOp& op, std::uint32_t op_index) {
  const auto [begin, end] = folding_.of_class[static_cast<std::size_t>(class_index)];
  const bool own = op_index != kNone && op_index < costs_.by_plan_op.size() && costs_.by_plan_op[op_index] >= Ns{};
  const int layer_class = costs_.layer_class(op.layer);
  const std::size_t index =
      (static_cast<std::size_t>(layer_class) * static_cast<std::size_t>(costs_.ubatches()) + op.ubatch) *
          plan_.ops.size() +
      op.op;
  if (index >= cost_index_.size()) cost_index_.resize(index + 1, kNone);
  if (!own && cost_index_[index] != kNone) return cost_index_[index];
  const auto at = static_cast<std::uint32_t>(tape.times.size());
  for (int g = begin; g < end; ++g) {
    const OpCost& c = costs_.at(folding_.groups[static_cast<std::size_t>(g)].cost_group, layer_class, op.ubatch, op.op);
    tape.times.push_back(own ? costs_.by_plan_op[op_index].count() : c.time.count());
    tape.wires.push_back(c.wire.count());
    tape.notifies.push_back(c.notify.count());
  }
  if (!own) cost_index_[index] = at;
  return at;
}

Tape TapeMaker::make(int class_index, const Linear& linear) {
  Tape tape;
  cost_index_.clear();
  const std::vector<std::uint32_t> slot_of_record = assign_slots(linear, tape.slots);
  const bool graph = plan_.execution == Execution::Graph;
  const HostCosts none{};
  const HostCosts& host = graph ? none : costs_.host;
  tape.steps.reserve(linear.host.size());
  for (const HostStep& h : linear.host) {
    TapeStep step;
    switch (h.verb) {
      case Verb::Launch: {
        const LinearOp& op = linear.ops[h.index];
        step.kind = kind_of(plan_.ops[op.op].kind);
        step.lane = op.lane;
        step.op = h.index;
        step.cost = cost(tape, class_index, op, h.index);
        if (step.kind != TapeStep::Kind::Launch) step.tag = tag(op);
        if (step.kind == TapeStep::Kind::Send) {
          LinearOp recv = op;
          recv.op = *plan_.ops[op.op].pairs;
          step.wire = cost(tape, class_index, recv, op.pair);
        }
        step.host = host.launch;
        break;
      }
      case Verb::Record:
        step.kind = TapeStep::Kind::Record;
        step.lane = linear.records[h.index].lane;
        step.slot = slot_of_record[h.index];
        step.host = host.record;
        break;
      case Verb::Wait: {
        const LinearWait& wait = linear.waits[h.index];
        step.kind = TapeStep::Kind::Wait;
        step.lane = wait.lane;
        if (wait.record != kNone) {
          step.slot = slot_of_record[wait.record];
          step.op = linear.records[wait.record].lane;  // whether the wait crosses lanes
        }
        step.host = host.wait;
        break;
      }
      case Verb::HostWait: {
        const LinearOp& op = linear.ops[h.index];
        step.kind = TapeStep::Kind::HostWait;
        step.lane = op.lane;
        step.op = h.index;
        step.notify = h.notify;
        step.cost = cost(tape, class_index, op, h.index);
        if (is_collective(plan_.ops[op.op].kind)) step.tag = tag(op);
        if (!h.notify) {
          TapeStep& launch = tape.steps[op.host];
          if (launch.slot == kNone) launch.slot = tape.slots++;
          step.slot = launch.slot;
        }
        break;
      }
      case Verb::Yield:
        step.kind = TapeStep::Kind::HostOnly;
        step.host = host.yield;
        break;
      case Verb::Hook:
      case Verb::RunHook:
      case Verb::Exit:
        step.kind = TapeStep::Kind::HostOnly;
        break;
      case Verb::Repeat:
      case Verb::Block:
        throw InternalError("a linear order holds a repeat or block");
    }
    tape.steps.push_back(step);
  }
  const auto moe = moe_block(plan_, class_index);
  for (const LayerMark& mark : linear.marks)
    tape.marks.push_back({mark.host, mark.layer, moe && mark.block == *moe, {}, {}});
  find_live(linear, tape, slot_of_record);
  tape.tags = static_cast<std::uint32_t>(tags_.size());
  return tape;
}

}  // namespace dbo
