#include "runtime/step.h"

#include "sim/base/error.h"
#include "sim/plan/program_cursor.h"

namespace dbo::runtime {

std::string problems_text(const Linear& linear) {
  std::string text;
  for (const OrderProblem& problem : linear.problems) {
    if (!text.empty()) text += "; ";
    text += problem.code + " " + problem.text;
  }
  return text;
}

StepRunner::StepRunner(const Plan& plan, int class_index, const Linear& linear, Device& device, StepOptions options)
    : plan_(plan), class_(plan.classes[static_cast<std::size_t>(class_index)]), linear_(linear) {
  if (options.refuse_unsound && !linear.problems.empty()) {
    throw FindingError("the plan cannot run: " + problems_text(linear));
  }
  std::vector<int> ubatches;
  for (const int thread : class_.threads) ubatches.push_back(plan.threads[static_cast<std::size_t>(thread)].ubatch);
  last_op_.assign(ubatches.size(), kNone);
  UbatchOptions ubatch_options;
  ubatch_options.spin = options.spin;
  ubatch_options.plan_events = static_cast<int>(plan.events.size());
  ubatch_options.last_op = [this](int thread) {
    const std::uint32_t op = last_op_[static_cast<std::size_t>(thread)];
    return op == kNone ? std::string() : describe(plan_, linear_.ops[op]);
  };
  group_ = std::make_unique<UbatchGroup>(device, std::move(ubatches), std::move(ubatch_options));
}

void StepRunner::run() {
  next_step_ = 0;
  last_op_.assign(last_op_.size(), kNone);
  group_->run([this](UbatchContext& context) { run_thread(context); });
  DBO_CHECK(next_step_ == linear_.host.size(), "the threads ended before the plan's order did");
}

const HostStep& StepRunner::advance(Verb verb, const UbatchContext& context) {
  DBO_CHECK(next_step_ < linear_.host.size(), "a thread goes on where the plan's order ends");
  const HostStep& step = linear_.host[next_step_++];
  DBO_CHECK(step.verb == verb && step.thread == context.thread(), "a thread does what the plan's order does not say");
  return step;
}

void StepRunner::launch(UbatchContext& context, OpId op, int ubatch, std::int32_t layer) {
  const HostStep& step = advance(Verb::Launch, context);
  const LinearOp& expected = linear_.ops[step.index];
  DBO_CHECK(expected.op == op && expected.ubatch == ubatch && expected.layer == layer,
            "a thread launches another op than the plan's order says");
  last_op_[static_cast<std::size_t>(context.thread())] = step.index;
  current_op_.store(step.index, std::memory_order_relaxed);
  context.device().launch(step.index);
  current_op_.store(kNone, std::memory_order_relaxed);
}

void StepRunner::run_thread(UbatchContext& context) {
  const Thread& thread =
      plan_.threads[static_cast<std::size_t>(class_.threads[static_cast<std::size_t>(context.thread())])];
  const auto ubatch_of = [&](const OpRef& ref) { return ref.ubatch < 0 ? thread.ubatch : int{ref.ubatch}; };
  ProgramCursor cursor(plan_, thread);
  for (;;) {
    const ProgramStep step = cursor.next();
    const Verb verb = step.instruction == nullptr ? Verb::Exit : step.instruction->verb;
    switch (verb) {
      case Verb::Launch:
        launch(context, step.instruction->op.op, ubatch_of(step.instruction->op), step.layer(step.instruction->op));
        break;
      case Verb::Record: {
        const LinearRecord& record = linear_.records[advance(verb, context).index];
        DBO_CHECK(record.event == step.instruction->event && record.lane == step.instruction->lane,
                  "a thread records another event than the plan's order says");
        context.record(step.instruction->event, step.instruction->lane);
        break;
      }
      case Verb::Wait: {
        const LinearWait& wait = linear_.waits[advance(verb, context).index];
        DBO_CHECK(wait.event == step.instruction->event && wait.lane == step.instruction->lane,
                  "a thread waits for another event than the plan's order says");
        context.wait(step.instruction->event, step.instruction->lane);
        break;
      }
      case Verb::Yield:
        advance(verb, context);
        context.yield();
        break;
      case Verb::Hook: {
        advance(verb, context);
        struct Later {
          OpId op;
          int ubatch;
          std::int32_t layer;
        };
        std::vector<Later> later;
        for (const OpRef& ref : step.instruction->hook) {
          if (step.has_layer(ref)) later.push_back({ref.op, ubatch_of(ref), step.layer(ref)});
        }
        if (later.empty()) break;
        context.register_hook([this, later = std::move(later)] {
          for (const Later& op : later) launch(*UbatchContext::current(), op.op, op.ubatch, op.layer);
        });
        break;
      }
      case Verb::RunHook:
        advance(verb, context);
        context.run_hook();
        break;
      case Verb::HostWait: {
        const HostStep& host = advance(verb, context);
        DBO_CHECK(linear_.ops[host.index].op == step.instruction->op.op && host.notify == step.instruction->notify,
                  "a thread waits for another op than the plan's order says");
        current_op_.store(host.index, std::memory_order_relaxed);
        context.device().host_wait(host.index, host.notify);
        current_op_.store(kNone, std::memory_order_relaxed);
        break;
      }
      case Verb::Exit:
        advance(verb, context);
        context.exit();
        return;
      case Verb::Repeat:
      case Verb::Block:
        DBO_CHECK(false, "the program cursor returned a repeat or block");
    }
  }
}

}  // namespace dbo::runtime
