// What is kept of a profiler's trace: GPU slices, the host calls that launched them, synchronisations, annotations, and
// the op slices, arrows and counters of our own files. Everything else is counted and dropped while reading.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/base/json.h"
#include "traces/trace.h"

namespace dbo {

/// Texts by number. The map is only looked up, never walked.
class NameTable {
 public:
  std::uint32_t add(std::string_view text);
  const std::string& operator[](std::uint32_t id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
};

enum class RawKind : std::uint8_t { Kernel, Memcpy, Memset, Generic };

/// A slice on a GPU stream; Generic: any other slice, kept only when a trace has no GPU slices.
struct RawSlice {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::int64_t correlation = -1;  ///< of the host call; graph kernels share one
  std::uint32_t name = 0;         ///< in RawTrace::names
  std::uint32_t row = 0;          ///< in RawTrace::rows
  RawKind kind = RawKind::Kernel;

  std::int64_t end_ns() const { return start_ns + dur_ns; }
};

/// A CUDA runtime or driver call.
struct RawCall {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::int64_t correlation = -1;
  std::uint32_t name = 0, row = 0;
};

/// A stream that waits for an event, as newer profilers write it.
struct RawSync {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::int64_t stream = -1;        ///< that waits; -1: the host
  std::int64_t other_stream = -1;  ///< that the event was recorded on
  std::int64_t record_correlation = -1;
  std::int64_t correlation = -1;
  std::int64_t device = -1;
};

/// A named range of the host (user_annotation) or of a GPU row.
struct RawRange {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::uint32_t name = 0, row = 0;
  bool gpu = false;
};

/// One (pid, tid).
struct RawRow {
  std::string pid, tid;         ///< as written
  std::string process, thread;  ///< names, blanks around them cut
  std::int64_t device = -1, stream = -1;
  bool gpu = false;  ///< holds GPU slices
};

struct RawArrowEnd {
  std::int64_t id = 0, time_ns = 0;
  std::uint32_t row = 0;
  bool start = false, data = false;
};

/// What was left out while reading, with where it was seen first.
struct SkipCount {
  std::int64_t count = 0;
  std::uint64_t first_offset = 0;
};

struct RawTrace {
  std::string file;
  NameTable names;
  std::vector<RawRow> rows;
  std::vector<RawSlice> slices;  ///< in file order
  std::vector<RawCall> calls;
  std::vector<RawSync> syncs;
  std::vector<RawRange> ranges;

  std::vector<std::string> lanes;      ///< of our own op slices
  std::vector<TraceOp> ops;            ///< our own op slices; start and end are in the same clock as the rest
  std::vector<std::uint32_t> op_rows;  ///< row of each op
  std::vector<RawArrowEnd> arrows;     ///< of our own files
  std::vector<TraceCounter> counters;  ///< of our own files; `rank` is a row's process until conversion

  Json metadata, distributed, devices;  ///< "metadata", "distributedInfo", "deviceProperties"; null when absent
  std::string trace_name, time_unit;
  std::int64_t epoch_ns = 0;  ///< "baseTimeNanoseconds"
  std::int64_t base_ns = 0;   ///< subtracted from every time: the earliest kept GPU slice, or op

  std::uint64_t bytes = 0;       ///< read, uncompressed
  std::int64_t events = 0;       ///< elements of traceEvents
  std::int64_t host_events = 0;  ///< slices of the host that nothing here needs
  bool truncated = false;        ///< the file ended inside; what came before is here
  std::uint64_t truncated_at = 0;
  std::map<std::string, SkipCount> skipped;  ///< by reason

  bool own() const { return !ops.empty(); }
};

}  // namespace dbo
