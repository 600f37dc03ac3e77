// How a kernel is to be launched, worked out on the host. Plain C++, so that tests without a GPU use it too.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/a2a/call.h"

namespace dbo::kernels {

/// Shared memory a block may have on sm_90.
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;
/// More than half of an SM's shared memory: no second block fits on the SM, so that blocks are SMs.
inline constexpr std::size_t kWholeSmBytes = 120 * 1024;

template <typename Params>
struct LaunchPlan {
  Params params;
  int blocks = 1, threads = 32;
  std::size_t shared_bytes = 0;
};

}  // namespace dbo::kernels
