#include "traces/classify.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "traces/layer_recovery.h"
#include "traces/overlap.h"

namespace dbo {
namespace {

std::int64_t number_in(std::string_view text, std::int64_t otherwise) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? value : otherwise;
}

std::int64_t distributed_rank(const RawTrace& raw) {
  const Json* rank = raw.distributed.find("rank");
  return rank != nullptr && rank->is_int() && rank->as_int() >= 0 && rank->as_int() < INT32_MAX ? rank->as_int() : 0;
}

/// "stream 7" rows say their number; others are counted after it.
std::int64_t stream_number(const RawRow& row) {
  if (row.stream >= 0) return row.stream;
  const auto blank = row.thread.rfind(' ');
  return number_in(blank == std::string::npos ? row.tid : row.thread.substr(blank + 1), INT64_MAX);
}

/// The GPU a row belongs to: rows of one process are one GPU, unless they name several devices.
std::string gpu_of(const RawRow& row) {
  return row.device >= 0 ? row.pid + '\x1f' + std::to_string(row.device) : row.pid;
}

class Streams {
 public:
  explicit Streams(ClassifiedTrace& trace) : trace_(trace) {}

  void find() {
    std::vector<std::vector<std::uint32_t>> slices(trace_.raw.rows.size());
    for (std::uint32_t i = 0; i < trace_.raw.slices.size(); ++i) slices[trace_.raw.slices[i].row].push_back(i);
    number_ranks(slices);
    for (std::uint32_t row = 0; row < slices.size(); ++row) {
      if (slices[row].empty()) continue;
      Stream stream;
      stream.rank = rank_of_gpu_.at(gpu_of(trace_.raw.rows[row]));
      stream.row = row;
      stream.name = name_of(trace_.raw.rows[row]);
      stream.slices = std::move(slices[row]);
      std::stable_sort(stream.slices.begin(), stream.slices.end(), [&](std::uint32_t a, std::uint32_t b) {
        return trace_.raw.slices[a].start_ns < trace_.raw.slices[b].start_ns;
      });
      trace_.streams.push_back(std::move(stream));
    }
    std::stable_sort(trace_.streams.begin(), trace_.streams.end(), [&](const Stream& a, const Stream& b) {
      if (a.rank != b.rank) return a.rank < b.rank;
      return stream_number(trace_.raw.rows[a.row]) < stream_number(trace_.raw.rows[b.row]);
    });
    for (std::uint32_t s = 0; s < trace_.streams.size(); ++s)
      for (const std::uint32_t i : trace_.streams[s].slices) {
        trace_.info[i].stream = s;
        trace_.info[i].rank = trace_.streams[s].rank;
      }
  }

 private:
  static std::string name_of(const RawRow& row) {
    if (row.stream >= 0) return "stream " + std::to_string(row.stream);
    if (!row.thread.empty()) return row.thread;
    return row.tid.empty() ? "row of process " + row.pid : "thread " + row.tid;
  }

  /// One GPU is the rank the file says it is of. Several GPUs are numbered: by device when those differ, else by
  /// process.
  void number_ranks(const std::vector<std::vector<std::uint32_t>>& slices) {
    std::map<std::pair<std::int64_t, std::string>, std::string> gpus;
    for (std::size_t row = 0; row < slices.size(); ++row) {
      if (slices[row].empty()) continue;
      const RawRow& place = trace_.raw.rows[row];
      gpus.emplace(std::pair(place.device >= 0 ? place.device : number_in(place.pid, INT64_MAX), gpu_of(place)),
                   gpu_of(place));
    }
    auto next = static_cast<std::int32_t>(gpus.size() == 1 ? distributed_rank(trace_.raw) : 0);
    for (const auto& [key, gpu] : gpus) rank_of_gpu_[gpu] = next++;
  }

  ClassifiedTrace& trace_;
  std::map<std::string, std::int32_t> rank_of_gpu_;
};

void find_roles(ClassifiedTrace& trace, const KernelRules& rules) {
  std::vector<Role> role_of_name(trace.raw.names.size());
  std::vector<bool> known(trace.raw.names.size());
  std::map<std::uint32_t, std::int64_t> unknown;
  for (std::size_t i = 0; i < trace.raw.slices.size(); ++i) {
    const RawSlice& slice = trace.raw.slices[i];
    SliceInfo& info = trace.info[i];
    if (slice.kind == RawKind::Memcpy || slice.kind == RawKind::Memset) {
      info.role = Role::Memory;
    } else {
      if (!known[slice.name]) role_of_name[slice.name] = rules.role(trace.raw.names[slice.name]);
      known[slice.name] = true;
      info.role = role_of_name[slice.name];
      if (info.role == Role::Unknown) unknown[slice.name] += slice.dur_ns;
    }
    info.cls = class_of(info.role);
  }
  for (const auto& [name, ns] : unknown) trace.unknown.emplace_back(trace.raw.names[name], Ns{ns});
  std::stable_sort(trace.unknown.begin(), trace.unknown.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
}

/// The call that launched a slice, by correlation. Kernels of a graph share that of the graph's launch.
void find_calls(ClassifiedTrace& trace) {
  std::vector<std::pair<std::int64_t, std::uint32_t>> calls;
  for (std::uint32_t i = 0; i < trace.raw.calls.size(); ++i)
    if (trace.raw.calls[i].correlation >= 0) calls.emplace_back(trace.raw.calls[i].correlation, i);
  std::sort(calls.begin(), calls.end());
  for (std::size_t i = 0; i < trace.raw.slices.size(); ++i) {
    const std::int64_t correlation = trace.raw.slices[i].correlation;
    if (correlation < 0) continue;
    const auto at = std::lower_bound(calls.begin(), calls.end(), std::pair(correlation, 0U));
    if (at != calls.end() && at->first == correlation) trace.info[i].call = at->second;
  }
}

/// Without kernels that are dispatch and combine by name, plain collectives stand for them: all-gather and
/// reduce-scatter around the experts, or all-to-alls, of which every other one brings tokens back.
void promote_collectives(ClassifiedTrace& trace) {
  bool named = false, experts = false;
  for (const SliceInfo& info : trace.info) {
    named = named || (info.role >= Role::DispatchSetup && info.role <= Role::CombineRecv);
    experts = experts || info.role == Role::Experts;
  }
  if (named || !experts) return;
  for (const Stream& stream : trace.streams) {
    bool back = false;
    for (const std::uint32_t i : stream.slices) {
      Role& role = trace.info[i].role;
      if (role == Role::AllGather) role = Role::Dispatch;
      if (role == Role::ReduceScatter) role = Role::Combine;
      if (role != Role::AllToAll) continue;
      role = back ? Role::Combine : Role::Dispatch;
      back = !back;
    }
  }
}

/// A lane is what most of a stream's busy time is spent on.
void name_lanes(ClassifiedTrace& trace) {
  std::map<std::pair<std::int32_t, std::string>, int> used;
  // The busiest stream of a kind takes the plain name.
  std::vector<std::pair<std::int64_t, std::uint32_t>> by_busy;
  std::vector<std::string> kind(trace.streams.size());
  for (std::uint32_t s = 0; s < trace.streams.size(); ++s) {
    std::int64_t comm = 0, other = 0;
    for (const std::uint32_t i : trace.streams[s].slices)
      (trace.info[i].cls == KernelClass::Comm ? comm : other) += trace.raw.slices[i].dur_ns;
    kind[s] = comm > other ? "comm" : "compute";
    by_busy.emplace_back(-(comm + other), s);
  }
  std::sort(by_busy.begin(), by_busy.end());
  for (const auto& [busy, s] : by_busy) {
    Stream& stream = trace.streams[s];
    const int number = ++used[{stream.rank, kind[s]}];
    stream.lane = number == 1 ? kind[s] : kind[s] + " " + std::to_string(number);
  }
}

/// Steps are told apart by the profiler's step ranges, else by graph launches that own many kernels.
void find_steps(ClassifiedTrace& trace) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (const RawRange& range : trace.raw.ranges)
    if (!range.gpu && trace.raw.names[range.name].rfind("ProfilerStep", 0) == 0)
      steps.emplace_back(range.start_ns, range.start_ns + range.dur_ns);
  std::sort(steps.begin(), steps.end());
  std::map<std::int64_t, std::int64_t> kernels_of_graph;
  if (steps.size() < 2)
    for (const RawSlice& slice : trace.raw.slices)
      if (slice.correlation >= 0) ++kernels_of_graph[slice.correlation];
  std::map<std::int64_t, std::int32_t> step_of_graph;
  for (const auto& [correlation, count] : kernels_of_graph)
    if (count >= 64) step_of_graph.emplace(correlation, static_cast<std::int32_t>(step_of_graph.size()));
  for (std::size_t i = 0; i < trace.raw.slices.size(); ++i) {
    SliceInfo& info = trace.info[i];
    if (steps.size() >= 2 && info.call != UINT32_MAX) {
      const auto at =
          std::upper_bound(steps.begin(), steps.end(), std::pair(trace.raw.calls[info.call].start_ns, INT64_MAX));
      info.step = static_cast<std::int32_t>(std::max<std::ptrdiff_t>(0, at - steps.begin() - 1));
    } else if (step_of_graph.size() >= 2) {
      const auto at = step_of_graph.find(trace.raw.slices[i].correlation);
      if (at != step_of_graph.end()) info.step = at->second;
    }
    trace.steps = std::max(trace.steps, info.step + 1);
  }
}

TraceOp op_of(const ClassifiedTrace& trace, std::uint32_t slice) {
  const SliceInfo& info = trace.info[slice];
  TraceOp op;
  op.rank = info.rank;
  op.layer = info.layer;
  op.ubatch = info.ubatch;
  op.kind = info.kind;
  op.start = at(trace.raw.slices[slice].start_ns);
  op.end = at(trace.raw.slices[slice].end_ns());
  return op;
}

/// Lanes by name, in order of streams; at most as many as a lane number can hold, the rest share the last.
class LaneTable {
 public:
  explicit LaneTable(const ClassifiedTrace& trace) {
    for (const Stream& stream : trace.streams) {
      const std::string name = stream.lane + " (" + stream.name + ")";
      std::size_t lane = 0;
      while (lane < names.size() && names[lane] != name) ++lane;
      if (lane == names.size() && lane <= UINT8_MAX) names.push_back(name);
      lane_of.push_back(static_cast<std::uint8_t>(std::min<std::size_t>(lane, UINT8_MAX)));
    }
  }
  std::vector<std::string> names;
  std::vector<std::uint8_t> lane_of;
};

Json metadata_of(const ClassifiedTrace& trace) {
  Json metadata = Json::object();
  metadata.set("source", trace.raw.file);
  if (!trace.raw.distributed.is_null()) metadata.set("distributedInfo", trace.raw.distributed);
  if (trace.raw.epoch_ns != 0 || trace.raw.base_ns != 0)
    metadata.set("baseTimeNanoseconds", trace.raw.epoch_ns + trace.raw.base_ns);
  return metadata;
}

Trace to_trace(const ClassifiedTrace& trace, bool merge, std::int32_t step) {
  Trace out;
  const LaneTable lanes(trace);
  out.lanes = lanes.names;
  out.metadata = metadata_of(trace);
  NameTable names;
  for (const Stream& stream : trace.streams) {
    std::uint32_t last = UINT32_MAX;  // slice the op at the back ends with
    for (const std::uint32_t i : stream.slices) {
      const SliceInfo& info = trace.info[i];
      if (trace.raw.slices[i].dur_ns <= 0 || (step >= 0 && info.step != step)) continue;
      if (merge && last != UINT32_MAX) {
        const SliceInfo& before = trace.info[last];
        const bool same = (info.kind != OpKind::Other || info.label != 0) && info.kind == before.kind &&
                          info.layer == before.layer && info.ubatch == before.ubatch && info.label == before.label &&
                          info.step == before.step;
        if (same) {
          out.ops.back().end = std::max(out.ops.back().end, at(trace.raw.slices[i].end_ns()));
          last = i;
          continue;
        }
      }
      TraceOp op = op_of(trace, i);
      op.lane = lanes.lane_of[info.stream];
      op.name = names.add(merge && info.label != 0   ? trace.labels[info.label]
                          : op.kind == OpKind::Other ? short_kernel_name(trace.raw.names[trace.raw.slices[i].name])
                                                     : std::string(op_name(op.kind)));
      out.ops.push_back(op);
      last = i;
    }
  }
  std::stable_sort(out.ops.begin(), out.ops.end(), [](const TraceOp& a, const TraceOp& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    return a.lane != b.lane ? a.lane < b.lane : a.start < b.start;
  });
  out.names = names.texts();
  return out;
}

}  // namespace

std::vector<std::int32_t> ClassifiedTrace::ranks() const {
  std::vector<std::int32_t> all;
  for (const Stream& stream : streams)
    if (all.empty() || all.back() != stream.rank) all.push_back(stream.rank);
  return all;
}

ClassifiedTrace classify(RawTrace raw, const KernelRules& rules) {
  ClassifiedTrace trace;
  trace.raw = std::move(raw);
  trace.info.resize(trace.raw.slices.size());
  Streams(trace).find();
  find_roles(trace, rules);
  find_calls(trace);
  promote_collectives(trace);
  name_lanes(trace);
  find_steps(trace);
  resolve_comm_roles(trace);
  if (place_by_ranges(trace, rules))
    trace.how = "ranges";
  else if (place_by_order(trace))
    trace.how = "order";
  for (const SliceInfo& info : trace.info) {
    trace.layers = std::max(trace.layers, info.layer + 1);
    trace.ubatches = std::max<int>(trace.ubatches, info.ubatch + 1);
  }
  return trace;
}

Trace ops_of(const ClassifiedTrace& trace, std::int32_t step) {
  return to_trace(trace, true, step);
}

Trace slices_of(const ClassifiedTrace& trace) {
  return to_trace(trace, false, -1);
}

std::string short_kernel_name(std::string_view name) {
  // CUTLASS wraps everything in device_kernel<Kernel>: the argument is the name.
  constexpr std::string_view kWrapper = "device_kernel<";
  if (const auto at = name.find(kWrapper); at != std::string_view::npos) {
    const std::string_view inner = name.substr(at + kWrapper.size());
    return std::string(inner.substr(0, inner.find_first_of("<>,")));
  }
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<') {
      ++depth;
    } else if (c == '>' && depth > 0) {
      --depth;
    } else if (c == '(' && depth == 0) {
      // "(anonymous namespace)::f(int)": the first bracket is part of the name.
      constexpr std::string_view kAnonymous = "(anonymous namespace)::";
      if (name.substr(i, kAnonymous.size()) != kAnonymous) break;
      out += kAnonymous;
      i += kAnonymous.size() - 1;
    } else if (depth == 0) {
      out += c;
    }
  }
  if (out.rfind("void ", 0) == 0) out.erase(0, 5);
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out.empty() ? std::string(name.substr(0, 80)) : out;
}

}  // namespace dbo
