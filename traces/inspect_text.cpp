#include <algorithm>

#include "traces/inspect.h"
#include "traces/text_table.h"

namespace dbo {
namespace {

std::string plural(std::int64_t count, const std::string& what) {
  return grouped(count) + " " + what + (count == 1 ? "" : "s");
}

std::string head(const Inspection& it) {
  const RawTrace& raw = it.classified.raw;
  std::string out = "trace      " + raw.file + "\n";
  out += "read       " + bytes_text(raw.bytes) + ", " + plural(raw.events, "event") + ": " +
         plural(static_cast<std::int64_t>(it.classified.raw.slices.size()), it.own ? "op" : "GPU slice") + ", " +
         plural(static_cast<std::int64_t>(raw.calls.size()), "host call") + " kept\n";
  if (raw.truncated)
    out += "warning    the file was cut at byte " + grouped(static_cast<std::int64_t>(raw.truncated_at)) +
           "; what came before is used\n";
  for (const auto& [reason, skipped] : raw.skipped)
    out += "skipped    " + grouped(skipped.count) + " x " + reason + " (first at byte " +
           grouped(static_cast<std::int64_t>(skipped.first_offset)) + ")\n";
  return out;
}

std::string structure(const Inspection& it) {
  const ClassifiedTrace& c = it.classified;
  std::string out = "structure  ";
  if (c.how.empty()) {
    out += "no layers recognised";
  } else {
    out += plural(c.layers, "layer") + (c.dense_layers > 0 ? " (" + std::to_string(c.dense_layers) + " dense)" : "") +
           ", " + std::to_string(c.ubatches) + (c.ubatches == 1 ? " ubatch" : " ubatches") + ", " +
           plural(c.steps, "step") + ", from " +
           (c.how == "ops"      ? "the file's own ops"
            : c.how == "ranges" ? "named ranges"
                                : "the order of anchor kernels");
  }
  const auto all = static_cast<std::int64_t>(c.info.size());
  out += "\nplaced     " + grouped(it.placed) + " of " + plural(all, "slice") + " in ops; " + grouped(it.unknown) +
         " of unknown kernels\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(c.unknown.size(), 5); ++i)
    out += "unknown    " + ms_text(c.unknown[i].second) + "  " + c.unknown[i].first.substr(0, 90) + "\n";
  if (c.unknown.size() > 5)
    out += "unknown    and " + plural(static_cast<std::int64_t>(c.unknown.size()) - 5, "more name") + "\n";
  return out;
}

std::string rank_text(const Inspection& it, const RankMetrics& m) {
  std::string out = "\nrank " + std::to_string(m.rank) + ", span " + ms_text(m.temporal.span) + "\n";
  const auto share = [&](Ns part) {
    return m.temporal.span.count() == 0
               ? std::string("-")
               : fixed_text(100.0 * static_cast<double>(part.count()) / static_cast<double>(m.temporal.span.count()),
                            1) +
                     " %";
  };
  TextTable table({"", "time", "of span"});
  table.add({"compute kernels", ms_text(m.overlap.compute), share(m.overlap.compute)});
  table.add({"communication kernels", ms_text(m.overlap.comm), share(m.overlap.comm)});
  table.add({"both at once", ms_text(m.overlap.both), share(m.overlap.both)});
  table.add({"communication kernels alone", ms_text(m.overlap.exposed()), share(m.overlap.exposed())});
  table.add({"neither, but busy", ms_text(m.temporal.rest - m.overlap.exposed()),
             share(m.temporal.rest - m.overlap.exposed())});
  table.add({"idle", ms_text(m.temporal.idle), share(m.temporal.idle)});
  // With placed ops, wires and waiting receives count and sends do not: as `simulate` says it.
  const Ns exposed = m.exposed_by_op.value_or(m.overlap.exposed());
  table.add({"exposed comm", ms_text(exposed), share(exposed)});
  out += table.text();
  out += "  overlap: " + percent_text(m.overlap.comm_percent()) + " of communication, " +
         percent_text(m.overlap.compute_percent()) + " of compute\n";
  if (m.in_flight)
    out += "  in flight: " + plural(m.in_flight->transfers, "transfer") + ", " + ms_text(m.in_flight->under_way) +
           " from send to arrival, " + percent_text(m.in_flight->hidden_percent()) + " hidden" +
           (m.in_flight->estimated ? " (waiting estimated from the shortest receives)" : "") + "\n";
  TextTable lanes(
      {"lane", "busy ms", "gaps", "idle ms", "longest us", ">20 us", "host wait ms", "kernel wait ms", "other ms"});
  const auto ms = [](Ns time) { return fixed_text(static_cast<double>(time.count()) / 1e6, 3); };
  for (std::size_t i = 0; i < m.bubbles.size(); ++i) {
    const BubbleMeasure& b = m.bubbles[i];
    const IdleBreakdown& idle = m.idle[i];
    const std::string name = it.own
                                 ? it.ops.lanes[b.lane]
                                 : it.classified.streams[b.lane].lane + " (" + it.classified.streams[b.lane].name + ")";
    lanes.add({name, ms(b.busy), grouped(b.count), ms(b.idle), us_short(b.longest), grouped(b.above_threshold),
               ms(idle.host_wait), ms(idle.kernel_wait), ms(idle.other)});
  }
  return out + lanes.text();
}

std::string stats_text(const char* first, const std::vector<OpStatistics>& stats, std::size_t limit) {
  TextTable table({first, "count", "total ms", "mean us", "median", "p10", "p90", "min", "max"});
  for (std::size_t i = 0; i < std::min(limit, stats.size()); ++i) {
    const OpStatistics& s = stats[i];
    std::string name = s.name;
    if (name.size() > 56) name = name.substr(0, 53) + "...";
    table.add({name, grouped(s.count), fixed_text(static_cast<double>(s.total.count()) / 1e6, 3), us_short(s.mean),
               us_short(s.median), us_short(s.p10), us_short(s.p90), us_short(s.shortest), us_short(s.longest)});
  }
  return table.empty() ? std::string() : "\n" + table.text();
}

Json ns(Ns time) {
  return time.count();
}
Json percent(std::optional<double> value) {
  return value ? Json(static_cast<double>(static_cast<std::int64_t>(*value * 100 + 0.5)) / 100) : Json();
}

Json rank_json(const Inspection& it, const RankMetrics& m) {
  Json rank = Json::object();
  rank.set("rank", static_cast<std::int64_t>(m.rank));
  rank.set("span_ns", ns(m.temporal.span));
  Json overlap = Json::object();
  overlap.set("comm_ns", ns(m.overlap.comm));
  overlap.set("compute_ns", ns(m.overlap.compute));
  overlap.set("both_ns", ns(m.overlap.both));
  overlap.set("comm_overlap_percent", percent(m.overlap.comm_percent()));
  overlap.set("compute_overlap_percent", percent(m.overlap.compute_percent()));
  rank.set("overlap", std::move(overlap));
  rank.set("exposed_comm_ns", ns(m.exposed_by_op ? *m.exposed_by_op : m.overlap.exposed()));
  Json temporal = Json::object();
  temporal.set("idle_ns", ns(m.temporal.idle));
  temporal.set("compute_ns", ns(m.temporal.compute));
  temporal.set("non_compute_ns", ns(m.temporal.rest));
  rank.set("temporal", std::move(temporal));
  if (m.in_flight) {
    Json flight = Json::object();
    flight.set("transfers", m.in_flight->transfers);
    flight.set("under_way_ns", ns(m.in_flight->under_way));
    flight.set("waited_ns", ns(m.in_flight->waited));
    flight.set("hidden_percent", percent(m.in_flight->hidden_percent()));
    flight.set("estimated", m.in_flight->estimated);
    rank.set("in_flight", std::move(flight));
  } else {
    rank.set("in_flight", Json());
  }
  Json lanes = Json::array();
  for (std::size_t i = 0; i < m.bubbles.size(); ++i) {
    const BubbleMeasure& b = m.bubbles[i];
    Json lane = Json::object();
    lane.set("lane", it.own ? it.ops.lanes[b.lane] : it.classified.streams[b.lane].lane);
    lane.set("stream",
             it.classified.streams.size() > b.lane && !it.own ? it.classified.streams[b.lane].name : std::string());
    lane.set("busy_ns", ns(b.busy));
    lane.set("bubbles", b.count);
    lane.set("idle_ns", ns(b.idle));
    lane.set("longest_ns", ns(b.longest));
    lane.set("bubbles_above_20us", b.above_threshold);
    lane.set("idle_above_20us_ns", ns(b.idle_above_threshold));
    lane.set("host_wait_ns", ns(m.idle[i].host_wait));
    lane.set("kernel_wait_ns", ns(m.idle[i].kernel_wait));
    lane.set("other_ns", ns(m.idle[i].other));
    lanes.push(std::move(lane));
  }
  rank.set("lanes", std::move(lanes));
  return rank;
}

Json stats_json(const std::vector<OpStatistics>& stats) {
  Json list = Json::array();
  for (const OpStatistics& s : stats) {
    Json one = Json::object();
    one.set("name", s.name);
    one.set("count", s.count);
    one.set("total_ns", ns(s.total));
    one.set("mean_ns", ns(s.mean));
    one.set("median_ns", ns(s.median));
    one.set("p10_ns", ns(s.p10));
    one.set("p90_ns", ns(s.p90));
    one.set("min_ns", ns(s.shortest));
    one.set("max_ns", ns(s.longest));
    list.push(std::move(one));
  }
  return list;
}

}  // namespace

std::string inspection_text(const Inspection& it, const InspectOptions& options) {
  std::string out = head(it) + structure(it);
  for (const RankMetrics& rank : it.ranks) out += rank_text(it, rank);
  out += stats_text("op", it.op_stats, SIZE_MAX);
  if (!it.own) out += stats_text("kernel", it.kernel_stats, options.kernels);
  return out;
}

Json inspection_json(const Inspection& it) {
  const ClassifiedTrace& c = it.classified;
  Json out = Json::object();
  out.set("file", c.raw.file);
  out.set("bytes", static_cast<std::int64_t>(c.raw.bytes));
  out.set("events", c.raw.events);
  out.set("slices", static_cast<std::int64_t>(c.info.size()));
  out.set("host_events_not_used", c.raw.host_events);
  out.set("truncated", c.raw.truncated);
  Json skipped = Json::array();
  for (const auto& [reason, count] : c.raw.skipped) {
    Json one = Json::object();
    one.set("reason", reason);
    one.set("count", count.count);
    one.set("first_offset", static_cast<std::int64_t>(count.first_offset));
    skipped.push(std::move(one));
  }
  out.set("skipped", std::move(skipped));
  out.set("source", it.own ? "dbo" : "profiler");
  out.set("plan_hash", it.ops.plan_hash().empty() ? Json() : Json(it.ops.plan_hash()));
  Json structure = Json::object();
  structure.set("from", c.how.empty() ? Json() : Json(c.how));
  structure.set("layers", c.layers);
  structure.set("dense_layers", c.dense_layers);
  structure.set("ubatches", c.ubatches);
  structure.set("steps", c.steps);
  structure.set("placed_slices", it.placed);
  structure.set("unclassified_slices", it.unknown);
  Json unknown = Json::array();
  for (const auto& [name, time] : c.unknown) {
    Json one = Json::object();
    one.set("name", name);
    one.set("total_ns", ns(time));
    unknown.push(std::move(one));
  }
  structure.set("unclassified", std::move(unknown));
  out.set("structure", std::move(structure));
  Json ranks = Json::array();
  for (const RankMetrics& rank : it.ranks) ranks.push(rank_json(it, rank));
  out.set("ranks", std::move(ranks));
  out.set("ops", stats_json(it.op_stats));
  out.set("kernels", stats_json(it.kernel_stats));
  return out;
}

}  // namespace dbo
