// Runs the programs of a plan: real threads, one per entry of the ring, each instruction checked against the plan's
// linear order before it reaches the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/ubatch_context.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::runtime {

struct StepOptions {
  Ns spin = kDefaultSpin;
  /// Refuse a plan whose order has problems before anything is enqueued. Without it the threads run into them and the
  /// ring reports what it sees.
  bool refuse_unsound = true;
};

/// One rank's step. Keeps its threads from step to step. `plan`, `linear` and `device` must outlive it.
class StepRunner {
 public:
  /// `linear` is `linearise(plan, class_index)`. Throws FindingError when it has problems (see StepOptions).
  StepRunner(const Plan& plan, int class_index, const Linear& linear, Device& device, StepOptions options = {});

  /// Enqueues one step. Errors as UbatchGroup::run; InternalError when a thread does not do what the order says.
  void run();

  /// Ends a running step on every thread, from any thread; `run` throws `error`.
  void stop(std::exception_ptr error) noexcept { group_->stop(std::move(error)); }

  /// The op the device is being given (kNone between ops), for messages of the device's errors.
  std::uint32_t current_op() const { return current_op_.load(std::memory_order_relaxed); }

 private:
  void run_thread(UbatchContext& context);
  void launch(UbatchContext& context, OpId op, int ubatch, std::int32_t layer);
  const HostStep& advance(Verb verb, const UbatchContext& context);

  const Plan& plan_;
  const RankClass& class_;
  const Linear& linear_;
  // Touched by the baton's holder only.
  std::uint32_t next_step_ = 0;
  std::vector<std::uint32_t> last_op_;  ///< by thread
  std::atomic<std::uint32_t> current_op_{kNone};
  std::unique_ptr<UbatchGroup> group_;
};

/// "F2: ...; F7: ...": the problems of an order in one line, for an error message.
std::string problems_text(const Linear& linear);

}  // namespace dbo::runtime
