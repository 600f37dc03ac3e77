// A 64-bit content hash and a counter-based random generator: the same numbers on every compiler and machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dbo {

/// FNV-1a over the bytes.
std::uint64_t content_hash(std::string_view bytes);

/// Sixteen lower-case hexadecimal digits.
std::string hash_text(std::uint64_t hash);

/// A well-mixed 64-bit value of `seed` and `counter` (the finaliser of SplitMix64 applied to both): random access, so
/// that the value of one request or expert does not depend on how many others there are.
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15ULL * (counter + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// A whole number in [0, bound), bound >= 1, by the high half of a 64 x 64 product (bias below bound / 2^64).
constexpr std::uint64_t mix_below(std::uint64_t seed, std::uint64_t counter, std::uint64_t bound) {
  const std::uint64_t value = mix(seed, counter);
  const std::uint64_t value_low = value & 0xFFFFFFFFULL, value_high = value >> 32;
  const std::uint64_t bound_low = bound & 0xFFFFFFFFULL, bound_high = bound >> 32;
  const std::uint64_t middle = value_high * bound_low + ((value_low * bound_low) >> 32);
  const std::uint64_t middle_low = (middle & 0xFFFFFFFFULL) + value_low * bound_high;
  return value_high * bound_high + (middle >> 32) + (middle_low >> 32);
}

}  // namespace dbo
