// The baton: host threads of one rank that take turns, one at a time, in a fixed ring that thread 0 leads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/units.h"

namespace dbo::runtime {

/// Unwinds a thread whose step ends because of somebody else's error. Deliberately no std::exception: code between the
/// ring and the program must not swallow it.
struct Stopped {};

/// How long a thread waits for the baton awake. Longer than any host work between two hand-overs of a step, so that
/// steps never park; a thread that parks costs its successor a system call and a wake-up.
inline constexpr Ns kDefaultSpin{500'000};

/// `kDefaultSpin` where every thread of the ring can have a core, else a few microseconds: a thread that spins on a
/// shared core keeps the baton's holder from running.
Ns default_spin(int threads);

struct RingOptions {
  Ns spin = kDefaultSpin;
  /// Runs once on each thread before anything else (selects a GPU, for one). May be empty.
  std::function<void(int thread)> bind;
  /// Runs once, on the thread that stopped the ring, so that blocked device waits end. May be empty.
  std::function<void()> on_stop;
  /// What a thread is and did last, for messages: "ubatch 1, after A1 of ubatch 1, layer 3". May be empty.
  std::function<std::string(int thread)> where;
};

/// N persistent threads and the baton between them. Exactly one of them runs at a time; the order is fixed by the
/// yields alone. `run` may be called again and again; after an error the ring stays stopped and every further `run`
/// throws that first error.
class Ring {
 public:
  Ring(int threads, RingOptions options);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  int size() const { return static_cast<int>(slots_.size()); }
  int next_of(int thread) const { return (thread + 1) % size(); }

  /// Runs `body(thread)` on every thread, thread 0 first; returns when all have returned. The first exception of any of
  /// them, as itself; a FindingError (F2) when the yields of the threads do not match.
  void run(const std::function<void(int thread)>& body);

  /// Hands the baton to the next thread and waits to get it back. Only for the holder, on its own thread.
  void yield(int thread);

  /// Ends the step of every thread with `error` (the first one counts). From any thread, at any time.
  void stop(std::exception_ptr error) noexcept;

  bool holds(int thread) const { return holder_.load(std::memory_order_relaxed) == thread; }
  bool is_stopped() const { return stopped_.load(std::memory_order_acquire); }
  bool is_finished(int thread) const { return states_[static_cast<std::size_t>(thread)].finished; }
  int yields(int thread) const { return states_[static_cast<std::size_t>(thread)].yields; }

 private:
  // A line of its own for each word: the spinner must not slow its neighbours.
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> word{0};
  };
  // Written by the holder of the baton only; handing it on publishes it.
  struct State {
    bool finished = false;
    int yields = 0;
  };

  void work(int thread);
  void give(int thread);
  void take(int thread);
  void finish(int thread);
  std::string where(int thread) const;
  [[noreturn]] void fail_yield(int thread) const;
  [[noreturn]] void fail_finish(int thread) const;

  RingOptions options_;
  std::vector<Slot> slots_;
  std::vector<State> states_;
  std::atomic<int> holder_{-1};
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> running_{0};
  bool quit_ = false;  // published by generation_
  const std::function<void(int)>* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

/// What handing the baton over costs on this machine.
struct HandoverCost {
  Ns median{}, p10{}, p90{};
};

/// Hands the baton round `rounds` times between `threads` threads that do nothing else. `spin` zero measures the parked
/// hand-over: the receiver sleeps and has to be woken.
HandoverCost measure_handover(int threads, int rounds, Ns spin);

}  // namespace dbo::runtime
