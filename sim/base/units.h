// Time as the whole project counts it: integer nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dbo {

/// A length of time. Never floating point: costs are rounded to Ns once, where they are made.
using Ns = std::chrono::duration<std::int64_t, std::nano>;

/// The clock of a step: time points count from the step's start on rank 0.
struct StepClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = Ns;
  using time_point = std::chrono::time_point<StepClock, Ns>;
  static constexpr bool is_steady = true;
};
using SimTime = StepClock::time_point;

constexpr SimTime at(std::int64_t ns) {
  return SimTime{Ns{ns}};
}

/// Microseconds to the nearest nanosecond, halves away from zero; beyond +-1e15 (31 years), that. `us` must be finite.
Ns ns_from_us(double us);

/// `ns` as microseconds with exactly three decimals ("12.345"), from integers: exact in every reader.
std::string us_text(std::int64_t ns);

/// The same into a buffer of at least 24 characters; returns the number of characters written.
int write_us(char* out, std::int64_t ns);

/// `a / b` rounded up, for b > 0 and a >= 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace dbo
