#include "traces/trace_finish.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

class Finisher {
 public:
  Finisher(RawTrace& trace, const std::vector<std::string>& counter_pids)
      : trace_(trace), counter_pids_(counter_pids) {}

  /// A slice far away from most others has a broken time; the trace would else begin or end with it. 2^52 ns are 52
  /// days, half of what a viewer can show exactly.
  void drop_strays() {
    if (!trace_.slices.empty()) {
      const std::int64_t middle = middle_of(trace_.slices);
      std::erase_if(trace_.slices, [&](const RawSlice& slice) { return is_far(start_of(slice), middle); });
    }
    if (trace_.ops.empty()) return;
    const std::int64_t middle = middle_of(trace_.ops);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < trace_.ops.size(); ++i) {
      if (is_far(start_of(trace_.ops[i]), middle)) continue;
      trace_.ops[kept] = trace_.ops[i];
      trace_.op_rows[kept++] = trace_.op_rows[i];
    }
    trace_.ops.resize(kept);
    trace_.op_rows.resize(kept);
    for (TraceCounter& counter : trace_.counters)
      std::erase_if(counter.points, [&](const auto& point) {
        const std::int64_t time = point.first.time_since_epoch().count();
        return time - middle > kFar || middle - time > kFar;
      });
  }

  /// A counter belongs to the rank whose op slices share its process. Counters of one name and rank are one.
  void place_counters() {
    std::map<std::string, std::int32_t> rank_of_pid;
    for (std::size_t i = 0; i < trace_.ops.size(); ++i)
      rank_of_pid.emplace(trace_.rows[trace_.op_rows[i]].pid, trace_.ops[i].rank);
    std::map<std::pair<std::int32_t, std::string>, std::size_t> known;
    std::vector<TraceCounter> placed;
    for (std::size_t i = 0; i < trace_.counters.size(); ++i) {
      TraceCounter& counter = trace_.counters[i];
      const auto rank = rank_of_pid.find(counter_pids_[i]);
      if (rank == rank_of_pid.end() || counter.name.empty()) continue;
      counter.rank = rank->second;
      const auto [at, fresh] = known.emplace(std::pair(counter.rank, counter.name), placed.size());
      if (fresh)
        placed.push_back(std::move(counter));
      else
        placed[at->second].points.insert(placed[at->second].points.end(), counter.points.begin(), counter.points.end());
    }
    trace_.counters = std::move(placed);
  }

  /// Slices that say nothing of a GPU may still lie on threads called "stream 7".
  void find_gpu_rows() {
    bool any = false;
    for (RawRow& row : trace_.rows) {
      row.gpu = lower_case(row.thread).rfind("stream", 0) == 0;
      any = any || row.gpu;
    }
    if (!any) return;
    const auto is_host = [&](const RawSlice& slice) { return !trace_.rows[slice.row].gpu; };
    const auto kept = std::remove_if(trace_.slices.begin(), trace_.slices.end(), is_host);
    trace_.host_events += trace_.slices.end() - kept;
    trace_.slices.erase(kept, trace_.slices.end());
    for (RawSlice& slice : trace_.slices) {
      slice.kind = gpu_kind_of_name(trace_.names[slice.name]);
    }
  }

  void rebase() {
    std::int64_t base = INT64_MAX;
    for (const RawSlice& slice : trace_.slices) base = std::min(base, slice.start_ns);
    if (trace_.own()) {
      // Our files count from the step's start; only an epoch, were one there, would have to go.
      std::int64_t first = INT64_MAX;
      for (const TraceOp& op : trace_.ops) first = std::min(first, op.start.time_since_epoch().count());
      constexpr std::int64_t kEpochLike = std::int64_t{20} * 365 * 24 * 3600 * 1'000'000'000;
      base = first > kEpochLike ? first : 0;
    }
    if (base == INT64_MAX || base == 0) return;
    trace_.base_ns = base;
    for (RawSlice& slice : trace_.slices) slice.start_ns -= base;
    for (RawCall& call : trace_.calls) call.start_ns -= base;
    for (RawSync& sync : trace_.syncs) sync.start_ns -= base;
    for (RawRange& range : trace_.ranges) range.start_ns -= base;
    for (RawArrowEnd& end : trace_.arrows) end.time_ns -= base;
    for (TraceOp& op : trace_.ops) {
      op.start -= Ns{base};
      op.end -= Ns{base};
    }
    for (TraceCounter& counter : trace_.counters)
      for (auto& point : counter.points) point.first -= Ns{base};
  }

 private:
  static constexpr std::int64_t kFar = std::int64_t{1} << 52;

  static std::int64_t start_of(const RawSlice& slice) { return slice.start_ns; }
  static std::int64_t start_of(const TraceOp& op) { return op.start.time_since_epoch().count(); }

  template <typename Slice>
  static std::int64_t middle_of(const std::vector<Slice>& list) {
    std::vector<std::int64_t> starts;
    starts.reserve(list.size());
    for (const Slice& slice : list) starts.push_back(start_of(slice));
    const auto middle = starts.begin() + static_cast<std::ptrdiff_t>(starts.size() / 2);
    std::nth_element(starts.begin(), middle, starts.end());
    return *middle;
  }

  bool is_far(std::int64_t start, std::int64_t middle) {
    const bool far = start - middle > kFar || middle - start > kFar;
    if (far) ++trace_.skipped["slice far away in time from the others"].count;
    return far;
  }

  RawTrace& trace_;
  const std::vector<std::string>& counter_pids_;
};

}  // namespace

void finish_raw_trace(RawTrace& trace, const std::map<std::string, std::string>& process_names,
                      const std::vector<std::string>& counter_pids, bool any_gpu) {
  for (RawRow& row : trace.rows) {
    const auto name = process_names.find(row.pid);
    if (name != process_names.end()) row.process = name->second;
  }
  Finisher finisher(trace, counter_pids);
  if (trace.own())
    finisher.place_counters();
  else
    trace.counters.clear();
  if (!any_gpu) finisher.find_gpu_rows();
  finisher.drop_strays();
  finisher.rebase();
}

RawKind gpu_kind_of_name(std::string_view name) {
  const std::string first = lower_case(name.substr(0, 6));
  if (first == "memcpy") return RawKind::Memcpy;
  return first == "memset" ? RawKind::Memset : RawKind::Kernel;
}

}  // namespace dbo
