// What a trace tells about overlap: the measures of Holistic Trace Analysis (same definitions), and those that work on
// intervals where kernels alone say too little.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/classify.h"
#include "traces/overlap.h"
#include "traces/trace.h"

namespace dbo {

/// One slice as the measures see it.
struct MeasuredSlice {
  std::int32_t rank = 0;
  std::uint32_t lane = 0;  ///< index into Measured::lanes
  KernelClass cls = KernelClass::Compute;
  OpKind kind = OpKind::Other;
  std::uint32_t name = 0;  ///< index into Measured::names: the op with its range, or the kernel
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t launched_ns = kNoLaunch;  ///< when the host called; unknown for our own files
  std::int64_t waited_ns = 0;            ///< receives
  bool kernel = true;                    ///< false: a wire, which is no kernel

  static constexpr std::int64_t kNoLaunch = INT64_MIN;
};

struct Measured {
  std::vector<std::string> lanes;  ///< "compute (stream 7)"
  std::vector<std::string> names;
  std::vector<MeasuredSlice> slices;  ///< by rank, lane, start
  bool waits_known = false;           ///< receives carry the time they waited; else it is estimated
};

/// From a foreign trace: one slice a kernel. A receive's wait is what it took longer than the shortest receive of its
/// kind on its rank.
Measured measured_slices(const ClassifiedTrace& trace);
/// From our own trace: one slice an op, comm ops and sends and receives as communication, copies as memory.
Measured measured_slices(const Trace& trace);

/// HTA's communication-computation overlap: C and P are the unions of communication and compute kernels.
struct OverlapMeasure {
  Ns comm{}, compute{}, both{};
  std::optional<double> comm_percent() const;     ///< |C n P| / |C|; nothing without communication
  std::optional<double> compute_percent() const;  ///< |C n P| / |P|
  Ns exposed() const { return comm - both; }      ///< |C \ P|
};

/// HTA's temporal breakdown: span from the first start to the last end, idle where no kernel runs, compute the union of
/// compute kernels, the rest is neither.
struct TemporalBreakdown {
  Ns span{}, idle{}, compute{}, rest{};
};

/// HTA's idle breakdown of one lane: the gap before a kernel is host wait when the host launched it after the one
/// before it had ended, else kernel wait below a threshold, else other.
struct IdleBreakdown {
  std::uint32_t lane = 0;
  Ns host_wait{}, kernel_wait{}, other{};
};
inline constexpr Ns kKernelWaitBelow{30};  ///< HTA's default "consecutive kernel delay"

/// Gaps of a lane inside the span of its rank.
struct BubbleMeasure {
  std::uint32_t lane = 0;
  Ns busy{}, idle{}, longest{};
  int count = 0;
  int above_threshold = 0;  ///< longer than 20 us, the threshold of SGLang's analysis
  Ns idle_above_threshold{};
};
inline constexpr Ns kBubbleThreshold{20'000};

/// Low latency: transfers that no kernel is busy with. hidden = under way minus waited.
struct InFlightMeasure {
  int transfers = 0;
  Ns under_way{};  ///< sum over transfers, from the end of the send to the arrival
  Ns waited{};     ///< receives' waiting
  bool estimated = false;
  std::optional<double> hidden_percent() const;
};

struct OpStatistics {
  std::string name;
  std::int64_t count = 0;
  Ns total{}, mean{}, median{}, p10{}, p90{}, shortest{}, longest{};
};

struct RankMetrics {
  std::int32_t rank = 0;
  OverlapMeasure overlap;
  TemporalBreakdown temporal;
  std::vector<IdleBreakdown> idle;     ///< lanes of this rank, in order
  std::vector<BubbleMeasure> bubbles;  ///< the same
  std::optional<Ns> exposed_by_op;     ///< our own files: exposed communication as the design defines it
  std::optional<InFlightMeasure> in_flight;
};

std::vector<RankMetrics> measure(const Measured& measured);

/// Transfers of a trace with sends and receives; nothing without.
std::optional<InFlightMeasure> in_flight(const Trace& trace, std::int32_t rank, bool estimated);

/// By op name over all ranks, most time first.
std::vector<OpStatistics> op_statistics(const Measured& measured);

/// The same for numbers at hand. `values` must not be empty. Percentiles are nearest-rank; the mean is rounded to ns.
OpStatistics statistics_of(std::string name, std::vector<std::int64_t> values);

}  // namespace dbo
