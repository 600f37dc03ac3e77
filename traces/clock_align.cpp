#include "traces/clock_align.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "traces/overlap.h"

namespace dbo {
namespace {

using CallKey = std::tuple<bool, std::int32_t, int>;  ///< dispatch or combine, layer, ubatch

/// What one rank saw of one exchange: when its own part was on its way (or its comm kernel had started), and when all
/// parts were there (or the kernel ended).
struct Seen {
  std::optional<std::int64_t> given, taken;
};

std::map<CallKey, Seen> exchanges(const Trace& trace, std::int32_t rank) {
  std::map<CallKey, Seen> all;
  for (const TraceOp& op : trace.ops) {
    if (op.rank != rank || !is_comm(op.kind) || op.kind == OpKind::CCopy || is_wire(op.kind)) continue;
    Seen& seen = all[{is_dispatch(op.kind), op.layer, op.ubatch}];
    const std::int64_t start = op.start.time_since_epoch().count(), end = op.end.time_since_epoch().count();
    if (is_send(op.kind) || is_collective(op.kind)) seen.given = is_send(op.kind) ? end : start;
    if (is_recv(op.kind) || is_collective(op.kind)) seen.taken = end;
  }
  return all;
}

struct Point {
  double time = 0, offset = 0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Every pair's slope for a few points; for many, pairs half the list apart, which are long and as many as points.
double slope_of(const std::vector<Point>& points) {
  std::vector<double> slopes;
  const auto add = [&](const Point& a, const Point& b) {
    if (b.time > a.time) slopes.push_back((b.offset - a.offset) / (b.time - a.time));
  };
  if (points.size() <= 64) {
    for (std::size_t i = 0; i < points.size(); ++i)
      for (std::size_t j = i + 1; j < points.size(); ++j) add(points[i], points[j]);
  } else {
    const std::size_t half = points.size() / 2;
    for (std::size_t i = 0; i + half < points.size(); ++i) add(points[i], points[i + half]);
  }
  return slopes.empty() ? 0 : median(std::move(slopes));
}

RankClock fit(std::int32_t rank, std::vector<Point> points, double origin) {
  RankClock clock;
  clock.rank = rank;
  clock.measurements = static_cast<int>(points.size());
  if (points.size() < 2) return clock;
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.time < b.time; });
  const double slope = slope_of(points);
  std::vector<double> at_origin, distance;
  for (const Point& point : points) at_origin.push_back(point.offset - slope * (point.time - origin));
  const double offset = median(std::move(at_origin));
  for (const Point& point : points) distance.push_back(std::abs(point.offset - slope * (point.time - origin) - offset));
  clock.offset = Ns{std::llround(offset)};
  clock.drift_ppm = slope * 1e6;
  clock.residual = Ns{std::llround(median(std::move(distance)))};
  return clock;
}

std::int64_t first_start(const Trace& trace, std::int32_t rank) {
  std::int64_t first = INT64_MAX;
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank) first = std::min(first, op.start.time_since_epoch().count());
  return first;
}

}  // namespace

std::vector<RankClock> measure_clocks(const Trace& trace) {
  std::vector<RankClock> clocks;
  const std::vector<std::int32_t> ranks = ranks_of(trace);
  if (ranks.empty()) return clocks;
  const std::map<CallKey, Seen> reference = exchanges(trace, ranks.front());
  const auto origin = static_cast<double>(first_start(trace, ranks.front()));
  clocks.push_back({ranks.front(), Ns{}, 0, Ns{}, 0});
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    std::vector<Point> points;
    bool equal = true;
    for (const auto& [key, own] : exchanges(trace, ranks[r])) {
      const auto other = reference.find(key);
      if (other == reference.end()) continue;
      const Seen& first = other->second;
      if (!own.given || !own.taken || !first.given || !first.taken) continue;
      const std::int64_t least = *own.given - *first.taken, most = *own.taken - *first.given;
      equal = equal && least <= 0 && most >= 0;
      points.push_back({static_cast<double>(*first.taken), static_cast<double>(least + most) / 2});
    }
    if (equal) {
      clocks.push_back({ranks[r], Ns{}, 0, Ns{}, static_cast<int>(points.size())});
      continue;
    }
    clocks.push_back(fit(ranks[r], std::move(points), origin));
  }
  return clocks;
}

Trace align_clocks(const Trace& trace, const std::vector<RankClock>& clocks) {
  Trace aligned = trace;
  std::map<std::int32_t, const RankClock*> of_rank;
  for (const RankClock& clock : clocks) of_rank[clock.rank] = &clock;
  const std::vector<std::int32_t> ranks = ranks_of(trace);
  const std::int64_t origin = ranks.empty() ? 0 : first_start(trace, ranks.front());
  for (TraceOp& op : aligned.ops) {
    const auto clock = of_rank.find(op.rank);
    if (clock == of_rank.end() || clock->second->measurements < 2) continue;
    const auto shift = [&](SimTime time) {
      const auto since = static_cast<double>(time.time_since_epoch().count() - origin);
      return time - clock->second->offset - Ns{std::llround(since * clock->second->drift_ppm / 1e6)};
    };
    op.start = shift(op.start);
    op.end = shift(op.end);
  }
  return aligned;
}

}  // namespace dbo
