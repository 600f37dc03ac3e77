// The order a foreign trace shows, as a plan: what ran on which stream in which order, and what waited for what. With
// the slices' own durations the simulator replays it. The plan holds no times, and the costs no start times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/plan/plan.h"
#include "traces/classify.h"

namespace dbo {

struct OrderSearchOptions {
  std::int32_t rank = 0;
  std::int32_t step = -1;  ///< one pass of the trace; -1: all
  /// Whether what the host did between launches becomes ops of a lane "host", where kernels started late because of it.
  bool host = true;
};

/// One kernel waits for the end of another on another lane.
struct FoundEdge {
  std::uint32_t from = 0, to = 0;  ///< indices into FoundOrder::slices
  enum class Source : std::uint8_t {
    Sync,   ///< the profiler names the event and the stream that waits
    Call,   ///< a cudaStreamWaitEvent call of the host between the two launches
    Timing  ///< the lane was idle and began as the other kernel ended
  } source = Source::Timing;
};

/// Work of the host that a kernel's start waited for.
struct FoundHostWork {
  std::uint32_t to = 0;  ///< the kernel it launched
  Ns length{};
  std::uint32_t after = UINT32_MAX;  ///< a kernel whose end the host had waited for
};

struct FoundOrder {
  Plan plan;
  std::vector<Ns> launches;           ///< durations by plan_op
  std::vector<std::uint32_t> slices;  ///< by kernel in launch order: index into RawTrace::slices
  std::vector<FoundEdge> edges;
  std::vector<FoundHostWork> host_work;
  Ns node_gap{};  ///< mean gap between kernels that follow each other on a stream
  Ns lane_gap{};  ///< mean gap between a kernel and one on another stream that waited for it, beyond node_gap
  Ns span{};      ///< of the trace, first start to last end: what a replay should take
};

/// Edges are those the file names (cuda_sync events); those its cudaStreamWaitEvent calls suggest, as far as the times
/// do not contradict them; and tight ones: a kernel that began, after idle time on its stream, as another ended (within
/// 10 us; a kernel that takes over SMs may begin a little before). Edges that follow from others are left out. Throws
/// InputError when the rank has no slices, or more than a plan can hold.
FoundOrder find_order(const ClassifiedTrace& trace, const OrderSearchOptions& options = {});

/// Fills `order.plan` and `order.launches` from the rest of it. `streams`: indices into ClassifiedTrace::streams, in
/// the order of the plan's lanes.
void write_found_plan(const ClassifiedTrace& trace, const std::vector<std::uint32_t>& streams, FoundOrder& order);

/// The costs file for the plan: {"source": "ops", "launches_us": [...], "host": {...}}.
Json found_costs(const FoundOrder& order);

}  // namespace dbo
