// Clocks of different GPUs, aligned by the communication between them.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/trace.h"

namespace dbo {

/// How a rank's clock reads against that of the trace's first rank: reading = true + offset + drift * true.
struct RankClock {
  std::int32_t rank = 0;
  Ns offset{};           ///< at the trace's first op
  double drift_ppm = 0;  ///< millionths: how much faster the clock runs
  Ns residual{};         ///< median distance of single measurements from the line
  int measurements = 0;  ///< exchanges both ranks took part in; below 2 nothing is said
};

/// One entry a rank, the first rank's all zero. Nothing arrives before it was sent: if equal clocks satisfy that for
/// every exchange, the clocks count as equal, since a rank that is late looks much like a clock that is. Otherwise the
/// offset of an exchange is the middle of what it allows, which is right when both directions take equally long, and
/// the line through them is the median of slopes (Theil-Sen), so that single stragglers do not move it.
std::vector<RankClock> measure_clocks(const Trace& trace);

/// The trace with every rank's times in the clock of the first rank. Ranks with fewer than two measurements stay.
Trace align_clocks(const Trace& trace, const std::vector<RankClock>& clocks);

}  // namespace dbo
