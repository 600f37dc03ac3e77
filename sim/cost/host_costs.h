// What the host's instructions cost: presets, or numbers somebody states.
#pragma once

#include <string_view>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/cost/cost_table.h"

namespace dbo {

std::vector<std::string_view> host_preset_names();  ///< "cpp", "python"

/// Throws InputError with the known names when there is no such preset.
HostCosts host_preset(std::string_view name);

/// A preset's name, or {"launch_us", "record_us", "wait_us", "yield_us", "graph_launch_us", "node_gap_us",
/// "lane_gap_us"}, absent ones as in the `cpp` preset.
HostCosts read_host_costs(const JsonRef& ref);

}  // namespace dbo
