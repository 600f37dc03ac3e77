// Judges a trace in PyTorch's dialect by what tools for such traces need. Reads text and knows nothing of the writer.
#pragma once

#include <string_view>
#include <vector>

#include "traces/chrome_check.h"

namespace dbo {

/// Strict JSON in object form with schemaVersion, deviceProperties and distributedInfo, whose rank stands behind
/// `"rank": ` with a blank; exact times, none negative; every slice with name, category and length; kernels and copies
/// on the row of their device, with device, stream and a correlation of their own; one host call and one pair of "ac2g"
/// arrow ends for each, in slices, the call before the kernel; exactly one profiler step, around everything; processes
/// with name, label and sort index, rows with name and sort index; slices of a row nested or disjoint; stream waits
/// that name an event some call recorded. At most `limit` findings.
std::vector<ChromeFinding> check_kineto_trace(std::string_view text, std::size_t limit = 20);

}  // namespace dbo
