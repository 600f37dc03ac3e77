#include "tools/jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/error.h"

namespace dbo {

std::size_t thread_count(std::int64_t jobs) {
  constexpr std::int64_t kMost = 1024;
  if (jobs < 0 || jobs > kMost)
    throw InputError("--jobs: must be from 1 to 1024, or 0 for all cores, is " + std::to_string(jobs));
  return jobs > 0 ? static_cast<std::size_t>(jobs) : std::max(1u, std::thread::hardware_concurrency());
}

void run_jobs(std::size_t count, std::size_t threads, const std::function<void(std::size_t index)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < count && !failed; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      failed = true;
    }
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace dbo
