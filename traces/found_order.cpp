#include "traces/found_order.h"

#include <algorithm>
#include <map>

#include "sim/base/error.h"

namespace dbo {
namespace {

constexpr std::int64_t kTight = 10'000;        // ns: a start this close behind an end was waiting for it
constexpr std::int64_t kHandover = 60'000;     // ns: how far a kernel's start may lie before the end that freed its SMs
constexpr std::int64_t kSilence = 500'000;     // ns: a host without calls for so long was probably waiting
constexpr std::int64_t kWake = 100'000;        // ns: and for a kernel that ended so shortly before its next call
constexpr std::int64_t kLaunch = 50'000;       // ns: a kernel that begins later after its call waited for more than it
constexpr std::size_t kMostKernels = 500'000;  // a plan lists every launch
constexpr std::uint32_t kNobody = UINT32_MAX;

struct Kernel {
  std::uint32_t slice = 0;
  std::uint32_t stream = 0;  ///< dense, in order of the plan's lanes
  std::int64_t start = 0, end = 0;
  std::int64_t called = INT64_MIN;  ///< when the host launched it
  std::uint32_t before = kNobody;   ///< on its stream
};

class Finder {
 public:
  Finder(const ClassifiedTrace& trace, const OrderSearchOptions& options) : trace_(trace), options_(options) {}

  FoundOrder run() {
    collect();
    find_gaps();
    find_sync_edges();
    find_call_edges();
    find_tight_edges();
    drop_implied();
    measure_lane_gap();
    if (options_.host) find_host_work();
    std::int64_t first = INT64_MAX, last = INT64_MIN;
    for (const Kernel& kernel : kernels_) {
      result_.slices.push_back(kernel.slice);
      first = std::min(first, kernel.start);
      last = std::max(last, kernel.end);
    }
    result_.span = Ns{last - first};
    return std::move(result_);
  }

  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<std::uint32_t>& streams() const { return streams_; }

 private:
  void collect() {
    std::vector<std::uint32_t> dense(trace_.streams.size(), kNobody);
    for (std::uint32_t s = 0; s < trace_.streams.size(); ++s)
      if (trace_.streams[s].rank == options_.rank) streams_.push_back(s);
    // Compute first, then communication, then the rest: the first two lanes of any plan.
    std::stable_sort(streams_.begin(), streams_.end(), [&](std::uint32_t a, std::uint32_t b) {
      const auto place = [&](std::uint32_t s) {
        return trace_.streams[s].lane == "compute" ? 0 : trace_.streams[s].lane == "comm" ? 1 : 2;
      };
      return place(a) < place(b);
    });
    if (streams_.size() > 250)
      throw InputError(trace_.raw.file, "", "more than 250 streams: too many for a plan's lanes");
    for (std::uint32_t d = 0; d < streams_.size(); ++d) dense[streams_[d]] = d;
    for (const std::uint32_t s : streams_)
      for (const std::uint32_t i : trace_.streams[s].slices) {
        const SliceInfo& info = trace_.info[i];
        if (options_.step >= 0 && info.step != options_.step) continue;
        const RawSlice& slice = trace_.raw.slices[i];
        Kernel kernel{i, dense[s], slice.start_ns, slice.end_ns(), INT64_MIN, kNobody};
        if (info.call != UINT32_MAX) kernel.called = trace_.raw.calls[info.call].start_ns;
        kernels_.push_back(kernel);
      }
    if (kernels_.empty())
      throw InputError(trace_.raw.file, "",
                       "rank " + std::to_string(options_.rank) + " has no slices to make a plan of");
    if (kernels_.size() > kMostKernels)
      throw InputError(trace_.raw.file, "",
                       std::to_string(kernels_.size()) + " slices are too many for one plan (at most " +
                           std::to_string(kMostKernels) + "): choose one step");
    std::stable_sort(kernels_.begin(), kernels_.end(), [](const Kernel& a, const Kernel& b) {
      return a.start != b.start ? a.start < b.start : a.end < b.end;
    });
    by_stream_.resize(streams_.size());
    for (std::uint32_t k = 0; k < kernels_.size(); ++k) {
      std::vector<std::uint32_t>& lane = by_stream_[kernels_[k].stream];
      if (!lane.empty()) kernels_[k].before = lane.back();
      lane.push_back(k);
    }
    end_before_.resize(kernels_.size(), INT64_MIN);
    for (const auto& lane : by_stream_) {
      std::int64_t end = INT64_MIN;
      for (const std::uint32_t k : lane) {
        end_before_[k] = end;
        end = std::max(end, kernels_[k].end);
      }
    }
  }

  /// Idle time on the stream before a kernel; the first one was idle since the trace began.
  std::int64_t idle_before(std::uint32_t k) const {
    return kernels_[k].start - (end_before_[k] == INT64_MIN ? kernels_.front().start : end_before_[k]);
  }

  void find_gaps() {
    std::int64_t sum = 0, count = 0;
    for (std::uint32_t k = 0; k < kernels_.size(); ++k) {
      if (kernels_[k].before == kNobody || idle_before(k) < 0 || idle_before(k) > kTight) continue;
      sum += idle_before(k);
      ++count;
    }
    result_.node_gap = Ns{count > 0 ? sum / count : 0};
  }

  bool was_idle(std::uint32_t k) const {
    return idle_before(k) > std::max<std::int64_t>(3 * result_.node_gap.count(), 1000);
  }

  void add_edge(std::uint32_t from, std::uint32_t to, FoundEdge::Source source) {
    // Kernels are numbered by start; one of no length may end where another of no length begins.
    if (from < to) result_.edges.push_back({from, to, source});
  }

  /// Kernels of a stream by the time of their call.
  struct Called {
    std::vector<std::pair<std::int64_t, std::uint32_t>> calls;

    /// The last one called before `time`.
    std::uint32_t last_before(std::int64_t time) const {
      const auto at = std::lower_bound(calls.begin(), calls.end(), std::pair(time, 0U));
      return at == calls.begin() ? kNobody : std::prev(at)->second;
    }
    std::uint32_t first_after(std::int64_t time) const {
      const auto at = std::lower_bound(calls.begin(), calls.end(), std::pair(time, 0U));
      return at == calls.end() ? kNobody : at->second;
    }
  };
  std::vector<Called> called() const {
    std::vector<Called> lists(streams_.size());
    for (std::uint32_t k = 0; k < kernels_.size(); ++k)
      if (kernels_[k].called != INT64_MIN) lists[kernels_[k].stream].calls.emplace_back(kernels_[k].called, k);
    for (Called& list : lists) std::sort(list.calls.begin(), list.calls.end());
    return lists;
  }

  /// cuda_sync events: the stream that waits, the one the event was recorded on, and the call that recorded it.
  void find_sync_edges() {
    if (trace_.raw.syncs.empty()) return;
    std::map<std::int64_t, std::uint32_t> stream_of_number;
    for (std::uint32_t d = 0; d < streams_.size(); ++d)
      stream_of_number.emplace(trace_.raw.rows[trace_.streams[streams_[d]].row].stream, d);
    for (const RawSync& sync : trace_.raw.syncs) {
      const auto to = stream_of_number.find(sync.stream), from = stream_of_number.find(sync.other_stream);
      if (to == stream_of_number.end() || from == stream_of_number.end() || sync.stream < 0 || sync.other_stream < 0)
        continue;
      // Correlations count the host's calls, so they order launches, records and waits.
      const std::uint32_t source = neighbour(from->second, sync.record_correlation, false);
      const std::uint32_t target = neighbour(to->second, sync.correlation, true);
      if (source != kNobody && target != kNobody && kernels_[source].end <= kernels_[target].start)
        add_edge(source, target, FoundEdge::Source::Sync);
    }
  }

  /// The kernel of a stream with the next smaller (or larger) correlation.
  std::uint32_t neighbour(std::uint32_t stream, std::int64_t correlation, bool larger) const {
    std::uint32_t best = kNobody;
    for (const std::uint32_t k : by_stream_[stream]) {
      const std::int64_t own = trace_.raw.slices[kernels_[k].slice].correlation;
      if (own < 0 || (larger ? own <= correlation : own >= correlation)) continue;
      const std::int64_t known = best == kNobody ? 0 : trace_.raw.slices[kernels_[best].slice].correlation;
      if (best == kNobody || (larger ? own < known : own > known)) best = k;
    }
    return best;
  }

  /// A wait call names neither event nor stream. It stands before the launch that waits, and the event was recorded
  /// behind what was launched before. Pairs that the times contradict are not the ones.
  void find_call_edges() {
    const std::vector<Called> lists = called();
    std::vector<std::int64_t> waits;
    for (const RawCall& call : trace_.raw.calls)
      if (trace_.raw.names[call.name].find("StreamWaitEvent") != std::string::npos) waits.push_back(call.start_ns);
    std::sort(waits.begin(), waits.end());
    for (std::size_t w = 0; w < waits.size(); ++w) {
      const std::int64_t next = w + 1 < waits.size() ? waits[w + 1] : INT64_MAX;
      for (std::uint32_t to = 0; to < lists.size(); ++to) {
        const std::uint32_t target = lists[to].first_after(waits[w]);
        if (target == kNobody || kernels_[target].called > next) continue;
        for (std::uint32_t from = 0; from < lists.size(); ++from) {
          if (from == to) continue;
          const std::uint32_t source = lists[from].last_before(waits[w]);
          if (source != kNobody && kernels_[source].end <= kernels_[target].start)
            add_edge(source, target, FoundEdge::Source::Call);
        }
      }
    }
  }

  void find_tight_edges() {
    // Kernels of each stream by end, to find those that ended around a start.
    std::vector<std::vector<std::pair<std::int64_t, std::uint32_t>>> ends(streams_.size());
    for (std::uint32_t k = 0; k < kernels_.size(); ++k) ends[kernels_[k].stream].emplace_back(kernels_[k].end, k);
    for (auto& list : ends) std::sort(list.begin(), list.end());
    for (std::uint32_t k = 0; k < kernels_.size(); ++k) {
      if (!was_idle(k)) continue;
      const Kernel& target = kernels_[k];
      for (std::uint32_t from = 0; from < ends.size(); ++from) {
        if (from == target.stream) continue;
        auto at = std::upper_bound(ends[from].begin(), ends[from].end(), std::pair(target.start + kHandover, kNobody));
        while (at != ends[from].begin()) {
          --at;
          const Kernel& source = kernels_[at->second];
          if (source.end < target.start - kTight || source.end <= end_before_[k]) break;
          if (source.start >= target.start || !is_handover(source, target)) continue;
          add_edge(at->second, k, FoundEdge::Source::Timing);
          break;
        }
      }
    }
  }

  /// Whether `target` may have waited for `source`: it began behind its end, or so little before it that blocks of both
  /// can have been running side by side only while SMs changed hands.
  static bool is_handover(const Kernel& source, const Kernel& target) {
    const std::int64_t shared = source.end - target.start;
    return shared <= 0 || shared * 5 < std::min(source.end - source.start, target.end - target.start);
  }

  /// Keeps, for every kernel and stream, the latest edge, and drops those that a stream's order and earlier edges
  /// imply.
  void drop_implied() {
    std::stable_sort(result_.edges.begin(), result_.edges.end(), [](const FoundEdge& a, const FoundEdge& b) {
      if (a.to != b.to) return a.to < b.to;
      return a.from != b.from ? a.from > b.from : a.source < b.source;
    });
    // By stream: how much of every other stream is known to be over before its next kernel.
    std::vector<std::vector<std::int64_t>> over(streams_.size(), std::vector<std::int64_t>(streams_.size(), -1));
    std::vector<std::vector<std::int64_t>> over_at(kernels_.size());
    std::vector<FoundEdge> kept;
    std::size_t edge = 0;
    for (std::uint32_t k = 0; k < kernels_.size(); ++k) {
      std::vector<std::int64_t>& own = over[kernels_[k].stream];
      for (; edge < result_.edges.size() && result_.edges[edge].to == k; ++edge) {
        const FoundEdge& one = result_.edges[edge];
        const std::uint32_t from = kernels_[one.from].stream;
        if (own[from] >= static_cast<std::int64_t>(one.from)) continue;
        kept.push_back(one);
        own[from] = one.from;
        for (std::size_t s = 0; s < own.size(); ++s) own[s] = std::max(own[s], over_at[one.from][s]);
      }
      over_at[k] = own;
      own[kernels_[k].stream] = k;
    }
    result_.edges = std::move(kept);
  }

  void measure_lane_gap() {
    std::int64_t sum = 0, count = 0;
    for (const FoundEdge& edge : result_.edges) {
      const std::int64_t gap = kernels_[edge.to].start - kernels_[edge.from].end;
      if (gap < 0 || gap > kTight || !was_idle(edge.to)) continue;
      sum += gap;
      ++count;
    }
    // A replay adds it to the gap that any two kernels of a stream have.
    result_.lane_gap = std::max(Ns{0}, Ns{count > 0 ? sum / count : 0} - result_.node_gap);
  }

  /// A kernel is late because of the host when it began as soon as it was called, its stream being idle. What the host
  /// did since the late launch before it is work of its own, unless it had been waiting for the GPU.
  void find_host_work() {
    std::vector<std::int64_t> calls, synced;
    for (const RawCall& call : trace_.raw.calls) {
      calls.push_back(call.start_ns);
      if (trace_.raw.names[call.name].find("Synchronize") != std::string::npos)
        synced.push_back(call.start_ns + call.dur_ns);
    }
    std::sort(calls.begin(), calls.end());
    std::sort(synced.begin(), synced.end());
    std::vector<std::uint32_t> order;
    for (std::uint32_t k = 0; k < kernels_.size(); ++k)
      if (kernels_[k].called != INT64_MIN) order.push_back(k);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return kernels_[a].called < kernels_[b].called; });
    if (order.empty()) return;
    std::int64_t since = kernels_[order.front()].called;
    for (const std::uint32_t k : order) {
      const Kernel& kernel = kernels_[k];
      const std::int64_t idle_since = end_before_[k] == INT64_MIN ? kernels_.front().start : end_before_[k];
      if (!was_idle(k) || kernel.called <= idle_since || kernel.called <= since) continue;
      if (kernel.start - kernel.called > kLaunch) continue;
      FoundHostWork work{k, Ns{kernel.called - since}, kNobody};
      if (const std::uint32_t awaited = host_waited_for(kernel.called, calls, synced); awaited < k) {
        work.after = awaited;
        work.length = Ns{std::max<std::int64_t>(0, kernel.called - kernels_[awaited].end)};
      }
      result_.host_work.push_back(work);
      since = kernel.called;
    }
    std::stable_sort(result_.host_work.begin(), result_.host_work.end(),
                     [](const FoundHostWork& a, const FoundHostWork& b) { return a.to < b.to; });
  }

  /// The kernel whose end let the host go on to the call at `time`: the last to end before a synchronising call came
  /// back, or shortly before the call when the host had been silent for long.
  std::uint32_t host_waited_for(std::int64_t time, const std::vector<std::int64_t>& calls,
                                const std::vector<std::int64_t>& synced) const {
    const auto call = std::lower_bound(calls.begin(), calls.end(), time);
    const std::int64_t before = call == calls.begin() ? INT64_MIN : *std::prev(call);
    const auto sync = std::lower_bound(synced.begin(), synced.end(), time);
    std::int64_t until = INT64_MIN;
    if (sync != synced.begin() && *std::prev(sync) > before) until = *std::prev(sync);
    if (until == INT64_MIN && before != INT64_MIN && time - before >= kSilence) until = time;
    if (until == INT64_MIN) return kNobody;
    std::uint32_t last = kNobody;
    for (std::uint32_t k = 0; k < kernels_.size() && kernels_[k].start < until; ++k)
      if (kernels_[k].end <= until && (last == kNobody || kernels_[k].end > kernels_[last].end)) last = k;
    return last != kNobody && until - kernels_[last].end <= kWake ? last : kNobody;
  }

  const ClassifiedTrace& trace_;
  const OrderSearchOptions& options_;
  std::vector<std::uint32_t> streams_;  ///< of the rank, in order of the plan's lanes
  std::vector<Kernel> kernels_;         ///< by start
  std::vector<std::vector<std::uint32_t>> by_stream_;
  std::vector<std::int64_t> end_before_;  ///< latest end on the stream before a kernel
  FoundOrder result_;
};

}  // namespace

FoundOrder find_order(const ClassifiedTrace& trace, const OrderSearchOptions& options) {
  Finder finder(trace, options);
  FoundOrder order = finder.run();
  write_found_plan(trace, finder.streams(), order);
  return order;
}

Json found_costs(const FoundOrder& order) {
  const auto us = [](Ns time) { return Json(static_cast<double>(time.count()) / 1000.0); };
  Json launches = Json::array();
  for (const Ns launch : order.launches) launches.push(us(launch));
  Json host = Json::object();
  for (const char* key : {"launch_us", "record_us", "wait_us", "yield_us", "graph_launch_us"}) host.set(key, 0);
  host.set("node_gap_us", us(order.node_gap));
  host.set("lane_gap_us", us(order.lane_gap));
  Json costs = Json::object();
  costs.set("source", "ops");
  costs.set("launches_us", std::move(launches));
  costs.set("host", std::move(host));
  return costs;
}

}  // namespace dbo
