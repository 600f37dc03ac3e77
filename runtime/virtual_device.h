// A device without a GPU: it notes what real threads enqueue, with its lane, and can play the queues in virtual time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/device.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo::runtime {

/// What the virtual devices of several ranks share: which dispatch and combine calls every rank has launched.
class VirtualWorld {
 public:
  explicit VirtualWorld(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }
  void launched(std::uint32_t call);
  /// Returns when every rank has launched all calls below `calls`; false when `stopped` became true first.
  bool wait_launched(std::uint32_t calls, const std::atomic<bool>& stopped);
  void wake();
  void reset();  ///< before the next step, while no rank is in one

 private:
  bool all_launched(std::uint32_t calls) const;

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> launches_;  ///< by call: ranks that launched it
};

/// An item of a lane's queue as the device was given it.
struct VirtualItem {
  QueueItem::Kind kind = QueueItem::Kind::Op;
  std::uint32_t index = 0;      ///< op: plan_op; record, wait: how many came before it on this device
  int thread = 0;               ///< record, wait
  EventId event = 0;            ///< record, wait
  std::uint32_t bound = kNone;  ///< wait: the record it found, kNone: none
};

class VirtualDevice final : public Device {
 public:
  /// `world` null: this rank alone. All arguments must outlive the device.
  VirtualDevice(const Plan& plan, const Linear& linear, VirtualWorld* world = nullptr);

  void begin_step() override;
  void launch(std::uint32_t plan_op) override;
  void record(int thread, EventId event, LaneId lane) override;
  void wait(int thread, EventId event, LaneId lane) override;
  void host_wait(std::uint32_t plan_op, bool notify) override;
  void end_step() override;
  void abandon_step() noexcept override;
  void stop() noexcept override;

  /// Called in each launch, by the thread that launches. May throw: that is how tests inject errors.
  void on_launch(std::function<void(std::uint32_t plan_op)> callback) { on_launch_ = std::move(callback); }

  const std::vector<std::vector<VirtualItem>>& queues() const { return queues_; }
  const Plan& plan() const { return plan_; }
  const Linear& linear() const { return linear_; }
  bool in_step() const { return in_step_; }

 private:
  class Guard;

  const Plan& plan_;
  const Linear& linear_;
  VirtualWorld* world_;
  std::vector<std::vector<VirtualItem>> queues_;         ///< by lane
  std::vector<std::vector<std::uint32_t>> last_record_;  ///< by thread, event
  std::uint32_t records_ = 0, waits_ = 0, calls_ = 0;
  bool in_step_ = false;
  std::atomic<int> users_{0};
  std::atomic<bool> stopped_{false};
  std::function<void(std::uint32_t)> on_launch_;
};

/// Where the queues differ from the plan's linear order, first difference; empty when they are the same.
std::string compare_queues(const VirtualDevice& device);

struct VirtualTimes {
  Ns shortest{1'000}, longest{100'000};  ///< of an op or a wire, drawn per op
  std::uint64_t seed = 0;
  std::map<std::uint32_t, Ns> longer = {};  ///< by plan_op, on every rank: on top of what is drawn
};

/// Plays what the devices of all ranks (index = rank) were given: lanes in order, waits met, a receive once every
/// rank's send of the call is over and a drawn wire time has passed, a comm kernel once every rank has begun it. Throws
/// FindingError naming the heads of all lanes when nothing can go on.
Trace play_virtual(const std::vector<const VirtualDevice*>& devices, const VirtualTimes& times);

}  // namespace dbo::runtime
