#include "runtime/watchdog.h"

#include <algorithm>
#include <chrono>

namespace dbo::runtime {

Watchdog::Watchdog(Ns deadline, std::function<std::uint64_t()> probe, std::function<void()> on_hang)
    : deadline_(deadline), probe_(std::move(probe)), on_hang_(std::move(on_hang)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  const std::lock_guard lock(mutex_);
  quit_ = true;
  changed_.notify_all();
}

void Watchdog::arm() {
  const std::lock_guard lock(mutex_);
  armed_ = true;
  ++arms_;
  changed_.notify_all();
}

void Watchdog::disarm() {
  const std::lock_guard lock(mutex_);
  armed_ = false;
  changed_.notify_all();
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  // Often enough that the deadline is met within a tenth of itself, rarely enough to cost nothing.
  const Ns pause = std::clamp(deadline_ / 10, Ns{1'000'000}, Ns{100'000'000});
  std::unique_lock lock(mutex_);
  while (!quit_) {
    changed_.wait(lock, [&] { return armed_ || quit_; });
    std::uint64_t arms = arms_;
    std::uint64_t seen = probe_();
    Clock::time_point since = Clock::now();
    while (armed_ && !quit_) {
      changed_.wait_for(lock, pause, [&] { return !armed_ || quit_ || arms_ != arms; });
      const std::uint64_t value = probe_();
      if (value != seen || arms_ != arms) {
        seen = value;
        arms = arms_;
        since = Clock::now();
      } else if (armed_ && Clock::now() - since >= deadline_) {
        armed_ = false;
        lock.unlock();
        on_hang_();
        lock.lock();
      }
    }
  }
}

std::string progress_report(const Plan& plan, const Linear& linear, int rank, const std::vector<std::uint32_t>& ended,
                            int shown) {
  std::string text;
  for (std::size_t lane = 0; lane < linear.queues.size(); ++lane) {
    std::vector<std::uint32_t> ops;
    for (const QueueItem& item : linear.queues[lane]) {
      if (item.kind == QueueItem::Kind::Op) ops.push_back(item.index);
    }
    if (ops.empty()) continue;
    const std::size_t done = std::min<std::size_t>(lane < ended.size() ? ended[lane] : 0, ops.size());
    text += "rank " + std::to_string(rank) + ", lane " + plan.lanes[lane] + ": " + std::to_string(done) + " of " +
            std::to_string(ops.size()) + " ops ended";
    const std::size_t first = done > static_cast<std::size_t>(shown) ? done - static_cast<std::size_t>(shown) : 0;
    for (std::size_t i = first; i < done; ++i) text += (i == first ? ": " : "; ") + describe(plan, linear.ops[ops[i]]);
    if (done < ops.size()) text += "; not ended: " + describe(plan, linear.ops[ops[done]]);
    text += "\n";
  }
  return text;
}

}  // namespace dbo::runtime
