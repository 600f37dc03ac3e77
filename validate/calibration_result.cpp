#include "validate/calibration_result.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/hash.h"

namespace dbo::validate {
namespace {

constexpr std::string_view kGemmAnchor = "anchor: 4096^3 bf16 product";
constexpr std::string_view kCopyAnchor = "anchor: copy of 512 MiB";
constexpr std::string_view kHostPrefix = "host launch of ";
constexpr std::string_view kKernelsPrefix = "kernels of ";

/// What tells two points apart.
auto key_of(const ProfilePoint& p) {
  return std::make_tuple(p.op, p.prefill, p.transport, p.ranks, p.experts, p.tokens, p.context, p.sms, p.precision,
                         p.beside, p.beside_sms, p.duty);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ProfileFit constant_fit(std::string_view what, const std::vector<double>& values, std::string_view unit = "us") {
  ProfileFit fit;
  fit.what = what;
  fit.formula = unit;
  const double median = median_of(values);
  fit.parameters = {{std::string(unit), median}};
  double squares = 0;
  for (const double v : values) squares += median > 0 ? (v / median - 1) * (v / median - 1) : 0;
  fit.residual = values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
  fit.points = static_cast<int>(values.size());
  return fit;
}

/// Least squares of relative errors of a + b x: each point weighs 1 / y^2.
ProfileFit line_fit(std::string what, const std::vector<const ProfilePoint*>& points) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const ProfilePoint* p : points) {
    const double x = static_cast<double>(p->tokens), y = std::max(p->median_us, 1e-3), weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wy += weight * y;
    wxx += weight * x * x;
    wxy += weight * x * y;
  }
  const double det = w * wxx - wx * wx;
  const double slope = det > 0 ? (w * wxy - wx * wy) / det : 0;
  const double alpha = (wy - slope * wx) / w;
  ProfileFit fit;
  fit.what = std::move(what);
  fit.formula = "alpha_us + tokens * us_per_token";
  fit.parameters = {{"alpha_us", alpha}, {"us_per_token", slope}};
  double squares = 0;
  for (const ProfilePoint* p : points) {
    const double y = std::max(p->median_us, 1e-3), r = (alpha + slope * static_cast<double>(p->tokens)) / y - 1;
    squares += r * r;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(points.size()));
  fit.points = static_cast<int>(points.size());
  return fit;
}

std::string line_name(const ProfilePoint& p) {
  std::string name = p.op;
  if (p.op == "A0" || p.op == "A1")
    name += (p.prefill ? " of prompts of " : " with context ") + std::to_string(p.context);
  if (p.transport) name += " of " + std::string(transport_info(*p.transport).name);
  if (p.ranks > 0) name += ", " + std::to_string(p.ranks) + " ranks";
  if (p.experts > 0) name += ", " + std::to_string(p.experts) + " experts";
  name += ", " + std::to_string(p.sms) + " SMs";
  if (!p.beside.empty()) name += ", beside " + p.beside;
  if (p.duty < 100) name += ", " + std::to_string(p.duty) + " % of the time";
  return name;
}

}  // namespace

bool CalibrationState::has(std::size_t setting) const {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const MeasuredSetting& s) { return s.setting == setting; }) ||
         std::any_of(failed.begin(), failed.end(), [&](const auto& f) { return f.first == setting; });
}

std::string points_hash(const CalibrationPoints& points) {
  return hash_text(content_hash(compact_json(points_to_json(points))));
}

Json state_to_json(const CalibrationState& state) {
  Profile header;
  header.machine = state.machine;
  header.date = "2000-01-01";  // unused: the profile gets its date when it is whole
  header.host = state.host;
  Json json = Json::object();
  json.set("format", 1);
  json.set("points_hash", state.points_hash);
  json.set("header", profile_to_json(header));
  Json& anchors = json.set("anchors", Json::array());
  for (const Anchor& anchor : state.anchors) {
    Json both = Json::array();
    both.push(anchor.gemm_us);
    both.push(anchor.copy_us);
    anchors.push(std::move(both));
  }
  Json& settings = json.set("settings", Json::array());
  for (const MeasuredSetting& s : state.settings) {
    Json one = Json::object();
    one.set("setting", static_cast<std::int64_t>(s.setting));
    one.set("seconds", s.seconds);
    one.set("sm_clock_mhz", s.clocks.sm_clock_mhz);
    one.set("memory_clock_mhz", s.clocks.memory_clock_mhz);
    one.set("power_w", s.clocks.power_w);
    one.set("throttle_reasons", s.clocks.throttle_reasons);
    if (s.eager_gap_us > 0) one.set("eager_gap_us", s.eager_gap_us);
    Json& host = one.set("host", Json::array());
    for (const HostLaunch& launch : s.host) {
      Json item = Json::object();
      item.set("op", launch.op);
      item.set("us", launch.us);
      item.set("count", launch.count);
      item.set("kernels", launch.kernels);
      host.push(std::move(item));
    }
    Json& points = one.set("points", Json::array());
    for (const ProfilePoint& point : s.points) points.push(profile_point_to_json(point));
    settings.push(std::move(one));
  }
  Json& failed = json.set("failed", Json::array());
  for (const auto& [setting, why] : state.failed) {
    Json one = Json::object();
    one.set("setting", static_cast<std::int64_t>(setting));
    one.set("why", why);
    failed.push(std::move(one));
  }
  return json;
}

namespace {

MeasuredSetting read_setting(const JsonRef& ref) {
  ObjectReader reader(ref, "a measured setting");
  MeasuredSetting s;
  s.setting = static_cast<std::size_t>(reader.require("setting").count());
  s.seconds = reader.require("seconds").number(0, 1e9);
  s.clocks.sm_clock_mhz = static_cast<int>(reader.require("sm_clock_mhz").integer(0, 1 << 20));
  s.clocks.memory_clock_mhz = static_cast<int>(reader.require("memory_clock_mhz").integer(0, 1 << 20));
  s.clocks.power_w = reader.require("power_w").number(0, 1e6);
  s.clocks.throttle_reasons =
      static_cast<std::uint64_t>(reader.require("throttle_reasons").integer(INT64_MIN, INT64_MAX));
  if (const auto gap = reader.find("eager_gap_us")) s.eager_gap_us = gap->number(0, 1e6);
  for (const JsonRef& item : reader.require("host").items()) {
    ObjectReader launch(item, "a host launch");
    s.host.push_back({launch.require("op").string(), launch.require("us").number(0, 1e9),
                      static_cast<int>(launch.require("count").integer(0, 1 << 30)),
                      static_cast<int>(launch.require("kernels").integer(0, 1 << 20))});
    launch.done();
  }
  for (const JsonRef& point : reader.require("points").items()) s.points.push_back(profile_point_from_json(point));
  reader.done();
  return s;
}

}  // namespace

CalibrationState state_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "a calibration under way");
  CalibrationState state;
  reader.require("format").integer(1, 1);
  state.points_hash = reader.require("points_hash").string();
  const Profile header = profile_from_json(reader.require("header"));
  state.machine = header.machine;
  state.host = header.host.value_or(HostCosts{});
  for (const JsonRef& item : reader.require("anchors").items()) {
    const std::vector<JsonRef> both = item.items();
    if (both.size() != 2) item.fail("an anchor is two times");
    state.anchors.push_back({both[0].number(0, 1e9), both[1].number(0, 1e9)});
  }
  for (const JsonRef& setting : reader.require("settings").items()) state.settings.push_back(read_setting(setting));
  for (const JsonRef& item : reader.require("failed").items()) {
    ObjectReader one(item, "a setting that failed");
    state.failed.emplace_back(static_cast<std::size_t>(one.require("setting").count()), one.require("why").string());
    one.done();
  }
  reader.done();
  return state;
}

std::vector<ProfileFit> fit_points(const std::vector<ProfilePoint>& points) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<const ProfilePoint*>> lines;
  for (const ProfilePoint& p : points) {
    const std::string name = line_name(p);
    if (lines[name].empty()) order.push_back(name);
    lines[name].push_back(&p);
  }
  std::vector<ProfileFit> fits;
  for (const std::string& name : order) {
    if (lines[name].size() >= 3) fits.push_back(line_fit(name, lines[name]));
  }
  return fits;
}

Profile make_profile(const CalibrationPoints& points, const CalibrationState& state, std::string date) {
  Profile profile;
  profile.machine = state.machine;
  profile.date = std::move(date);
  profile.shape = points.shape;
  profile.host = state.host;
  std::vector<double> clocks, eager_gaps;
  std::map<std::string, std::vector<double>> host, kernels;
  std::vector<decltype(key_of(ProfilePoint{}))> seen;
  for (const MeasuredSetting& setting : state.settings) {
    if (setting.eager_gap_us > 0) eager_gaps.push_back(setting.eager_gap_us);
    if (setting.clocks.sm_clock_mhz > 0) clocks.push_back(setting.clocks.sm_clock_mhz);
    for (const HostLaunch& launch : setting.host) {
      host[launch.op].push_back(launch.us);
      kernels[launch.op].push_back(launch.kernels);
    }
    for (const ProfilePoint& point : setting.points) {
      const auto key = key_of(point);
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      profile.points.push_back(point);
    }
  }
  // Kernels that stand in for ops begin sooner than those of ops do.
  if (!eager_gaps.empty()) profile.host->eager_node_gap = state.host.node_gap + ns_from_us(median_of(eager_gaps));
  if (!clocks.empty()) profile.machine.sm_clock_mhz = static_cast<int>(median_of(clocks));
  std::vector<double> gemm, copy;
  for (const Anchor& anchor : state.anchors) {
    gemm.push_back(anchor.gemm_us);
    copy.push_back(anchor.copy_us);
  }
  if (!gemm.empty()) {
    profile.fits.push_back(constant_fit(kGemmAnchor, gemm));
    profile.fits.push_back(constant_fit(kCopyAnchor, copy));
  }
  for (const auto& [op, us] : host) profile.fits.push_back(constant_fit(std::string(kHostPrefix) + op, us));
  for (const auto& [op, count] : kernels)
    profile.fits.push_back(constant_fit(std::string(kKernelsPrefix) + op, count, "kernels"));
  const std::vector<ProfileFit> lines = fit_points(profile.points);
  profile.fits.insert(profile.fits.end(), lines.begin(), lines.end());
  return profile;
}

namespace {

const ProfileFit* find_fit(const Profile& profile, std::string_view what) {
  for (const ProfileFit& fit : profile.fits) {
    if (fit.what == what && fit.formula == "us" && !fit.parameters.empty()) return &fit;
  }
  return nullptr;
}

}  // namespace

std::optional<Anchor> profile_anchor(const Profile& profile) {
  const ProfileFit* gemm = find_fit(profile, kGemmAnchor);
  const ProfileFit* copy = find_fit(profile, kCopyAnchor);
  if (gemm == nullptr || copy == nullptr) return std::nullopt;
  return Anchor{gemm->parameters[0].second, copy->parameters[0].second};
}

Anchor profile_anchor_noise(const Profile& profile) {
  const ProfileFit* gemm = find_fit(profile, kGemmAnchor);
  const ProfileFit* copy = find_fit(profile, kCopyAnchor);
  // A residual is the root mean square of relative distances from the median.
  constexpr double kTwoSigma = 2;
  return Anchor{gemm == nullptr ? 0 : kTwoSigma * gemm->residual, copy == nullptr ? 0 : kTwoSigma * copy->residual};
}

std::optional<double> profile_host_launch(const Profile& profile, std::string_view op) {
  const ProfileFit* fit = find_fit(profile, std::string(kHostPrefix) + std::string(op));
  if (fit == nullptr) return std::nullopt;
  return fit->parameters[0].second;
}

std::vector<Agreement> compare_profiles(const Profile& a, const Profile& b) {
  std::map<decltype(key_of(ProfilePoint{})), const ProfilePoint*> other;
  for (const ProfilePoint& p : b.points) other[key_of(p)] = &p;
  std::map<std::string, std::vector<double>> differences, spreads;
  for (const ProfilePoint& p : a.points) {
    const auto found = other.find(key_of(p));
    if (found == other.end() || p.median_us <= 0 || found->second->median_us <= 0) continue;
    differences[p.op].push_back(std::abs(found->second->median_us / p.median_us - 1));
    spreads[p.op].push_back(p.spread_us / p.median_us);
  }
  std::vector<Agreement> out;
  for (auto& [op, list] : differences) {
    Agreement agreement;
    agreement.op = op;
    agreement.points = static_cast<int>(list.size());
    agreement.worst = *std::max_element(list.begin(), list.end());
    agreement.median = median_of(list);
    agreement.spread = median_of(spreads[op]);
    out.push_back(std::move(agreement));
  }
  return out;
}

std::optional<CalibrationState> resume_state(const std::string& path, const CalibrationPoints& points,
                                             const std::string& gpu) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const InputError&) {
    return std::nullopt;
  }
  CalibrationState state = state_from_json(JsonRef(json_document(text, path)));
  if (state.points_hash != points_hash(points) || state.machine.gpu != gpu) return std::nullopt;
  return state;
}

}  // namespace dbo::validate
