// Work shared out among threads.
#pragma once

#include <cstdint>
#include <functional>

namespace dbo {

/// The number of threads that `--jobs` means: 0 is all cores. Throws InputError outside 0 to 1024.
std::size_t thread_count(std::int64_t jobs);

/// Calls `work` once for each index below `count`, on `threads` threads, this one among them. The first exception ends
/// the rest early and is thrown here.
void run_jobs(std::size_t count, std::size_t threads, const std::function<void(std::size_t index)>& work);

}  // namespace dbo
