// What a rank's host threads enqueue on: the seam between the program of a plan and a machine. Two implementations: the
// virtual device (no GPU) and the CUDA one.
#pragma once

#include <cstdint>

#include "sim/plan/plan.h"

namespace dbo::runtime {

/// One rank's lanes and events. Calls between `begin_step` and `end_step` come from the holder of the baton, one at a
/// time, from several threads; `begin_step` and `end_step` from the rank's main thread; `stop` from any.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// Once on every host thread that will use the device, before its first call.
  virtual void bind_thread() {}
  /// Starts a step: every lane forks from `compute`.
  virtual void begin_step() = 0;
  /// Enqueues one op (an index into Linear::ops) on its lane. Never waits for it.
  virtual void launch(std::uint32_t plan_op) = 0;
  /// Records the event `event` of thread `thread` of the ring at the lane's end.
  virtual void record(int thread, EventId event, LaneId lane) = 0;
  /// What is enqueued on `lane` from here on waits for the event's latest record; a never-recorded event is no wait.
  virtual void wait(int thread, EventId event, LaneId lane) = 0;
  /// Blocks the calling thread until the op has ended, or (`notify`) until its counts are known. Throws Stopped when
  /// the step is stopped meanwhile.
  virtual void host_wait(std::uint32_t plan_op, bool notify) = 0;
  /// Ends a step: every lane joins `compute`. The step's work may still run.
  virtual void end_step() = 0;
  /// Instead of `end_step`, after an error: leaves the device so that it can be destroyed. Must not throw or block.
  virtual void abandon_step() noexcept = 0;
  /// Ends every `host_wait`, now and later.
  virtual void stop() noexcept = 0;
};

}  // namespace dbo::runtime
