#include "traces/metrics.h"

#include <algorithm>
#include <map>

#include "traces/chrome_writer.h"
#include "traces/transfers.h"

namespace dbo {
namespace {

std::optional<double> percent(Ns part, Ns whole) {
  if (whole.count() == 0) return std::nullopt;
  return 100.0 * static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

KernelClass class_of_op(const TraceOp& op) {
  if (op.kind == OpKind::CCopy) return KernelClass::Memory;
  return is_comm(op.kind) ? KernelClass::Comm : KernelClass::Compute;
}

std::int64_t ns(SimTime time) {
  return time.time_since_epoch().count();
}

/// Receives of a kind on a rank take at least as long as their shortest, which waited for nothing.
void estimate_waits(Measured& measured) {
  std::map<std::pair<std::int32_t, OpKind>, std::int64_t> shortest;
  for (const MeasuredSlice& slice : measured.slices) {
    if (!is_recv(slice.kind)) continue;
    const auto [at, fresh] = shortest.emplace(std::pair(slice.rank, slice.kind), slice.end_ns - slice.start_ns);
    if (!fresh) at->second = std::min(at->second, slice.end_ns - slice.start_ns);
  }
  for (MeasuredSlice& slice : measured.slices)
    if (is_recv(slice.kind)) slice.waited_ns = slice.end_ns - slice.start_ns - shortest.at({slice.rank, slice.kind});
}

void sort_slices(Measured& measured) {
  std::stable_sort(measured.slices.begin(), measured.slices.end(), [](const MeasuredSlice& a, const MeasuredSlice& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    return a.lane != b.lane ? a.lane < b.lane : a.start_ns < b.start_ns;
  });
}

/// The slices of one rank.
struct RankSlices {
  const MeasuredSlice* begin = nullptr;
  const MeasuredSlice* end = nullptr;
};

Intervals union_of(const RankSlices& rank, KernelClass cls) {
  std::vector<Interval> any;
  for (const MeasuredSlice* slice = rank.begin; slice != rank.end; ++slice)
    if (slice->kernel && slice->cls == cls) any.push_back({slice->start_ns, slice->end_ns});
  return unite(std::move(any));
}

IdleBreakdown idle_of(const MeasuredSlice* begin, const MeasuredSlice* end) {
  IdleBreakdown idle;
  idle.lane = begin->lane;
  std::int64_t over = begin->end_ns;
  for (const MeasuredSlice* slice = begin + 1; slice != end; ++slice) {
    const Ns gap{slice->start_ns - over};
    if (gap > Ns{0}) {
      const bool late = slice->launched_ns != MeasuredSlice::kNoLaunch && slice->launched_ns > over;
      (late ? idle.host_wait : gap < kKernelWaitBelow ? idle.kernel_wait : idle.other) += gap;
    }
    over = std::max(over, slice->end_ns);
  }
  return idle;
}

BubbleMeasure bubbles_of(const MeasuredSlice* begin, const MeasuredSlice* end, const Interval& span) {
  BubbleMeasure measure;
  measure.lane = begin->lane;
  std::vector<Interval> any;
  for (const MeasuredSlice* slice = begin; slice != end; ++slice) any.push_back({slice->start_ns, slice->end_ns});
  const Intervals busy = unite(std::move(any));
  measure.busy = Ns{total(busy)};
  for (const Interval& gap : subtract({span}, busy)) {
    const Ns length{gap.end - gap.begin};
    ++measure.count;
    measure.idle += length;
    measure.longest = std::max(measure.longest, length);
    if (length <= kBubbleThreshold) continue;
    ++measure.above_threshold;
    measure.idle_above_threshold += length;
  }
  return measure;
}

RankMetrics measure_rank(const RankSlices& rank) {
  RankMetrics metrics;
  metrics.rank = rank.begin->rank;
  const Intervals comm = union_of(rank, KernelClass::Comm), compute = union_of(rank, KernelClass::Compute);
  metrics.overlap = {Ns{total(comm)}, Ns{total(compute)}, Ns{total(intersect(comm, compute))}};
  std::vector<Interval> any(comm);
  any.insert(any.end(), compute.begin(), compute.end());
  const Intervals memory = union_of(rank, KernelClass::Memory);
  any.insert(any.end(), memory.begin(), memory.end());
  const Intervals all = unite(std::move(any));
  if (all.empty()) return metrics;
  const Interval span{all.front().begin, all.back().end};
  metrics.temporal.span = Ns{span.end - span.begin};
  metrics.temporal.idle = metrics.temporal.span - Ns{total(all)};
  metrics.temporal.compute = metrics.overlap.compute;
  metrics.temporal.rest = metrics.temporal.span - metrics.temporal.idle - metrics.temporal.compute;
  for (const MeasuredSlice* lane = rank.begin; lane != rank.end;) {
    const MeasuredSlice* next =
        std::find_if(lane, rank.end, [&](const MeasuredSlice& s) { return s.lane != lane->lane; });
    if (lane->kernel) {
      metrics.idle.push_back(idle_of(lane, next));
      metrics.bubbles.push_back(bubbles_of(lane, next, span));
    }
    lane = next;
  }
  return metrics;
}

}  // namespace

std::optional<double> OverlapMeasure::comm_percent() const {
  return percent(both, comm);
}
std::optional<double> OverlapMeasure::compute_percent() const {
  return percent(both, compute);
}
std::optional<double> InFlightMeasure::hidden_percent() const {
  return percent(under_way - waited, under_way);
}

Measured measured_slices(const ClassifiedTrace& trace) {
  Measured measured;
  for (const Stream& stream : trace.streams) measured.lanes.push_back(stream.lane + " (" + stream.name + ")");
  NameTable names;
  std::vector<std::uint32_t> short_names(trace.raw.names.size(), UINT32_MAX);
  measured.slices.reserve(trace.raw.slices.size());
  for (std::size_t i = 0; i < trace.raw.slices.size(); ++i) {
    const RawSlice& raw = trace.raw.slices[i];
    const SliceInfo& info = trace.info[i];
    MeasuredSlice slice;
    slice.rank = info.rank;
    slice.lane = info.stream;
    slice.cls = info.cls;
    slice.kind = info.kind;
    if (short_names[raw.name] == UINT32_MAX)
      short_names[raw.name] = names.add(short_kernel_name(trace.raw.names[raw.name]));
    slice.name = short_names[raw.name];
    slice.start_ns = raw.start_ns;
    slice.end_ns = raw.end_ns();
    if (info.call != UINT32_MAX) slice.launched_ns = trace.raw.calls[info.call].start_ns;
    measured.slices.push_back(slice);
  }
  measured.names = names.texts();
  estimate_waits(measured);
  sort_slices(measured);
  return measured;
}

Measured measured_slices(const Trace& trace) {
  Measured measured;
  measured.lanes = trace.lanes;
  measured.waits_known = true;
  NameTable names;
  for (const TraceOp& op : trace.ops) {
    MeasuredSlice slice;
    slice.rank = op.rank;
    slice.lane = op.lane;
    slice.cls = class_of_op(op);
    slice.kind = op.kind;
    slice.name =
        names.add(op.kind == OpKind::Other && op.name < trace.names.size() ? std::string_view(trace.names[op.name])
                                                                           : op_name(op.kind));
    slice.start_ns = ns(op.start);
    slice.end_ns = ns(op.end);
    slice.waited_ns = op.waited.count();
    slice.kernel = !is_wire(op.kind);
    measured.slices.push_back(slice);
  }
  measured.names = names.texts();
  sort_slices(measured);
  return measured;
}

std::vector<RankMetrics> measure(const Measured& measured) {
  std::vector<RankMetrics> all;
  const MeasuredSlice* const end = measured.slices.data() + measured.slices.size();
  for (const MeasuredSlice* rank = measured.slices.data(); rank != end;) {
    const MeasuredSlice* next = std::find_if(rank, end, [&](const MeasuredSlice& s) { return s.rank != rank->rank; });
    all.push_back(measure_rank({rank, next}));
    rank = next;
  }
  return all;
}

std::optional<InFlightMeasure> in_flight(const Trace& trace, std::int32_t rank, bool estimated) {
  InFlightMeasure measure;
  measure.estimated = estimated;
  const Transfers transfers(trace, rank);
  for (const auto& [key, parts] : transfers.all()) {
    if (parts.kernel) continue;  // its own slice says it all
    const auto interval = Transfers::interval(parts);
    if (!interval) continue;
    ++measure.transfers;
    measure.under_way += Ns{interval->end - interval->begin};
  }
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank && is_recv(op.kind)) measure.waited += op.waited;
  if (measure.transfers == 0) return std::nullopt;
  measure.waited = std::min(measure.waited, measure.under_way);
  return measure;
}

OpStatistics statistics_of(std::string name, std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  OpStatistics stats;
  stats.name = std::move(name);
  stats.count = static_cast<std::int64_t>(values.size());
  std::int64_t sum = 0;
  for (const std::int64_t value : values) sum += value;
  const auto rank = [&](std::size_t percent_of) {
    const std::size_t at = (values.size() * percent_of + 99) / 100;
    return Ns{values[std::max<std::size_t>(at, 1) - 1]};
  };
  stats.total = Ns{sum};
  stats.mean = Ns{(sum + stats.count / 2) / stats.count};
  stats.median = rank(50);
  stats.p10 = rank(10);
  stats.p90 = rank(90);
  stats.shortest = Ns{values.front()};
  stats.longest = Ns{values.back()};
  return stats;
}

std::vector<OpStatistics> op_statistics(const Measured& measured) {
  std::vector<std::vector<std::int64_t>> values(measured.names.size());
  for (const MeasuredSlice& slice : measured.slices) values[slice.name].push_back(slice.end_ns - slice.start_ns);
  std::vector<OpStatistics> all;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) all.push_back(statistics_of(measured.names[i], std::move(values[i])));
  std::stable_sort(all.begin(), all.end(),
                   [](const OpStatistics& a, const OpStatistics& b) { return a.total > b.total; });
  return all;
}

}  // namespace dbo
