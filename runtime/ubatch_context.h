// The state machine of ubatches: what one host thread may do while it holds the baton, for programs of a plan and for
// layer code written by hand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/ring.h"

namespace dbo::runtime {

/// Work that a thread leaves to the next thread of the ring: the receive of what it has sent.
using Hook = std::function<void()>;

class UbatchGroup;

/// One host thread's view of the step: its baton, its events, its hook slot and (for layer code) its current lane.
/// Every call must come from the context's own thread while it holds the baton; that is checked in every build.
class UbatchContext {
 public:
  UbatchContext(UbatchGroup& group, int thread, int ubatch) : group_(group), thread_(thread), ubatch_(ubatch) {}
  UbatchContext(const UbatchContext&) = delete;
  UbatchContext& operator=(const UbatchContext&) = delete;

  /// The context the calling thread runs in, or nullptr outside of one.
  static UbatchContext* current();

  int thread() const { return thread_; }  ///< position in the ring
  int ubatch() const { return ubatch_; }
  Device& device() const;

  /// Hands the baton to the next thread and waits to get it back.
  void yield();
  void record(EventId event, LaneId lane);
  void wait(EventId event, LaneId lane);
  /// Stores `hook` in the next thread's slot. FindingError (F7) when one is there already or that thread has finished.
  void register_hook(Hook hook);
  /// Runs and clears the hook in this thread's slot; does nothing when there is none.
  void run_hook();
  /// Leaves the step: runs a pending hook. The ring wakes the next thread once the body has returned.
  void exit();

  // What layer code calls, through the free functions below. Its events lie behind those of the plan.
  LaneId lane() const { return lane_; }
  void switch_to(LaneId lane);
  void switch_to_synced(LaneId lane);
  void yield_and_switch(LaneId from, LaneId to);
  void record_previous();
  void wait_previous();

 private:
  friend class UbatchGroup;
  enum class State { Parked, Running, Exited };

  void check_running() const;
  EventId done_event(LaneId lane) const;

  UbatchGroup& group_;
  int thread_;
  int ubatch_;
  LaneId lane_ = kComputeLane;
  State state_ = State::Parked;
  Hook hook_;
};

struct UbatchOptions {
  Ns spin = kDefaultSpin;
  /// Events of a plan: 0 to plan_events - 1 are named by programs, the three behind them serve layer code.
  int plan_events = 0;
  /// What a thread did last, for messages. May be empty.
  std::function<std::string(int thread)> last_op;
};

/// The events a device must offer each thread: those of the plan and layer code's own three.
constexpr int events_per_thread(int plan_events) {
  return plan_events + 3;
}

/// The contexts of one rank's step and the ring they take turns in.
class UbatchGroup {
 public:
  /// One thread for each entry of `ubatches` (what its context is called), in ring order. `device` must outlive this.
  UbatchGroup(Device& device, std::vector<int> ubatches, UbatchOptions options);

  /// Runs `body` in every context, thread 0 first, inside `begin_step` and `end_step` of the device. Errors as
  /// Ring::run; a hook that nobody ran is a FindingError (F7). After an error the group stays stopped.
  void run(const std::function<void(UbatchContext&)>& body);
  /// As Ring::stop.
  void stop(std::exception_ptr error) noexcept { ring_->stop(std::move(error)); }

  int size() const { return static_cast<int>(contexts_.size()); }

 private:
  friend class UbatchContext;

  std::string where(int thread) const;
  void check_hooks() const;

  Device& device_;
  UbatchOptions options_;
  std::vector<std::unique_ptr<UbatchContext>> contexts_;
  std::unique_ptr<Ring> ring_;  // last: its threads use the rest
};

// For layer code, which runs with and without ubatches: outside a context each of these does nothing.

bool in_ubatch();                    ///< whether the calling thread runs in a context
int current_ubatch();                ///< 0 outside
LaneId current_lane();               ///< kComputeLane outside
void ubatch_yield();                 ///< no change of lane
void switch_to_comm();               ///< without any wait
void switch_to_compute();            ///< without any wait
void switch_to_comm_synced();        ///< comm waits for what compute has been given so far
void switch_to_compute_synced();     ///< compute waits for what comm has been given so far
void yield_and_switch_to_comm();     ///< record on compute, yield, then comm waits for that record
void yield_and_switch_to_compute();  ///< record on comm, yield, then compute waits for that record
void record_previous_event();  ///< what a later communication must wait for; before the yield, or it waits too much
void wait_previous_event();    ///< the current lane waits for it
/// Into the next context. False outside a context: nobody will run the hook, so the caller does the receive itself.
[[nodiscard]] bool register_recv_hook(Hook hook);
void run_recv_hook();

}  // namespace dbo::runtime
