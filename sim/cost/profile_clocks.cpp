// Which of a profile's points say what computation takes at another clock, and why others do not.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>

#include "sim/cost/profile.h"

namespace dbo {
namespace {

bool relaxed(const ProfilePoint& p) {
  return p.duty < 100 && p.beside.empty();
}

/// What tells computations apart but for pauses.
auto place_of(const ProfilePoint& p) {
  return std::tie(p.op, p.prefill, p.transport, p.experts, p.tokens, p.context, p.sms, p.precision);
}

bool before(const ProfilePoint* a, const ProfilePoint* b) {
  return place_of(*a) < place_of(*b);
}

std::string number(double value) {
  if (value == std::floor(value)) return std::to_string(static_cast<std::int64_t>(value));
  std::string text;
  append_json_number(text, std::round(value * 10) / 10);
  return text;
}

class ClockPoints {
 public:
  explicit ClockPoints(const Profile& profile) : profile_(profile), duty_(relaxed_duty(profile)) {
    for (const ProfilePoint& p : profile.points)
      if (p.duty == 100 && p.beside.empty()) dense_.push_back(&p);
    std::sort(dense_.begin(), dense_.end(), before);
  }

  /// Why a point with pauses says nothing of the clock, with the member at fault; empty: it does.
  std::pair<std::string, std::string> fault(const ProfilePoint& p) const {
    if (duty_ == 100) return {"sm_mhz", "no point with pauses has a clock"};
    if (p.duty != duty_) return {"duty", "most points with pauses are at duty " + std::to_string(duty_)};
    const auto at = std::lower_bound(dense_.begin(), dense_.end(), &p, before);
    if (at == dense_.end() || before(&p, *at)) return {};
    const ProfilePoint& dense = **at;
    if (p.sm_mhz > 0 && dense.sm_mhz > 0 && p.sm_mhz < dense.sm_mhz * kNoise)
      return {"sm_mhz", "without pauses the clock was higher, " + std::to_string(dense.sm_mhz) + " MHz"};
    // Nothing slows down at a higher clock; the shortest kernels vary by more than a clock changes.
    if (p.median_us * kNoise > dense.median_us && p.median_us > dense.median_us + kNoiseUs)
      return {"median_us", "without pauses it took less, " + number(dense.median_us) + " us"};
    return {};
  }

  /// A phase whose computation has points with pauses that no clock of a batch leads to; nothing when there is none.
  std::optional<bool> phase_without_clock() const {
    for (const bool prefill : {false, true}) {
      const auto any = [&](const auto& test) {
        return std::any_of(profile_.points.begin(), profile_.points.end(),
                           [&](const ProfilePoint& p) { return p.beside.empty() && p.prefill == prefill && test(p); });
      };
      const auto clock_at = [&](int duty) {
        return any([&](const ProfilePoint& p) { return p.op == "A0" && p.duty == duty && p.sm_mhz > 0; });
      };
      const bool used = any([&](const ProfilePoint& p) { return p.op[0] == 'A' && p.duty == duty_; });
      if (duty_ < 100 && used && !(clock_at(100) && clock_at(duty_))) return prefill;
    }
    return std::nullopt;
  }

 private:
  static constexpr double kNoise = 0.95, kNoiseUs = 2;

  const Profile& profile_;
  int duty_;
  std::vector<const ProfilePoint*> dense_;
};

}  // namespace

int relaxed_duty(const Profile& profile) {
  // The clock of a batch is told from A0, so its points count first.
  std::map<int, std::pair<int, int>> points;
  for (const ProfilePoint& p : profile.points) {
    if (!relaxed(p) || p.sm_mhz <= 0) continue;
    points[p.duty].first += p.op == "A0" ? 1 : 0;
    ++points[p.duty].second;
  }
  int best = 100;
  for (const auto& [duty, count] : points)
    if (best == 100 || count > points[best]) best = duty;
  return best;
}

void keep_usable_clocks(Profile& profile) {
  const ClockPoints clocks(profile);
  struct Fault {
    std::size_t first = 0, points = 0;
    std::string text;
  };
  std::map<std::string, Fault> faults;  // by member
  std::vector<ProfilePoint> kept;
  for (std::size_t i = 0; i < profile.points.size(); ++i) {
    const ProfilePoint& p = profile.points[i];
    const auto [member, why] = relaxed(p) ? clocks.fault(p) : std::pair<std::string, std::string>{};
    if (member.empty()) {
      kept.push_back(p);
      continue;
    }
    Fault& fault = faults[member];
    if (fault.points++ > 0) continue;
    fault.first = i;
    const double value = member == "duty" ? p.duty : member == "sm_mhz" ? p.sm_mhz : p.median_us;
    fault.text = member + ": " + number(value) + ", and " + why;
  }
  for (const auto& [member, fault] : faults)
    profile.warnings.push_back(profile.file + ": /points/" + std::to_string(fault.first) + "/" + fault.text +
                               "; this point" +
                               (fault.points > 1 ? " and " + std::to_string(fault.points - 1) + " more" : "") +
                               " with pauses (\"duty\") cannot be used");
  if (const auto prefill = clocks.phase_without_clock())
    profile.warnings.push_back(profile.file + ": /points: no A0 of " + (*prefill ? "prefill" : "decode") +
                               " with a clock (\"sm_mhz\") both with and without pauses, so its computation is priced "
                               "as measured without");
  profile.points = std::move(kept);
}

}  // namespace dbo
