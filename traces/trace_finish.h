// What can only be said once a whole trace was read: which rows are GPU streams, which times are absurd, where time
// begins.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "traces/raw_trace.h"

namespace dbo {

/// Names processes, gives counters their ranks, finds GPU rows of traces without GPU categories (`any_gpu` false),
/// drops slices with absurd times, and makes times relative. `counter_pids`: process of each counter.
void finish_raw_trace(RawTrace& trace, const std::map<std::string, std::string>& process_names,
                      const std::vector<std::string>& counter_pids, bool any_gpu);

/// Copies and fills by the first word of a slice's name; anything else is a kernel.
RawKind gpu_kind_of_name(std::string_view name);

}  // namespace dbo
