#include "sim/cost/profile_points.h"

#include <iterator>

namespace dbo {
namespace {

/// Coordinate of a level of nesting.
std::size_t axis_of(std::size_t level, Innermost innermost) {
  if (innermost == Innermost::Tokens || level < kContextLevel) return level;
  return level == kContextLevel ? kTokenLevel : kContextLevel;
}

/// Whether the points lie on both sides of what is asked for along the axis: what they say holds there.
bool reaches(std::span<const Measured> points, std::size_t axis, double asked) {
  const auto [least, most] =
      std::minmax_element(points.begin(), points.end(),
                          [&](const Measured& a, const Measured& b) { return a.place[axis] < b.place[axis]; });
  return least->place[axis] <= asked && asked <= most->place[axis];
}

/// The analytical cost at `at`, off the measured range along the axis, whose edge is `edge`. Its steps (tiles of rows,
/// waves of tiles) are not where those of the measured kernels are: up to twice the edge's tokens, and down to half of
/// them, it goes straight.
double extended(const Shape& shape, const Place& edge, const Place& at, std::size_t axis) {
  const double from = edge[axis], to = at[axis];
  if (axis != kTokenLevel || from <= 0 || to > 2 * from || 2 * to < from) return shape(at);
  Place far = edge;
  far[axis] = to > from ? 2 * from : from / 2;
  const double base = shape(edge);
  return base + (shape(far) - base) * ((to - from) / (far[axis] - from));
}

/// What stays the same from level to level.
struct Nesting {
  Innermost innermost;
  double Measured::*value;
  const Shape& shape;
  bool& beyond;
};

/// Value at `at`, from points sorted level by level whose coordinates before `level` are those of `at`. Among the
/// values of an outer coordinate those are used that were measured on both sides of the tokens (inside of those, the
/// context) asked for, if there are such: a neighbour further away is worth more than one whose few tokens have to
/// stand for many.
double interpolate_level(std::span<const Measured> all, std::size_t level, Place at, const Nesting& nesting) {
  if (level == kPlaceLevels) return all.front().*nesting.value;
  const std::size_t axis = axis_of(level, nesting.innermost);
  const std::size_t inside = axis == kTokenLevel ? kContextLevel : kTokenLevel;
  std::vector<Measured> reaching;
  for (std::size_t begin = 0; level + 1 < kPlaceLevels && begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].place[axis] == all[begin].place[axis]) ++end;
    const std::span<const Measured> same = all.subspan(begin, end - begin);
    if (reaches(same, inside, at[inside])) reaching.insert(reaching.end(), same.begin(), same.end());
    begin = end;
  }
  // Where they lie on one side only and others on both, what those say of other tokens is worth more than what the
  // analytical cost says of other ranks or experts.
  const auto spans = [&](std::span<const Measured> some) {
    return !some.empty() && some.front().place[axis] <= at[axis] && at[axis] <= some.back().place[axis];
  };
  const std::span<const Measured> points =
      reaching.empty() || (level == 0 && !spans(reaching) && spans(all)) ? all : reaching;
  const auto end_of = [&](std::size_t begin) {
    std::size_t end = begin;
    while (end < points.size() && points[end].place[axis] == points[begin].place[axis]) ++end;
    return end;
  };
  const auto inner = [&](std::size_t begin) {
    Place there = at;
    there[axis] = points[begin].place[axis];
    return interpolate_level(points.subspan(begin, end_of(begin) - begin), level + 1, there, nesting);
  };
  // Off the measured range, an edge value goes on in proportion to the analytical cost.
  const auto extend = [&](std::size_t begin) {
    Place edge = at;
    edge[axis] = points[begin].place[axis];
    nesting.beyond = true;
    const double base = nesting.shape(edge);
    return inner(begin) * (base > 0 ? extended(nesting.shape, edge, at, axis) / base : 1);
  };
  const double x = at[axis];
  if (x < points.front().place[axis]) return extend(0);
  std::size_t low = 0;
  for (std::size_t next = end_of(low); next < points.size() && points[next].place[axis] <= x; next = end_of(low))
    low = next;
  if (points[low].place[axis] == x) return inner(low);
  const std::size_t high = end_of(low);
  if (high == points.size()) return extend(low);
  const double x_low = points[low].place[axis], x_high = points[high].place[axis];
  const double y_low = inner(low), y_high = inner(high);
  return y_low + (y_high - y_low) * ((x - x_low) / (x_high - x_low));
}

double interpolate_sorted(std::span<const Measured> points, const Place& at, const Nesting& nesting) {
  if (nesting.innermost == Innermost::Tokens) return interpolate_level(points, 0, at, nesting);
  std::vector<Measured> sorted(points.begin(), points.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const Measured& a, const Measured& b) {
    const auto key = [](const Place& p) { return Place{p[0], p[kSmLevel], p[kTokenLevel], p[kContextLevel]}; };
    return key(a.place) < key(b.place);
  });
  return interpolate_level(sorted, 0, at, nesting);
}

Place place_of(const ProfilePoint& p) {
  const double outer = p.ranks > 0 ? p.ranks : p.experts;
  const double context = p.op == "A0" ? 0 : static_cast<double>(p.context);  // projections see no context
  return {outer, static_cast<double>(p.sms), context, static_cast<double>(p.tokens)};
}

}  // namespace

std::vector<Measured> select_points(const Profile& profile, const PointFilter& filter) {
  std::vector<Measured> out, in_company;
  for (const ProfilePoint& p : profile.points) {
    if (p.op != filter.op || p.precision != filter.precision || p.beside.empty() == filter.beside) continue;
    if (p.duty != filter.duty) continue;
    if (filter.phased && p.prefill != filter.prefill) continue;
    const bool other = filter.transport && p.transport && *filter.transport != *p.transport;
    if (other && (!filter.or_class || transport_info(*p.transport).transport_class != *filter.or_class)) continue;
    // Comm kernels take SMs and issue slots, copy engines neither: one says nothing of the other.
    if (filter.beside && (p.beside_sms > 0) != (filter.company_sms > 0)) continue;
    out.push_back({place_of(p), p.median_us * 1000, static_cast<double>(p.sm_mhz)});
    if (p.beside_sms == filter.company_sms) in_company.push_back(out.back());
  }
  // An un-split step's comm kernels have other SMs than a split one's, beside the same ops.
  if (filter.beside && !in_company.empty()) out = std::move(in_company);
  std::stable_sort(out.begin(), out.end(), [](const Measured& a, const Measured& b) { return a.place < b.place; });
  // The same place beside different things: the slowest company counts.
  std::vector<Measured> unique;
  for (const Measured& m : out) {
    if (!unique.empty() && unique.back().place == m.place) {
      unique.back().ns = std::max(unique.back().ns, m.ns);
    } else {
      unique.push_back(m);
    }
  }
  if (filter.most_sms) {
    double most = 0;
    for (const Measured& m : unique) most = std::max(most, m.place[kSmLevel]);
    std::erase_if(unique, [&](const Measured& m) { return m.place[kSmLevel] != most; });
  }
  return unique;
}

const std::vector<Measured>& PointSelections::select(const PointFilter& filter) {
  const auto known = known_.find(filter);
  if (known != known_.end()) return known->second;
  return known_.emplace(filter, select_points(profile_, filter)).first->second;
}

double interpolate(std::span<const Measured> points, const Place& at, const Shape& shape, bool& beyond,
                   Innermost innermost) {
  return interpolate_sorted(points, at, {innermost, &Measured::ns, shape, beyond});
}

double interpolate_clock(std::span<const Measured> points, const Place& at, Innermost innermost) {
  static const Shape kLevel = [](const Place&) { return 1.0; };
  const auto seen = [](const Measured& m) { return m.mhz > 0; };
  std::vector<Measured> known;
  if (!std::all_of(points.begin(), points.end(), seen)) {
    std::copy_if(points.begin(), points.end(), std::back_inserter(known), seen);
    if (known.empty()) return 0;
    points = known;
  }
  bool beyond = false;
  return interpolate_sorted(points, at, {innermost, &Measured::mhz, kLevel, beyond});
}

}  // namespace dbo
