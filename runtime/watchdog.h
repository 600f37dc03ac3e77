// Notices that a rank makes no progress any more, and says where every lane stands.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/units.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::runtime {

/// Calls `on_hang` once when the value of `probe` has not changed for `deadline` while armed. Both run on the
/// watchdog's own thread; `probe` must not block.
class Watchdog {
 public:
  Watchdog(Ns deadline, std::function<std::uint64_t()> probe, std::function<void()> on_hang);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void arm();     ///< the deadline counts from here, and from every change
  void disarm();  ///< does not wait for a running `on_hang`

 private:
  void watch();

  Ns deadline_;
  std::function<std::uint64_t()> probe_;
  std::function<void()> on_hang_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false, quit_ = false;
  std::uint64_t arms_ = 0;
  std::jthread thread_;
};

/// Where one rank's lanes stand, for a message: per lane the last `shown` ops that ended and the first that has not.
/// `ended` [lanes]: ops of the lane that have ended in this step.
std::string progress_report(const Plan& plan, const Linear& linear, int rank, const std::vector<std::uint32_t>& ended,
                            int shown = 3);

}  // namespace dbo::runtime
