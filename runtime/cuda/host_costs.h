// What the host's instructions and the gaps between kernels cost on this machine.
#pragma once

#include <cstdint>

#include "runtime/measured_trace.h"

namespace dbo::runtime {

struct MeasuredHostCosts {
  Spread launch, record, wait;       ///< host time of one call while the GPU is busy
  Spread yield_awake, yield_asleep;  ///< baton from one ubatch thread to the next: spinning, parked
  Spread graph_launch;               ///< host time of launching a graph of `graph_ops` ops
  Spread eager_gap, eager_lane_gap;  ///< end of an op to the begin of the next, same lane and over an event
  Spread node_gap, lane_gap;         ///< the same inside a graph
  int graph_ops = 0;
  std::uint64_t timer_tick_ns = 0;
};

/// On one GPU, with stand-ins of 20 us; takes about a second. `quick`: a few repeats.
MeasuredHostCosts measure_host_costs(int gpu, bool quick);

}  // namespace dbo::runtime
