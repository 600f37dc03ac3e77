#include "validate/cuda/calibrate.h"

#include <cublas_v2.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "runtime/cuda/check.h"
#include "runtime/cuda/host_costs.h"
#include "runtime/cuda/nccl_comm.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/stand_in_table.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"
#include "validate/cuda/anchor.h"
#include "validate/cuda/nvml.h"
#include "validate/cuda/setting_timer.h"

namespace dbo::validate {
namespace {

using Clock = std::chrono::steady_clock;

// Settings between two looks at the anchors.
constexpr std::size_t kAnchorEvery = 25;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  (void)::gmtime_r(&now, &parts);
  char text[16];
  (void)std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

HostCosts host_costs(const runtime::MeasuredHostCosts& c) {
  HostCosts host;
  host.launch = c.launch.median;
  host.record = c.record.median;
  host.wait = c.wait.median;
  host.yield = c.yield_awake.median;
  host.graph_launch = c.graph_launch.median;
  host.node_gap = std::max(c.node_gap.median, Ns{});
  host.lane_gap = std::max(c.lane_gap.median - c.node_gap.median, Ns{});
  host.eager_node_gap = std::max(c.eager_gap.median, Ns{});
  host.eager_lane_gap = std::max(c.eager_lane_gap.median - c.eager_gap.median, Ns{});
  return host;
}

std::string cublas_text() {
  int major = 0, minor = 0, patch = 0;
  if (cublasGetProperty(MAJOR_VERSION, &major) != CUBLAS_STATUS_SUCCESS ||
      cublasGetProperty(MINOR_VERSION, &minor) != CUBLAS_STATUS_SUCCESS ||
      cublasGetProperty(PATCH_LEVEL, &patch) != CUBLAS_STATUS_SUCCESS)
    return {};
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

ProfileMachine machine_of(const runtime::GpuInfo& gpu, const Nvml& nvml, const CalibrateOptions& options) {
  const runtime::Versions v = runtime::versions();
  ProfileMachine machine;
  machine.gpu = gpu.name;
  machine.preset = options.gpu_preset.empty() ? preset_of_device(gpu.name) : options.gpu_preset;
  machine.gpus = options.gpus;
  machine.driver = nvml.works() ? nvml.driver() : runtime::version_text(v.driver);
  machine.cuda = runtime::version_text(v.runtime);
  machine.nccl = runtime::nccl_version_text(v.nccl);
  machine.cublas = cublas_text();
  if (const auto state = nvml.state(gpu.bus_id)) machine.memory_clock_mhz = state->memory_clock_mhz;
  return machine;
}

/// One line of progress, redrawn on a terminal.
void show(std::size_t done, std::size_t all, double seconds, const std::string& what, bool failed) {
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (terminal && !failed) {
    constexpr std::size_t kWidth = 30;
    const std::size_t filled = all == 0 ? kWidth : done * kWidth / all;
    std::fprintf(stderr, "\r[%s%s] %zu/%zu %4.0f s  %-60s", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, '.').c_str(), done, all, seconds, what.c_str());
  } else {
    std::fprintf(stderr, "%s%3zu/%zu %6.1f s  %s\n", terminal ? "\n" : "", done, all, seconds, what.c_str());
  }
  (void)std::fflush(stderr);
}

/// What the ranks share.
struct Session {
  const CalibrationPoints& points;
  const CalibrateOptions& options;
  const std::vector<runtime::GpuInfo> gpus;
  const Nvml& nvml;
  CalibrationState& state;  ///< rank 0's thread alone
  Clock::time_point begin;
  std::optional<std::size_t> current;  ///< setting that is being measured

  std::string partial() const { return options.out + ".partial"; }
};

ClockSample sample_clocks(const Session& session, int gpu) {
  const auto state = session.nvml.state(session.gpus[static_cast<std::size_t>(gpu)].bus_id);
  if (!state) return {};
  return {state->sm_clock_mhz, state->memory_clock_mhz, state->power_w, state->throttle_reasons};
}

/// Whether rank 0 says so.
bool agreed(runtime::HostGroup& group, bool mine) {
  return group.gather(mine ? "1" : "0").front() == "1";
}

class RankCalibration {
 public:
  RankCalibration(Session& session, runtime::HostGroup& group) : session_(session), group_(group) {
    const int gpu = group.rank();
    runtime::start_gpu(gpu);
    placement_ = runtime::exchange_placement(group, gpu);
    timer_ = runtime::probe_timer();
    const auto uses_nccl = [](const CalibrationSetting& s) { return s.transport == Transport::Nccl; };
    const auto& settings = session.points.settings;
    if (group.size() > 1 && (session.options.windows || std::any_of(settings.begin(), settings.end(), uses_nccl))) {
      comm_ = runtime::NcclComm::create(group);
    }
    anchors_ = std::make_unique<AnchorTimer>(group);
  }

  void run() {
    const auto& settings = session_.points.settings;
    anchor();
    std::size_t since_anchor = 0;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const bool leads = group_.rank() == 0;
      if (!agreed(group_, !leads || !session_.state.has(i))) continue;
      if (!agreed(group_, !leads || seconds_since(session_.begin) < session_.options.limit_s)) break;
      one(i);
      if (++since_anchor < kAnchorEvery) continue;
      anchor();
      since_anchor = 0;
    }
    anchor();
  }

 private:
  void anchor() {
    const Anchor mine = anchors_->measure();
    if (group_.rank() == 0) session_.state.anchors.push_back(mine);
  }

  void one(std::size_t index) {
    const CalibrationSetting& setting = session_.points.settings[index];
    if (group_.rank() == 0) session_.current = index;
    const auto begin = Clock::now();
    const runtime::ErrorScope scope("calibrating " + setting_name(setting));
    const bool windows = session_.options.windows || setting.transport == Transport::Nccl;
    const RankBench bench{group_,
                          placement_,
                          timer_,
                          windows && comm_ ? &comm_ : nullptr,
                          group_.rank(),
                          session_.state.host.node_gap,
                          session_.options.quick};
    RepeatRule rule;
    if (session_.options.quick) rule = {.least = 3, .most = 7, .spread = 0.02, .most_ms = 60};
    SettingFigures figures = measure_setting(bench, session_.points, setting, rule);
    const ClockSample clocks = sample_clocks(session_, group_.rank());
    std::vector<ProfilePoint> slowest = slowest_of(group_, std::move(figures.points));
    if (group_.rank() != 0) return;
    MeasuredSetting measured{index,  std::move(slowest),   std::move(figures.host),
                             clocks, seconds_since(begin), figures.eager_gap_us};
    session_.state.settings.push_back(std::move(measured));
    write_file(session_.partial(), compact_json(state_to_json(session_.state)));
    show(session_.state.settings.size(), session_.points.settings.size(), seconds_since(session_.begin),
         setting_name(setting), false);
    session_.current.reset();
  }

  Session& session_;
  runtime::HostGroup& group_;
  runtime::Placement placement_;
  kernels::TimerProbe timer_{};
  runtime::NcclComm comm_;
  std::unique_ptr<AnchorTimer> anchors_;
};

}  // namespace

std::string preset_of_device(const std::string& name) {
  const std::string lower = lower_case(name);
  // "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB": the word that a preset's name begins with.
  for (const std::string_view preset : gpu_names()) {
    const std::string_view model = preset.substr(0, preset.find('-'));
    const std::size_t at = lower.find(model);
    if (at == std::string::npos) continue;
    const std::size_t end = at + model.size();
    const bool whole = end == lower.size() || std::isalnum(static_cast<unsigned char>(lower[end])) == 0;
    if (whole) return std::string(preset);
  }
  return {};
}

std::size_t calibrate(const CalibrationPoints& points, const CalibrateOptions& options) {
  const std::vector<runtime::GpuInfo> gpus = runtime::list_gpus();
  if (options.gpus < 1 || options.gpus > static_cast<int>(gpus.size()))
    throw InputError("asked for " + std::to_string(options.gpus) + " GPUs, this machine has " +
                     std::to_string(gpus.size()));
  if (gpus[0].sms != points.gpu_sms)
    throw InputError("the points are for " + std::to_string(points.gpu_sms) + " SMs, this GPU has " +
                     std::to_string(gpus[0].sms));
  const Nvml nvml;
  CalibrationState state;
  const std::string partial = options.out + ".partial";
  const auto earlier = options.fresh ? std::nullopt : resume_state(partial, points, gpus[0].name);
  if (earlier) {
    state = *earlier;
    std::fprintf(stderr, "going on with %zu of %zu settings done\n", state.settings.size(), points.settings.size());
  } else {
    state.points_hash = points_hash(points);
    state.machine = machine_of(gpus[0], nvml, options);
    state.host = host_costs(runtime::measure_host_costs(0, options.quick));
  }
  Session session{points, options, gpus, nvml, state, Clock::now(), std::nullopt};
  const auto keep = [&] {
    write_file(session.partial(), compact_json(state_to_json(state)));
    // What there is makes a profile, whole or not.
    write_file(options.out, pretty_json(profile_to_json(make_profile(points, state, today()))));
  };
  // A setting that fails must not cost the others: it is noted, and the rest goes on unless the GPU is lost.
  for (bool again = true; again;) {
    again = false;
    try {
      runtime::InProcessGroup group(options.gpus);
      runtime::run_ranks(group, options.gpus,
                         [&](runtime::HostGroup& member) { RankCalibration(session, member).run(); });
    } catch (const Error& error) {
      if (!session.current) throw;
      state.failed.emplace_back(*session.current, error.what());
      show(state.settings.size(), points.settings.size(), seconds_since(session.begin),
           "FAILED " + setting_name(points.settings[*session.current]) + ": " + error.what(), true);
      session.current.reset();
      keep();
      for (int gpu = 0; gpu < options.gpus; ++gpu) {
        DBO_CUDA_CHECK(cudaSetDevice(gpu));
        DBO_CUDA_CHECK(cudaDeviceSynchronize());
      }
      again = seconds_since(session.begin) < options.limit_s;
    }
  }
  keep();
  if (::isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\n");
  return points.settings.size() - state.settings.size() - state.failed.size();
}

}  // namespace dbo::validate
