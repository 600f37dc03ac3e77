// Exact searches for the order with the shortest cycle: one for a single lane with transfers beside it, one for two.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/search/order_task.h"

namespace dbo {

/// Returns false when the search must stop; called often.
using KeepGoing = std::function<bool()>;

struct OrderSearch {
  std::vector<LaunchOrder> orders;  ///< the best found, shortest cycle first; empty when none was found in time
  std::int64_t lower_bound = 0;     ///< no order has a shorter cycle: proved by bound or by exhausting all
  std::int64_t states = 0;          ///< partial orders looked at
  bool complete = true;             ///< false: `keep_going` ended it
};

/// Low latency; exact with one call under way at a time, within a part of 512 with two. Everything is on one lane, so
/// the cycle is its work plus the time it stands still in receives: the least such time over all paths through the
/// states (how far each ubatch is, which calls are under way, how long until they arrive). Orders keep to
/// `task.in_flight` un-received calls; a call is received before the one `in_flight` after it is sent. `known`: an
/// order's cycle that must be beaten; longer ones are not followed up.
OrderSearch search_one_lane(const OrderTask& task, std::int64_t known, const KeepGoing& keep_going);

/// High throughput. Branches on which of two ops of a lane comes first, and how many periods apart, with longest paths
/// as bound, for one cycle after the other between bound and `known` by bisection. Collects up to `most` orders of the
/// shortest cycle.
OrderSearch search_two_lanes(const OrderTask& task, std::int64_t known, std::size_t most, const KeepGoing& keep_going);

}  // namespace dbo
