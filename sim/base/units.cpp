#include "sim/base/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace dbo {

constexpr double kMostUs = 1e15;

Ns ns_from_us(double us) {
  return Ns{std::llround(std::clamp(us, -kMostUs, kMostUs) * 1000.0)};
}

int write_us(char* out, std::int64_t ns) {
  char* p = out;
  std::uint64_t value = static_cast<std::uint64_t>(ns);
  if (ns < 0) {
    *p++ = '-';
    value = 0 - value;
  }
  p = std::to_chars(p, p + 20, value / 1000).ptr;
  const auto rest = static_cast<unsigned>(value % 1000);
  *p++ = '.';
  *p++ = static_cast<char>('0' + rest / 100);
  *p++ = static_cast<char>('0' + rest / 10 % 10);
  *p++ = static_cast<char>('0' + rest % 10);
  return static_cast<int>(p - out);
}

std::string us_text(std::int64_t ns) {
  char buffer[32];
  return {buffer, static_cast<std::size_t>(write_us(buffer, ns))};
}

}  // namespace dbo
