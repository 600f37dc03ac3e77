// Ends the process when its GPUs stop making progress: a hung kernel or a dead peer must not hang the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/watchdog.h"

namespace dbo::runtime {

inline constexpr Ns kHangDeadline{20'000'000'000};

/// Watches the ranks of this process. When none of their progress words has changed for the deadline, it prints where
/// every lane stands, lets each rank abort its communicator (for at most a few seconds) and leaves with exit code 3
/// without running destructors, which would wait for the GPU.
class HangGuard {
 public:
  explicit HangGuard(Ns deadline = kHangDeadline);

  /// What is watched of one rank. All three are called from the guard's thread and must not block, but for `abort`.
  struct Rank {
    std::function<std::uint64_t()> progress;  ///< any number that changes while there is progress
    std::function<std::string()> report;
    std::function<void()> abort;  ///< may be empty
  };
  /// The handle ends the watch when it goes; the rank's memory must outlive it.
  [[nodiscard]] std::shared_ptr<void> watch(Rank rank);

  /// The deadline runs while at least one guarded section is entered.
  class Section {
   public:
    explicit Section(HangGuard& guard) : guard_(guard) { guard_.enter(); }
    ~Section() { guard_.leave(); }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    HangGuard& guard_;
  };

  /// Ends the process as above, now, and says `why`.
  [[noreturn]] void fail(const std::string& why);

 private:
  void enter();
  void leave();
  std::uint64_t probe();

  Ns deadline_;
  // Two locks, since the watchdog asks for progress under its own: sections, then watchdog, then ranks.
  std::mutex sections_mutex_;
  int sections_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  Watchdog watchdog_;
};

}  // namespace dbo::runtime
