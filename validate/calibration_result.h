// From what a calibration measured to a profile: duplicates merged, formulas fitted, and what was done so far kept on
// disk so that a calibration goes on where it stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/profile.h"
#include "validate/calibration.h"

namespace dbo::validate {

/// Reference work timed along with a calibration and again beside every validation: tells clocks from mistakes.
struct Anchor {
  double gemm_us = 0;  ///< a 4096^3 bf16 product
  double copy_us = 0;  ///< a copy inside device memory, 512 MiB

  friend bool operator==(const Anchor&, const Anchor&) = default;
};

/// What the machine was like while a setting was measured.
struct ClockSample {
  int sm_clock_mhz = 0, memory_clock_mhz = 0;
  double power_w = 0;
  std::uint64_t throttle_reasons = 0;

  friend bool operator==(const ClockSample&, const ClockSample&) = default;
};

/// Host time of enqueueing one op of a kind.
struct HostLaunch {
  std::string op;
  double us = 0;
  int count = 0;
  int kernels = 1;  ///< that it is made of

  friend bool operator==(const HostLaunch&, const HostLaunch&) = default;
};

struct MeasuredSetting {
  std::size_t setting = 0;  ///< index into the points' settings
  std::vector<ProfilePoint> points;
  std::vector<HostLaunch> host;
  ClockSample clocks;
  double seconds = 0;       ///< it took
  double eager_gap_us = 0;  ///< by how much kernels lie further apart eagerly than in a graph; 0: not measured

  friend bool operator==(const MeasuredSetting&, const MeasuredSetting&) = default;
};

/// A calibration under way.
struct CalibrationState {
  std::string points_hash;
  ProfileMachine machine;
  HostCosts host;
  std::vector<Anchor> anchors;
  std::vector<MeasuredSetting> settings;
  /// Settings that could not be measured, and why: they are not tried again.
  std::vector<std::pair<std::size_t, std::string>> failed;

  /// Measured, or not to be tried again.
  bool has(std::size_t setting) const;
};

/// Content hash of a list of points: a state belongs to one.
std::string points_hash(const CalibrationPoints& points);

Json state_to_json(const CalibrationState& state);
CalibrationState state_from_json(const JsonRef& ref);
/// The state in `path` when there is one and it is of these points and this GPU; nothing otherwise.
std::optional<CalibrationState> resume_state(const std::string& path, const CalibrationPoints& points,
                                             const std::string& gpu);

/// `alpha_us + tokens * us_per_token` for every op, transport, number of ranks and SMs with at least three points, by
/// least squares of relative errors; anchors, clocks and host launches as formulas of their own.
std::vector<ProfileFit> fit_points(const std::vector<ProfilePoint>& points);

/// The profile of what was measured so far. A point measured in several settings counts once, as its first.
Profile make_profile(const CalibrationPoints& points, const CalibrationState& state, std::string date);

/// The anchors a profile was measured with; nothing when it has none.
std::optional<Anchor> profile_anchor(const Profile& profile);
/// By how much of itself each anchor moved during the calibration; zero when the profile has none.
Anchor profile_anchor_noise(const Profile& profile);
/// Host time of launching one op of a kind; nothing when it was not measured.
std::optional<double> profile_host_launch(const Profile& profile, std::string_view op);

/// How far two calibrations of one machine agree: for each kind of op the median and largest relative difference of
/// points both have.
struct Agreement {
  std::string op;
  int points = 0;
  double median = 0, worst = 0;
  double spread = 0;  ///< median of the points' own relative spreads
};
std::vector<Agreement> compare_profiles(const Profile& a, const Profile& b);

}  // namespace dbo::validate
