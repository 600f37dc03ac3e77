// Why lanes are idle: every nanosecond of idle time of a rank's lanes gets a cause.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/engine/engine.h"

namespace dbo {

enum class BubbleCause : std::uint8_t {
  Host,   ///< the host had not launched the next op
  Wire,   ///< data was on its way, or a comm kernel was moving it
  Peer,   ///< another rank had not sent or started yet
  Order,  ///< the next op needs one of the other lane, or one behind it there
  Gap,    ///< gaps between the nodes of a graph
  Drain   ///< nothing left for the lane to do
};
inline constexpr int kBubbleCauses = 6;

std::string_view cause_name(BubbleCause cause);

struct Bubble {
  LaneId lane = 0;
  BubbleCause cause = BubbleCause::Host;
  std::int64_t ns = 0;
};

/// Idle time of each lane of a recorded group until the step ends, by cause; a receive's waiting counts as idle. The
/// sum over causes is the step minus the lane's busy time. Rows without time are left out; lanes that never work too.
std::vector<Bubble> find_bubbles(const Plan& plan, const EngineResult& result, const std::vector<int>& recorded,
                                 int group);

}  // namespace dbo
