#include "runtime/cuda/hang_guard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// What ncclCommAbort gets on a GPU that may never answer.
constexpr std::chrono::seconds kAbortTime{5};

}  // namespace

HangGuard::HangGuard(Ns deadline)
    : deadline_(deadline),
      watchdog_(
          deadline, [this] { return probe(); },
          [this] {
            fail("hang: no progress for " +
                 std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(deadline_).count()) + " ms");
          }) {}

std::shared_ptr<void> HangGuard::watch(Rank rank) {
  auto watched = std::make_shared<Rank>(std::move(rank));
  const std::lock_guard lock(mutex_);
  ranks_.push_back(watched);
  return std::shared_ptr<void>(nullptr, [this, watched](void*) {
    const std::lock_guard inner(mutex_);
    std::erase(ranks_, watched);
  });
}

void HangGuard::enter() {
  const std::lock_guard lock(sections_mutex_);
  if (++sections_ == 1) watchdog_.arm();
}

void HangGuard::leave() {
  const std::lock_guard lock(sections_mutex_);
  if (--sections_ == 0) watchdog_.disarm();
}

std::uint64_t HangGuard::probe() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& rank : ranks_) sum += rank->progress();
  return sum;
}

void HangGuard::fail(const std::string& why) {
  std::fprintf(stderr, "dbo-gpu: %s\n", why.c_str());
  std::vector<std::shared_ptr<Rank>> ranks;
  {
    const std::lock_guard lock(mutex_);
    ranks = ranks_;
  }
  for (const auto& rank : ranks) std::fputs(rank->report().c_str(), stderr);
  std::fflush(stderr);
  std::atomic<std::size_t> left{ranks.size()};
  for (const auto& rank : ranks) {
    std::thread([&left, rank] {
      if (rank->abort) rank->abort();
      --left;
    }).detach();
  }
  const auto give_up = std::chrono::steady_clock::now() + kAbortTime;
  while (left > 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  _exit(static_cast<int>(Exit::Gpu));
}

}  // namespace dbo::runtime
