// A profile's points where a plan asks for them: by op, phase, transport and company, and between them.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/cost/profile.h"

namespace dbo {

/// Where a measurement lies: ranks (communication) or experts (MLP), SMs, context, tokens. Outer coordinates first: a
/// grid need not be complete, each outer value has inner ones of its own.
inline constexpr std::size_t kPlaceLevels = 4, kSmLevel = 1, kContextLevel = 2, kTokenLevel = 3;
using Place = std::array<double, kPlaceLevels>;

/// One point as interpolation sees it.
struct Measured {
  Place place;
  double ns = 0;
  double mhz = 0;  ///< clock it was measured at; 0: not known
};

/// The analytical cost at a place, in ns.
using Shape = std::function<double(const Place&)>;

/// Points of one op, as asked for by a plan.
struct PointFilter {
  std::string_view op;
  bool phased = false, prefill = false;
  std::optional<Transport> transport = std::nullopt;
  std::optional<TransportClass> or_class = std::nullopt;  ///< of other transports, those of this class too
  Precision precision = Precision::Bf16;
  bool beside = false;
  int company_sms = 0;  ///< beside: SMs that the plan gives what runs beside
  int duty = 100;
  bool most_sms = false;  ///< of the points that answer, those of the most SMs alone

  friend auto operator<=>(const PointFilter&, const PointFilter&) = default;
};

/// The points that answer to `filter`, by place, each place once.
std::vector<Measured> select_points(const Profile& profile, const PointFilter& filter);

/// Selections from one profile, each made once: thousands of unequal ranks ask for the same ones.
class PointSelections {
 public:
  explicit PointSelections(const Profile& profile) : profile_(profile) {}

  /// As select_points; valid as long as this object. The filter's `op` has to outlive it.
  const std::vector<Measured>& select(const PointFilter& filter);

 private:
  const Profile& profile_;
  std::map<PointFilter, std::vector<Measured>> known_;
};

/// Which of the two last coordinates others are looked for within. Attention of prompts was measured at a few lengths
/// for each number of tokens, most of them that number's own multiples: within one length there may be one number of
/// tokens, within one number of tokens there are lengths on both sides.
enum class Innermost : std::uint8_t { Tokens, Context };

/// Value at `at` from points sorted by place, which must not be empty: linear in each coordinate between the nearest
/// that were measured, on both sides of the tokens (and, inside of those, the context) asked for if there are such. Off
/// the measured range an edge value goes on as `shape` does, and `beyond` is set.
double interpolate(std::span<const Measured> points, const Place& at, const Shape& shape, bool& beyond,
                   Innermost innermost = Innermost::Tokens);
/// The clock the points were measured at, in the same way, from those whose clock is known; 0: of none.
double interpolate_clock(std::span<const Measured> points, const Place& at, Innermost innermost = Innermost::Tokens);

}  // namespace dbo
