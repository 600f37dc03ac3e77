// `dbo inspect`: everything one trace tells, as a table and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "traces/classify.h"
#include "traces/metrics.h"
#include "traces/trace_reader.h"

namespace dbo {

struct InspectOptions {
  std::vector<std::string> rule_files;  ///< in front of the built-in rules, the last given first
  ReadOptions read;
  std::size_t kernels = 15;  ///< rows of the kernel table
};

struct Inspection {
  ClassifiedTrace classified;  ///< of our own files: made from their ops
  bool own = false;            ///< written by this project: ops, layers and ubatches are as the file says
  Trace ops;                   ///< one entry an op
  std::vector<RankMetrics> ranks;
  std::vector<OpStatistics> op_stats;      ///< by op kind (and named range), of whole ops
  std::vector<OpStatistics> kernel_stats;  ///< by kernel
  std::int64_t placed = 0;                 ///< GPU slices placed in an op
  std::int64_t unknown = 0;                ///< kernels no rule matched
};

/// Throws InputError when the file cannot be read or holds no slices.
Inspection inspect_trace(const std::string& path, const InspectOptions& options = {});
Inspection inspect_raw(RawTrace raw, const InspectOptions& options = {});

std::string inspection_text(const Inspection& inspection, const InspectOptions& options = {});
Json inspection_json(const Inspection& inspection);

/// Our own trace as slices on streams, so that whatever works on profilers' traces works on it: a stream a lane, wires
/// left out.
ClassifiedTrace classified_from_own(const Trace& trace, RawTrace raw);

/// Costs by kind of op from a trace with placed ops: medians over layers, ubatches and ranks, as the "costs" of a
/// config
/// ({"source": "fixed", ...}). Receives count without their waiting; a wire is what lay between send and arrival.
/// Throws InputError when the trace has no placed op.
Json costs_by_kind(const Trace& ops, const std::string& file);

}  // namespace dbo
