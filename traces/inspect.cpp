#include "traces/inspect.h"

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "traces/own_trace.h"
#include "traces/transfers.h"

namespace dbo {
namespace {

std::int64_t length(const TraceOp& op) {
  return (op.end - op.start).count();
}

/// Ops of a kind, and ranges that are no kind of op (backward passes).
std::vector<OpStatistics> stats_of_ops(const Trace& trace, const std::vector<std::string>& labels) {
  std::map<std::pair<OpKind, std::string>, std::vector<std::int64_t>> values;
  for (const TraceOp& op : trace.ops) {
    const std::string& name = op.name < trace.names.size() ? trace.names[op.name] : std::string();
    if (op.kind == OpKind::Other && std::find(labels.begin() + 1, labels.end(), name) == labels.end()) continue;
    values[{op.kind, name == op_name(op.kind) ? std::string() : name}].push_back(length(op));
  }
  std::vector<OpStatistics> stats;
  for (auto& [key, list] : values) {
    const auto& [kind, name] = key;
    stats.push_back(statistics_of(std::string(op_name(kind)) + (name.empty() ? "" : ", " + name), std::move(list)));
  }
  return stats;
}

/// What a receive took longer than the shortest of its kind on its rank is taken for waiting.
void estimate_waits(Trace& trace) {
  std::map<std::pair<std::int32_t, OpKind>, std::int64_t> shortest;
  for (const TraceOp& op : trace.ops) {
    if (!is_recv(op.kind)) continue;
    const auto [at, fresh] = shortest.emplace(std::pair(op.rank, op.kind), length(op));
    if (!fresh) at->second = std::min(at->second, length(op));
  }
  for (TraceOp& op : trace.ops)
    if (is_recv(op.kind)) op.waited = Ns{length(op) - shortest.at({op.rank, op.kind})};
}

std::int64_t median(std::vector<std::int64_t> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

Json us(std::int64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

}  // namespace

ClassifiedTrace classified_from_own(const Trace& trace, RawTrace raw) {
  ClassifiedTrace out;
  out.raw = std::move(raw);
  out.raw.rows.clear();
  out.raw.slices.clear();
  out.how = "ops";
  std::map<std::pair<std::int32_t, std::uint8_t>, std::uint32_t> stream_of;
  for (const TraceOp& op : trace.ops)
    if (!is_wire(op.kind)) stream_of.emplace(std::pair(op.rank, op.lane), 0);
  for (auto& [place, stream] : stream_of) {
    stream = static_cast<std::uint32_t>(out.streams.size());
    RawRow row;
    row.gpu = true;
    row.pid = std::to_string(place.first);
    row.thread = place.second < trace.lanes.size() ? trace.lanes[place.second] : "";
    out.streams.push_back({place.first, stream, row.thread, row.thread, {}});
    out.raw.rows.push_back(std::move(row));
  }
  for (const TraceOp& op : trace.ops) {
    if (is_wire(op.kind)) continue;
    const std::uint32_t stream = stream_of.at({op.rank, op.lane});
    const auto index = static_cast<std::uint32_t>(out.raw.slices.size());
    const std::string_view name =
        op.kind == OpKind::Other && op.name < trace.names.size() ? trace.names[op.name] : op_name(op.kind);
    out.raw.slices.push_back(
        {op.start.time_since_epoch().count(), length(op), -1, out.raw.names.add(name), stream, RawKind::Kernel});
    SliceInfo info;
    info.cls = op.kind == OpKind::CCopy ? KernelClass::Memory
               : is_comm(op.kind)       ? KernelClass::Comm
                                        : KernelClass::Compute;
    info.kind = op.kind;
    info.ubatch = op.ubatch;
    info.layer = op.layer;
    info.rank = op.rank;
    info.stream = stream;
    out.info.push_back(info);
    out.streams[stream].slices.push_back(index);
    out.layers = std::max(out.layers, op.layer + 1);
    out.ubatches = std::max<int>(out.ubatches, op.ubatch + 1);
  }
  return out;
}

Inspection inspect_raw(RawTrace raw, const InspectOptions& options) {
  Inspection result;
  result.own = raw.own();
  if (result.own) {
    result.ops = own_trace(raw);
    result.classified = classified_from_own(result.ops, std::move(raw));
    const Measured measured = measured_slices(result.ops);
    result.ranks = measure(measured);
    for (RankMetrics& rank : result.ranks) rank.exposed_by_op = exposed_communication(result.ops, rank.rank);
    result.kernel_stats = op_statistics(measured);
  } else {
    if (raw.slices.empty())
      throw InputError(raw.file, "",
                       "no GPU slice in " + std::to_string(raw.events) + " events: was the GPU traced at all?");
    KernelRules rules;
    for (const std::string& file : options.rule_files) rules.add_file(file);
    result.classified = classify(std::move(raw), rules);
    result.ops = ops_of(result.classified);
    estimate_waits(result.ops);
    const Measured measured = measured_slices(result.classified);
    result.ranks = measure(measured);
    result.kernel_stats = op_statistics(measured);
  }
  for (RankMetrics& rank : result.ranks) rank.in_flight = in_flight(result.ops, rank.rank, !result.own);
  result.op_stats = stats_of_ops(result.ops, result.classified.labels);
  for (const SliceInfo& info : result.classified.info) {
    result.placed += info.kind != OpKind::Other || info.label != 0 ? 1 : 0;
    result.unknown += !result.own && info.role == Role::Unknown ? 1 : 0;
  }
  return result;
}

Inspection inspect_trace(const std::string& path, const InspectOptions& options) {
  return inspect_raw(read_raw_trace(path, options.read), options);
}

Json costs_by_kind(const Trace& ops, const std::string& file) {
  std::map<OpKind, std::vector<std::int64_t>> lengths;
  for (const TraceOp& op : ops.ops) {
    if (op.kind == OpKind::Other) continue;
    lengths[op.kind].push_back(length(op) - (is_recv(op.kind) ? std::min(op.waited.count(), length(op)) : 0));
  }
  if (lengths.empty()) throw InputError(file, "", "no op was recognised, so there are no costs by kind to write");
  std::map<bool, std::vector<std::int64_t>> under_way;
  for (const std::int32_t rank : ranks_of(ops)) {
    const Transfers transfers(ops, rank);
    for (const auto& [key, parts] : transfers.all())
      if (const auto interval = Transfers::interval(parts))
        under_way[std::get<0>(key)].push_back(interval->end - interval->begin);
  }
  Json costs = Json::object();
  costs.set("source", "fixed");
  for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::MLP, OpKind::S, OpKind::FFN})
    if (lengths.count(kind) > 0) costs.set(std::string(op_name(kind)) + "_us", us(median(lengths[kind])));
  const auto exchange = [&](bool dispatch, OpKind send, OpKind recv) {
    Json part = Json::object();
    if (lengths.count(send) > 0) part.set("send_us", us(median(lengths[send])));
    if (under_way.count(dispatch) > 0) part.set("wire_us", us(median(under_way[dispatch])));
    if (lengths.count(recv) > 0) part.set("recv_us", us(median(lengths[recv])));
    if (!dispatch && lengths.count(OpKind::CCopy) > 0) part.set("copy_us", us(median(lengths[OpKind::CCopy])));
    if (!part.members().empty()) costs.set(dispatch ? "D" : "C", std::move(part));
  };
  exchange(true, OpKind::DSend, OpKind::DRecv);
  exchange(false, OpKind::CSend, OpKind::CRecv);
  return costs;
}

}  // namespace dbo
