// Why lanes are idle, and why what runs on them takes longer than it could: every nanosecond gets a cause.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/engine/engine.h"

namespace dbo {

enum class BubbleCause : std::uint8_t {
  Host,   ///< the host had not launched the next op
  Wire,   ///< data was on its way, or a comm kernel was moving it: exposed communication
  Peer,   ///< another rank had not sent or started yet, or its slower port was not done
  Order,  ///< the next op needs one of the other lane (a send, receive or copy too), or one behind it there
  Gap,    ///< gaps between ops that follow each other
  Drain,  ///< nothing left for the lane to do
  Sms     ///< other kernels held the SMs it needs
};
inline constexpr int kBubbleCauses = 7;

std::string_view cause_name(BubbleCause cause);

struct Bubble {
  LaneId lane = 0;
  BubbleCause cause = BubbleCause::Host;
  std::int64_t ns = 0;
  int rank = -1;  ///< Peer: the rank waited for longest, of ranks that are simulated apart from this one; else -1
};

/// Idle time of each lane of a recorded group until the step ends, by cause; a receive's waiting and a comm kernel's
/// waiting for other ranks count as idle. The sum over causes is the step minus the lane's busy time. Rows without time
/// are left out; lanes that never work too.
std::vector<Bubble> find_bubbles(const Plan& plan, const CostTable& costs, const EngineResult& result,
                                 const std::vector<int>& recorded, int group);

/// By lane: the time in which an op works on it, which waiting for data or for other ranks is not. `bubbles`: all of
/// the group whose order is `linear`.
std::vector<std::int64_t> busy_lanes(const Plan& plan, const Linear& linear, const std::vector<Bubble>& bubbles,
                                     std::int64_t step_ns);

/// Why an op that runs takes longer than it could.
enum class LossCause : std::uint8_t {
  FewSms,     ///< others hold SMs its time is for
  Hbm,        ///< memory bandwidth is shared
  Link,       ///< the scale-up port is
  Nic,        ///< the NIC is
  Beside,     ///< what overlap costs beyond shared rates
  WaveTail,   ///< the last wave of its tiles does not fill its SMs
  WeightRead  ///< an earlier ubatch of the layer has read the same weights
};
inline constexpr int kLossCauses = 7;

std::string_view cause_name(LossCause cause);

struct Loss {
  LaneId lane = 0;
  LossCause cause = LossCause::FewSms;
  std::int64_t ns = 0;
};

/// Time of an op that reading its weights takes beyond what its arithmetic takes anyway.
std::int64_t weight_read_ns(const Plan& plan, const OpDef& op, const OpCost& cost, const MachineRates& machine);

/// Losses of a recorded group's ops, by lane. The first five are time beyond what the ops take alone; wave tails and
/// repeated weights are part of that time, of the ops whose demand says what they are made of: their tail is the share
/// of the SM-bound time in which SMs of the last wave stand still, and the weights are the memory time of all weights
/// that arithmetic does not hide.
std::vector<Loss> find_losses(const Plan& plan, const CostTable& costs, const EngineResult& result,
                              const std::vector<int>& recorded, int group);

}  // namespace dbo
