// A trace as a Chrome trace (design: "Contracts other programs may rely on"), or in the dialect PyTorch's profiler
// writes so that tools for its traces find what they look for.
#pragma once

#include <string>

#include "sim/base/files.h"
#include "traces/rows.h"
#include "traces/trace.h"

namespace dbo {

struct ChromeOptions {
  RowFilter filter;
  bool flows = true;
  bool args = true;
  bool counters = true;
};

/// The object form: metadata first, then names, slices, flows and counters. One process per rank (pid = rank + 1: a pid
/// of 0 is renamed by some readers), one thread per row. Times start at 0: a trace with an earlier start is shifted as
/// a whole, and its metadata says so ("shifted_ns"); so are slices and flows that were left out ("dropped_slices",
/// "dropped_flows").
std::string chrome_trace_text(const Trace& trace, const ChromeOptions& options = {});

/// The same to a file, in pieces; compressed when the name ends in ".gz". Throws InputError.
void write_chrome_trace(const std::string& path, const Trace& trace, const ChromeOptions& options = {});

/// As one file of a run's.
void write_chrome_trace(FileSet& files, const std::string& path, const Trace& trace, const ChromeOptions& options = {});

/// "A1₀": the name of a slice, its ubatch as a subscript. Foreign ops keep their name.
std::string slice_name(const Trace& trace, const TraceOp& op);

/// "compute", "send", "wire", "receive", "comm", "copy" or "other".
const char* slice_category(OpKind kind);

/// Where the ends of an arrow go: inside the slices, the start never after the end. Arrows whose ends cannot be
/// ordered (a receive that ended before its send began) have none.
struct FlowEnds {
  std::int64_t from_ns = 0, to_ns = 0;
  bool valid = false;
};
FlowEnds flow_ends(const TraceOp& from, const TraceOp& to);

}  // namespace dbo
