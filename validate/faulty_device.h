// A device that does what a fault says instead of what it is told.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "runtime/device.h"
#include "validate/fault.h"

namespace dbo::validate {

/// Passes everything on to `inner`, but for the calls of the fault. A moved op is `inner`'s matter: it must have been
/// made with `given_order`.
class FaultyDevice final : public runtime::Device {
 public:
  /// `linear` is the plan's own order. `overwrite` does what `freed_after` says, behind the launch of that op; may be
  /// empty where the fault has none. `linear`, `fault` and `inner` must outlive the device.
  FaultyDevice(runtime::Device& inner, const Linear& linear, const Fault& fault, std::function<void()> overwrite);

  void bind_thread() override { inner_.bind_thread(); }
  void begin_step() override;
  void launch(std::uint32_t plan_op) override;
  void record(int thread, EventId event, LaneId lane) override;
  void wait(int thread, EventId event, LaneId lane) override;
  void host_wait(std::uint32_t plan_op, bool notify) override;
  void end_step() override { inner_.end_step(); }
  void abandon_step() noexcept override { inner_.abandon_step(); }
  void stop() noexcept override { inner_.stop(); }

 private:
  runtime::Device& inner_;
  const Linear& linear_;
  std::set<std::uint32_t> late_, dropped_waits_, dropped_ops_;
  std::uint32_t freed_after_;
  std::function<void()> overwrite_;
  // Within a step: calls so far, which is their place in the plan's order, and late records still to be made.
  std::uint32_t records_ = 0, waits_ = 0;
  std::set<std::uint32_t> held_;
};

}  // namespace dbo::validate
