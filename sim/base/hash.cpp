#include "sim/base/hash.h"

namespace dbo {

std::uint64_t content_hash(std::string_view bytes) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

std::string hash_text(std::uint64_t hash) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) text[static_cast<std::size_t>(i)] = kHex[hash & 15];
  return text;
}

std::uint64_t mix_below(std::uint64_t seed, std::uint64_t counter, std::uint64_t bound) {
  const std::uint64_t value = mix(seed, counter);
  const std::uint64_t value_low = value & 0xFFFFFFFFULL, value_high = value >> 32;
  const std::uint64_t bound_low = bound & 0xFFFFFFFFULL, bound_high = bound >> 32;
  const std::uint64_t middle = value_high * bound_low + ((value_low * bound_low) >> 32);
  const std::uint64_t middle_low = (middle & 0xFFFFFFFFULL) + value_low * bound_high;
  return value_high * bound_high + (middle >> 32) + (middle_low >> 32);
}

}  // namespace dbo
