// A trace in the dialect PyTorch's profiler writes, for tools made for its traces: kernels on streams, the host calls
// that launched them, arrows between the two, one profiler step around all.
#pragma once

#include <cstdint>
#include <string>

#include "traces/rows.h"
#include "traces/trace.h"

namespace dbo {

struct KinetoOptions {
  std::int32_t rank = 0;  ///< a file holds one rank: such tools read one file a rank
  int world_size = 0;     ///< 0: as many ranks as the trace has
  int device = 0;         ///< GPU of the rank on its machine
  RowFilter filter;       ///< layers and slices; its ranks are not read
  /// Communication kernels are called like NCCL's ("ncclDevKernel_AllToAll(dispatch.send ub0 L3)"): tools that tell
  /// communication by name take anything else for computation.
  bool nccl_names = true;
};

/// Wires are no kernels and are left out; the combine's copy is a device-to-device copy. Host calls are made up: one a
/// kernel, 3 us apart, early enough to lie before it; the GPU's times are shifted by as much as that takes
/// ("shifted_ns" in the metadata), all by the same. Event waits become synchronisation events with the calls that
/// recorded them.
std::string kineto_trace_text(const Trace& trace, const KinetoOptions& options = {});

/// The same to a file, compressed when the name ends in ".gz". Throws InputError.
void write_kineto_trace(const std::string& path, const Trace& trace, const KinetoOptions& options = {});

}  // namespace dbo
