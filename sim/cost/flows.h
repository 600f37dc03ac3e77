// Transfers that share ports fairly: what "network": "flows" prices exchanges with, instead of each port's load alone.
#pragma once

#include <cstdint>
#include <vector>

namespace dbo {

/// Bytes from one port to another; ports are numbered by the caller.
struct Flow {
  std::int32_t from = 0, to = 0;
  double bytes = 0;
};

/// Seconds until each flow ends when all begin together and every port of `rates` (bytes a second) is shared max-min
/// fairly: at any time each flow is held up by a full port on which no other flow is faster. A rate of 0: without
/// limit. Flows that end within 1/512 of the time of each other are ended in one step, each at the rate it then had.
std::vector<double> flow_ends(const std::vector<Flow>& flows, const std::vector<double>& rates);

/// Max-min fair rates of the flows of `open` (indices). Flows between ports without limit get 0.
std::vector<double> fair_rates(const std::vector<Flow>& flows, const std::vector<std::size_t>& open,
                               const std::vector<double>& rates);

}  // namespace dbo
