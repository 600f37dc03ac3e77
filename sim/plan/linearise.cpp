#include "sim/plan/linearise.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/plan/program_cursor.h"

namespace dbo {
namespace {

/// An op instance by (op, ubatch, layer): where it was launched last.
class Instances {
 public:
  Instances(const Plan& plan, int ubatches) : ops_(plan.ops.size()), ubatches_(static_cast<std::size_t>(ubatches)) {}

  std::uint32_t& at(OpId op, int ubatch, std::int32_t layer) {
    const std::size_t row = static_cast<std::size_t>(layer + 1);
    const std::size_t index = (row * ubatches_ + static_cast<std::size_t>(ubatch)) * ops_ + op;
    if (index >= table_.size()) table_.resize((row + 1) * ubatches_ * ops_, kNone);
    return table_[index];
  }

 private:
  std::size_t ops_, ubatches_;
  std::vector<std::uint32_t> table_;
};

struct PendingOp {
  OpId op = 0;
  int ubatch = 0;
  std::int32_t layer = -1;
};

/// The threads of one class taking turns: whoever has the baton runs until it yields or exits.
class Ring {
 public:
  Ring(const Plan& plan, const RankClass& rank_class)
      : plan_(plan),
        instances_(plan, max_ubatch(plan, rank_class) + 1),
        last_record_(plan.events.size() * rank_class.threads.size(), kNone) {
    linear_.queues.resize(plan.lanes.size());
    for (const int index : rank_class.threads) {
      const Thread& thread = plan.threads[static_cast<std::size_t>(index)];
      threads_.push_back({ProgramCursor(plan, thread), thread.ubatch, {}, {}, false, 0, kNone});
    }
  }

  Linear run() {
    std::size_t current = 0;
    while (!threads_.empty()) {
      run_until_handover(current);
      const std::size_t next = (current + 1) % threads_.size();
      if (threads_[next].exited) {
        if (std::all_of(threads_.begin(), threads_.end(), [](const State& t) { return t.exited; })) break;
        report_deadlock(current, next);
        return std::move(linear_);
      }
      current = next;
    }
    report_leftovers();
    return std::move(linear_);
  }

 private:
  struct State {
    ProgramCursor cursor;
    int ubatch;
    std::vector<PendingOp> hook;  ///< what the previous thread left in this one's slot
    std::string hook_from;
    bool exited;
    int yields;
    std::uint32_t last_op;  ///< launched last
  };

  static int max_ubatch(const Plan& plan, const RankClass& rank_class) {
    int largest = 0;
    const auto see = [&](const Program& body) {
      for (const Instruction& i : body) {
        largest = std::max<int>(largest, i.op.ubatch);
        for (const OpRef& ref : i.hook) largest = std::max<int>(largest, ref.ubatch);
      }
    };
    for (const Block& block : plan.blocks) see(block.body);
    for (const int index : rank_class.threads) {
      largest = std::max(largest, plan.threads[static_cast<std::size_t>(index)].ubatch);
      see(plan.threads[static_cast<std::size_t>(index)].body);
    }
    return largest;
  }

  void run_until_handover(std::size_t t) {
    State& thread = threads_[t];
    for (;;) {
      const ProgramStep step = thread.cursor.next();
      if (step.instruction == nullptr) {
        // A program without `exit` ends like one that has it, so that its sibling is woken.
        leave(t);
        return;
      }
      if (step.begins_iteration && t == 0)
        linear_.marks.push_back({step.base_layer, step.block, static_cast<std::uint32_t>(linear_.host.size())});
      const Instruction& instruction = *step.instruction;
      switch (instruction.verb) {
        case Verb::Launch:
          launch(t, resolve(thread, step, instruction.op));
          break;
        case Verb::Record:
          record(t, instruction);
          break;
        case Verb::Wait:
          wait(t, instruction);
          break;
        case Verb::Hook:
          hook(t, step);
          break;
        case Verb::RunHook:
          push_host(Verb::RunHook, t);
          run_hook(t);
          break;
        case Verb::HostWait:
          host_wait(t, resolve(thread, step, instruction.op), instruction.notify);
          break;
        case Verb::Yield:
          ++thread.yields;
          push_host(Verb::Yield, t);
          return;
        case Verb::Exit:
          leave(t);
          return;
        case Verb::Repeat:
        case Verb::Block:
          throw InternalError("the program cursor returned a repeat or block");
      }
    }
  }

  PendingOp resolve(const State& thread, const ProgramStep& step, const OpRef& ref) const {
    return {ref.op, ref.ubatch < 0 ? thread.ubatch : ref.ubatch, step.layer(ref)};
  }

  std::uint32_t push_host(Verb verb, std::size_t t, std::uint32_t index = kNone, bool notify = false) {
    linear_.host.push_back({verb, static_cast<std::uint16_t>(t), index, notify});
    return static_cast<std::uint32_t>(linear_.host.size() - 1);
  }

  void launch(std::size_t t, const PendingOp& pending) {
    const OpDef& def = plan_.ops[pending.op];
    const auto index = static_cast<std::uint32_t>(linear_.ops.size());
    LinearOp op;
    op.op = pending.op;
    op.lane = def.lane;
    op.ubatch = static_cast<std::uint8_t>(pending.ubatch);
    op.layer = pending.layer;
    op.thread = static_cast<std::uint16_t>(t);
    op.host = push_host(Verb::Launch, t, index);
    op.position = static_cast<std::uint32_t>(linear_.queues[def.lane].size());
    if (is_send(def.kind)) op.call = calls_++;
    if (is_collective(def.kind)) {
      op.call = calls_++;
      op.pair = index;
    }
    if (is_recv(def.kind)) pair_with_send(op, index, pending);
    linear_.queues[def.lane].push_back({QueueItem::Kind::Op, index});
    linear_.ops.push_back(op);
    instances_.at(pending.op, pending.ubatch, pending.layer) = index;
    threads_[t].last_op = index;
  }

  void pair_with_send(LinearOp& recv, std::uint32_t index, const PendingOp& pending) {
    for (std::size_t send = 0; send < plan_.ops.size(); ++send) {
      if (plan_.ops[send].pairs != pending.op) continue;
      const std::uint32_t sent = instances_.at(static_cast<OpId>(send), pending.ubatch, pending.layer);
      if (sent == kNone || linear_.ops[sent].pair != kNone) break;
      linear_.ops[sent].pair = index;
      recv.pair = sent;
      recv.call = linear_.ops[sent].call;
      return;
    }
    linear_.problems.push_back(
        {"F7", describe(plan_, recv) + " is launched without a send before it: it would wait for ever"});
  }

  void record(std::size_t t, const Instruction& instruction) {
    const auto index = static_cast<std::uint32_t>(linear_.records.size());
    LinearRecord record;
    record.thread = static_cast<std::uint16_t>(t);
    record.event = instruction.event;
    record.lane = instruction.lane;
    record.host = push_host(Verb::Record, t, index);
    record.position = static_cast<std::uint32_t>(linear_.queues[instruction.lane].size());
    linear_.queues[instruction.lane].push_back({QueueItem::Kind::Record, index});
    linear_.records.push_back(record);
    last_record_[t * plan_.events.size() + instruction.event] = index;
  }

  void wait(std::size_t t, const Instruction& instruction) {
    const auto index = static_cast<std::uint32_t>(linear_.waits.size());
    LinearWait wait;
    wait.thread = static_cast<std::uint16_t>(t);
    wait.event = instruction.event;
    wait.lane = instruction.lane;
    wait.host = push_host(Verb::Wait, t, index);
    wait.position = static_cast<std::uint32_t>(linear_.queues[instruction.lane].size());
    wait.record = last_record_[t * plan_.events.size() + instruction.event];
    linear_.queues[instruction.lane].push_back({QueueItem::Kind::Wait, index});
    linear_.waits.push_back(wait);
  }

  void hook(std::size_t t, const ProgramStep& step) {
    push_host(Verb::Hook, t);
    State& next = threads_[(t + 1) % threads_.size()];
    const std::string who = "ubatch " + std::to_string(threads_[t].ubatch);
    std::vector<PendingOp> pending;
    for (const OpRef& ref : step.instruction->hook)
      if (step.has_layer(ref)) pending.push_back(resolve(threads_[t], step, ref));
    if (pending.empty()) return;
    if (!next.hook.empty()) {
      linear_.problems.push_back({"F7", who + " registers " + name(pending.front()) + " with ubatch " +
                                            std::to_string(next.ubatch) + ", whose slot still holds " +
                                            name(next.hook.front()) + ": that one never runs"});
    } else if (next.exited) {
      linear_.problems.push_back({"F7", who + " registers " + name(pending.front()) + " with ubatch " +
                                            std::to_string(next.ubatch) + ", which has already exited: it never runs"});
    }
    next.hook = std::move(pending);
    next.hook_from = who;
  }

  void run_hook(std::size_t t) {
    const std::vector<PendingOp> pending = std::exchange(threads_[t].hook, {});
    for (const PendingOp& op : pending) launch(t, op);
  }

  void host_wait(std::size_t t, const PendingOp& pending, bool notify) {
    const std::uint32_t op = instances_.at(pending.op, pending.ubatch, pending.layer);
    if (op == kNone) {
      linear_.problems.push_back({"F2", "ubatch " + std::to_string(threads_[t].ubatch) + " waits on the host for " +
                                            name(pending) +
                                            ", which was not launched before: the baton never moves on"});
      return;
    }
    push_host(Verb::HostWait, t, op, notify);
  }

  void leave(std::size_t t) {
    push_host(Verb::Exit, t);
    run_hook(t);
    threads_[t].exited = true;
  }

  void report_deadlock(std::size_t current, std::size_t next) {
    std::string text = "ubatch " + std::to_string(threads_[next].ubatch) + " has exited after " +
                       yields(threads_[next]) + ", so nobody passes the baton on:";
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].exited) continue;
      const std::size_t before = (t + threads_.size() - 1) % threads_.size();
      text += " ubatch " + std::to_string(threads_[t].ubatch) + " waits at its yield " +
              std::to_string(threads_[t].yields) + " for ubatch " + std::to_string(threads_[before].ubatch);
      if (threads_[t].last_op != kNone) text += " since " + describe(plan_, linear_.ops[threads_[t].last_op]);
      text += ";";
    }
    text.back() = '.';
    if (threads_[current].exited)
      text += " The last to run was ubatch " + std::to_string(threads_[current].ubatch) + ", which exited.";
    linear_.problems.push_back({"F2", text});
  }

  void report_leftovers() {
    for (const State& thread : threads_) {
      if (thread.hook.empty()) continue;
      linear_.problems.push_back({"F7", "the hook " + name(thread.hook.front()) + " that " + thread.hook_from +
                                            " left for ubatch " + std::to_string(thread.ubatch) + " never runs"});
    }
  }

  static std::string yields(const State& thread) {
    return std::to_string(thread.yields) + (thread.yields == 1 ? " yield" : " yields");
  }

  std::string name(const PendingOp& op) const {
    LinearOp linear;
    linear.op = op.op;
    linear.ubatch = static_cast<std::uint8_t>(op.ubatch);
    linear.layer = op.layer;
    return describe(plan_, linear);
  }

  const Plan& plan_;
  Instances instances_;
  std::vector<std::uint32_t> last_record_;  ///< by thread, then event
  std::vector<State> threads_;
  std::uint32_t calls_ = 0;
  Linear linear_;
};

}  // namespace

Linear linearise(const Plan& plan, int class_index) {
  return Ring(plan, plan.classes[static_cast<std::size_t>(class_index)]).run();
}

std::string describe(const Plan& plan, const LinearOp& op) {
  std::string text = plan.ops[op.op].name + " of ubatch " + std::to_string(op.ubatch);
  if (op.layer >= 0) text += ", layer " + std::to_string(op.layer);
  return text;
}

}  // namespace dbo
