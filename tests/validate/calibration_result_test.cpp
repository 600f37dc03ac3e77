#include "validate/calibration_result.h"
#include "tests/traces/temp_dir.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

ProfilePoint send(std::int64_t tokens, double us) {
  ProfilePoint p;
  p.op = "D.send";
  p.transport = Transport::LsaLl;
  p.ranks = 2;
  p.tokens = tokens;
  p.sms = 132;
  p.precision = Precision::Fp8;
  p.median_us = us;
  p.spread_us = us / 100;
  p.repeats = 7;
  return p;
}

CalibrationPoints points() {
  CalibrationPoints points;
  points.shape = replay_shape(model_preset("deepseek-v3"));
  for (const std::int64_t tokens : {32, 64, 128}) {
    CalibrationSetting s;
    s.tokens = tokens;
    s.context = 4096;
    s.ops = {OpKind::DSend};
    points.settings.push_back(s);
  }
  return points;
}

CalibrationState state() {
  CalibrationState s;
  s.points_hash = points_hash(points());
  s.machine.gpu = "NVIDIA H200";
  s.machine.preset = "h200-sxm";
  s.machine.gpus = 2;
  s.host.launch = Ns{2500};
  s.host.node_gap = Ns{900};
  s.anchors = {{180, 240}, {184, 238}, {182, 239}};
  s.settings.push_back({0, {send(32, 12)}, {{"A1", 21.5, 8, 7}}, {1980, 3201, 512.5, 4}, 0.4, 0.8});
  s.settings.push_back({2, {send(128, 24), send(32, 13)}, {{"A1", 22.5, 8, 7}}, {1755, 3201, 690, 4}, 0.5});
  return s;
}

double parameter(const ProfileFit& fit, std::string_view name) {
  for (const auto& [key, value] : fit.parameters)
    if (key == name) return value;
  return -1;
}

}  // namespace

TEST_CASE("fit: points on a line are met exactly, and the residual says so") {
  // 8 us and an eighth of a microsecond a token.
  const auto fits = fit_points({send(32, 12), send(64, 16), send(128, 24), send(256, 40)});
  REQUIRE(fits.size() == 1);
  CHECK(fits[0].what == "D.send of lsa-ll, 2 ranks, 132 SMs");
  CHECK(fits[0].formula == "alpha_us + tokens * us_per_token");
  CHECK(parameter(fits[0], "alpha_us") == doctest::Approx(8).epsilon(1e-9));
  CHECK(parameter(fits[0], "us_per_token") == doctest::Approx(0.125).epsilon(1e-9));
  CHECK(fits[0].residual == doctest::Approx(0).epsilon(1e-9));
  CHECK(fits[0].points == 4);
}

TEST_CASE("fit: relative errors weigh the same at both ends, and two points are no line") {
  CHECK(fit_points({send(32, 12), send(64, 16)}).empty());
  // y = 10, 10, 40 at x = 0, 1, 1 has no exact line; least relative squares: at 0 exact, at 1 the c with
  // (c/10 - 1) / 10 + (c/40 - 1) / 40 = 0: c = (1/10 + 1/40) / (1/100 + 1/1600) = 0.125 / 0.010625 = 11.7647.
  const auto fits = fit_points({send(0, 10), send(1, 10), send(1, 40)});
  REQUIRE(fits.size() == 1);
  CHECK(parameter(fits[0], "alpha_us") == doctest::Approx(10));
  CHECK(parameter(fits[0], "us_per_token") == doctest::Approx(1.7647).epsilon(1e-4));
  // Errors 0, 0.17647, -0.70588: root of the mean square.
  CHECK(fits[0].residual == doctest::Approx(0.42008).epsilon(1e-4));
}

TEST_CASE("profile: what was measured twice counts once, clocks and anchors are medians") {
  const Profile profile = make_profile(points(), state(), "2026-11-30");
  REQUIRE(profile.points.size() == 2);
  CHECK(profile.points[0] == send(32, 12));
  CHECK(profile.points[1] == send(128, 24));
  CHECK(profile.machine.sm_clock_mhz == 1980);
  CHECK(profile.host->launch == Ns{2500});
  CHECK(profile_anchor(profile) == Anchor{182, 239});
  CHECK(profile_host_launch(profile, "A1") == 22.5);
  CHECK(!profile_host_launch(profile, "A0"));
  CHECK(profile_kernels(profile, "A1") == 7);
  // 0.9 us in a graph, 0.8 more of launches; the setting that did not measure it has no say.
  CHECK(profile.host->eager_node_gap == Ns{1700});
  // It is a profile that others read.
  const Profile read = profile_from_json(JsonRef(wrap_json(profile_to_json(profile), "p")));
  CHECK(read.points == profile.points);
  CHECK(read.fits == profile.fits);
  CHECK(read.shape == profile.shape);
}

TEST_CASE("resume: a state goes on for the same points and GPU only") {
  const CalibrationState before = state();
  CHECK(before.has(0));
  CHECK(!before.has(1));
  const testing::TempDir folder;
  const std::string path = folder.file("resume_test.partial");
  write_file(path, compact_json(state_to_json(before)));
  const auto after = resume_state(path, points(), "NVIDIA H200");
  REQUIRE(after.has_value());
  CHECK(after->settings == before.settings);
  CHECK(after->anchors == before.anchors);
  CHECK(after->host.node_gap == Ns{900});
  CHECK(!resume_state(path, points(), "NVIDIA H100"));
  CalibrationPoints others = points();
  others.settings[1].tokens = 65;
  CHECK(!resume_state(path, others, "NVIDIA H200"));
  CHECK(!resume_state("no such file", points(), "NVIDIA H200"));
}

TEST_CASE("resume: a setting that failed is not tried again") {
  CalibrationState failing = state();
  failing.failed.emplace_back(1, "out of memory");
  const CalibrationState read = state_from_json(JsonRef(wrap_json(state_to_json(failing), "s")));
  CHECK(read.has(1));
  CHECK(read.failed == failing.failed);
}

TEST_CASE("agreement: two profiles differ by op, beside the spread of their points") {
  Profile a, b;
  a.points = {send(32, 10), send(64, 20), send(128, 40)};
  b.points = {send(32, 11), send(64, 20), send(128, 42), send(256, 80)};
  const auto agreement = compare_profiles(a, b);
  REQUIRE(agreement.size() == 1);
  CHECK(agreement[0].op == "D.send");
  CHECK(agreement[0].points == 3);
  CHECK(agreement[0].median == doctest::Approx(0.05));
  CHECK(agreement[0].worst == doctest::Approx(0.1));
  CHECK(agreement[0].spread == doctest::Approx(0.01));
}
