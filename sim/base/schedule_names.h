// The names of the built-in schedules and what a config must know of them; sim/sched makes their programs.
#pragma once

#include <string_view>
#include <vector>

#include "sim/base/transport.h"

namespace dbo {

struct ScheduleName {
  std::string_view name;
  TransportClass schedule_class;  ///< Both: it follows the class of its transport
  Transport default_transport;
  int most_ubatches;
  bool sglang;            ///< decided and split as SGLang does, unless the config says otherwise
  std::string_view what;  ///< one line for people
};

const std::vector<ScheduleName>& schedule_names();
/// Nullptr when there is no such schedule.
const ScheduleName* find_schedule_name(std::string_view name);

/// The schedule that is the un-split baseline.
inline constexpr std::string_view kSequentialSchedule = "sequential";

}  // namespace dbo
