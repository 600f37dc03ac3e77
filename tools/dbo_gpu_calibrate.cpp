// dbo-gpu calibrate: measures this machine for a model and writes a profile.
#include <fmt/format.h>

#include <charconv>

#include "runtime/cuda/process.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"
#include "tools/dbo_gpu.h"
#include "validate/cuda/calibrate.h"
#include "validate/suite.h"

namespace dbo {
namespace {

using validate::CalibrationPoints;
using validate::CalibrationScope;

/// "8,16,24": whole numbers within [low, high].
std::vector<int> read_list(const char* flag, const std::string& text, int low, int high) {
  std::vector<int> list;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    int value = 0;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
    if (result.ec != std::errc() || result.ptr != word.data() + word.size() || value < low || value > high)
      throw InputError(fmt::format("{}: must be whole numbers from {} to {}, is \"{}\"", flag, low, high, text));
    list.push_back(value);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return list;
}

std::vector<Transport> read_transports(const std::string& text) {
  std::vector<Transport> list;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const auto transport = find_transport(word);
    if (!transport || transport_info(*transport).simulated_only)
      throw InputError(
          fmt::format("--transports: \"{}\" cannot be measured (known: lsa-ht, lsa-ll, copy-engine, nccl)", word));
    list.push_back(*transport);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return list;
}

CalibrationPoints points_of(const CalibrateCommand& command, int gpu_sms) {
  if (!command.points.empty()) return validate::points_from_json(JsonRef(load_json(command.points)));
  CalibrationScope scope;
  ModelShape shape;
  if (!command.configs.empty() || !command.suite.empty()) {
    std::vector<Config> configs;
    for (const std::string& path : command.configs) configs.push_back(load_config(path));
    // Of a suite, the configs of the model asked for: a profile is of one.
    const std::string name = command.suite.empty() ? std::string() : model_preset(command.model).name;
    if (!command.suite.empty()) {
      for (validate::SuiteEntry& entry : validate::load_suite(command.suite).entries) {
        if (entry.config.model.name == name) configs.push_back(std::move(entry.config));
      }
      if (configs.empty()) throw InputError(command.suite, "/configs", "has no config of " + name);
    }
    scope = validate::scope_of(configs, static_cast<int>(command.gpus));
    shape = configs.front().model;
  } else {
    shape = model_preset(command.model);
    scope.gpus = static_cast<int>(command.gpus);
    scope.ranks = read_list("--ranks", command.ranks, 1, 4096);
    scope.transports = read_transports(command.transports);
    scope.comm_sms = read_list("--comm-sms", command.comm_sms, 1, gpu_sms - 1);
    scope.decode = command.phase != "prefill";
    scope.prefill = command.phase != "decode";
  }
  scope.gpu_sms = gpu_sms;
  scope.quick = command.quick;
  return validate::calibration_points(shape, scope);
}

void print_summary(const Profile& profile) {
  fmt::print("{} points, {}, driver {}, CUDA {}, NCCL {}, {} GPUs\n", profile.points.size(), profile.machine.gpu,
             profile.machine.driver, profile.machine.cuda, profile.machine.nccl, profile.machine.gpus);
  fmt::print("  {:<62} {:>10} {:>12} {:>9} {:>6}\n", "fitted", "alpha us", "us/token", "residual", "points");
  for (const ProfileFit& fit : profile.fits) {
    const double first = fit.parameters.empty() ? 0 : fit.parameters[0].second;
    const double second = fit.parameters.size() > 1 ? fit.parameters[1].second : 0;
    fmt::print("  {:<62} {:>10.2f} {:>12.5f} {:>8.1f}% {:>6}\n", fit.what, first, second, fit.residual * 100,
               fit.points);
  }
}

}  // namespace

int run_calibrate(const CalibrateCommand& command) {
  // A list of points can be written anywhere; only measuring them takes a GPU.
  if (command.list) {
    const CalibrationPoints points = points_of(command, static_cast<int>(command.gpu_sms));
    fmt::print("{}", pretty_json(validate::points_to_json(points)));
    return static_cast<int>(Exit::Ok);
  }
  if (command.out.empty()) throw InputError("--out says where the profile goes");
  if (!command.compare.empty()) {
    const Profile a = load_profile(command.compare), b = load_profile(command.out);
    fmt::print("  {:<8} {:>6} {:>10} {:>10} {:>10}\n", "op", "points", "median", "worst", "spread");
    double worst = 0;
    for (const validate::Agreement& one : validate::compare_profiles(a, b)) {
      fmt::print("  {:<8} {:>6} {:>9.2f}% {:>9.2f}% {:>9.2f}%\n", one.op, one.points, one.median * 100, one.worst * 100,
                 one.spread * 100);
      worst = std::max(worst, one.median - std::max(0.02, one.spread));
    }
    return static_cast<int>(worst <= 0 ? Exit::Ok : Exit::Finding);
  }
  const std::vector<runtime::GpuInfo> gpus = runtime::list_gpus();
  validate::CalibrateOptions options;
  options.gpus = command.gpus > 0 ? static_cast<int>(command.gpus) : static_cast<int>(gpus.size());
  options.out = command.out;
  options.fresh = command.fresh;
  options.windows = command.windows;
  options.quick = command.quick;
  options.limit_s = static_cast<double>(command.limit_s);
  CalibrateCommand resolved = command;
  resolved.gpus = options.gpus;
  const CalibrationPoints points = points_of(resolved, gpus[0].sms);
  const std::size_t missing = validate::calibrate(points, options);
  print_summary(load_profile(command.out));
  if (missing > 0) fmt::print("{} settings were not measured: run the same command again to go on\n", missing);
  return static_cast<int>(missing == 0 ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
