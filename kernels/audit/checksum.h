// What lies in stretches of device memory, in a word each: whether anybody has written there since one last looked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dbo::kernels {

/// A stretch and the guard behind it. Both 16-byte aligned, whole multiples of 16 bytes.
struct ChecksumArea {
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t guard_bytes = 0;  ///< right behind the data; should be kGuardByte everywhere
};
inline constexpr int kGuardByte = 0xFF;

struct ChecksumResult {
  std::uint64_t sum = 0;          ///< of the data: depends on every word and its place, on nothing else
  std::uint64_t guard_wrong = 0;  ///< 16-byte words of the guard that are not as they should be
};

struct ChecksumArgs {
  const ChecksumArea* areas = nullptr;  ///< device [count]
  ChecksumResult* results = nullptr;    ///< device [count], cleared by the launch
  int count = 0;
};
/// Reads all areas once. cudaErrorInvalidValue for missing pointers or a count outside of 1 to 65535.
[[nodiscard]] cudaError_t launch_checksums(const ChecksumArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
