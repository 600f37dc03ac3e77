// Numbers that depend only on a seed and an index, the same on the GPU and in a CPU reference. Plain C++.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DBO_HOST_DEVICE __host__ __device__
#else
#define DBO_HOST_DEVICE
#endif

namespace dbo::kernels {

/// What random numbers are stored as.
enum class NumberType : std::uint8_t { Bf16, Float, E4m3 };
constexpr int number_bytes(NumberType type) {
  return type == NumberType::Float ? 4 : type == NumberType::Bf16 ? 2 : 1;
}

/// A 64-bit mix of seed and index (the finaliser of SplitMix64, twice).
DBO_HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  for (int i = 0; i < 2; ++i) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
  }
  return z;
}

/// One of 65536 values, evenly over [-1, 1): exact in fp32.
DBO_HOST_DEVICE constexpr float uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<float>(static_cast<std::int32_t>(mix(seed, index) >> 48) - 32768) * (1.0f / 32768.0f);
}

}  // namespace dbo::kernels
