// fp8 numbers with 4 bits of exponent (bias 7) and 3 of fraction on the CPU: no infinity, largest 448.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace dbo::fp8 {

/// Round to nearest even, saturating at 448.
inline std::uint8_t to_e4m3(float x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.0f) return sign | 0x7e;
  std::uint32_t bits = 0;
  if (magnitude < 0.015625f) {
    // Below 2^-6: steps of 2^-9, which is the last bit of a float near 2^14; the addition rounds to even.
    const float shifted = magnitude + 16384.0f;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<std::uint8_t>(sign | (bits & 0xffu));
  }
  // Keep 3 of 23 fraction bits, rounded to even (a carry raises the exponent), and change the bias from 127 to 7.
  std::memcpy(&bits, &magnitude, sizeof bits);
  bits += 0x7ffffu + ((bits >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((bits >> 20) - (120u << 3)));
}

inline float from_e4m3(std::uint8_t x) {
  const int exponent = (x >> 3) & 15, fraction = x & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (x & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace dbo::fp8
