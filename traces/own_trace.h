// The trace our own files hold, read back.
#pragma once

#include "traces/raw_trace.h"
#include "traces/trace.h"

namespace dbo {

/// Ops by rank, lane and start; arrows joined to the slices they lie in; counters and metadata. `raw` must hold op
/// slices (RawTrace::own). Arrows whose ends find no slice are left out.
Trace own_trace(const RawTrace& raw);

}  // namespace dbo
