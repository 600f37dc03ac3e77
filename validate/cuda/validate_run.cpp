#include "validate/cuda/validate_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "runtime/cuda/check.h"
#include "runtime/cuda/nccl_comm.h"
#include "runtime/cuda/process.h"
#include "runtime/launcher_env.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "sim/search/predict.h"
#include "traces/chrome_writer.h"
#include "traces/report_html.h"

namespace dbo::validate {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string describe_config(const Config& config) {
  const auto& rank = config.workload.steps.front().ranks.front();
  const bool prefill = !rank.requests.empty() && rank.requests.front().query > 8;
  return config.model.name + ", " + (prefill ? "prefill " : "decode ") + std::to_string(rank.tokens()) +
         " tokens a rank, EP" + std::to_string(config.cluster.gpus()) + ", " +
         (config.overlap.notation ? "notation" : config.overlap.schedule) + " over " +
         std::string(transport_info(config.overlap.transport).name);
}

std::optional<runtime::LauncherRank> launcher() {
  return runtime::launcher_rank([](const char* name) { return std::getenv(name); });
}

/// GPUs that take part: what was asked for, or all there are, but no more than the config has ranks.
int count_gpus(const Config& config, int asked) {
  if (const auto rank = launcher()) return rank->size;
  const auto here = static_cast<int>(runtime::list_gpus().size());
  if (asked > here)
    throw InputError("asked for " + std::to_string(asked) + " GPUs, this machine has " + std::to_string(here));
  int gpus = std::min(asked > 0 ? asked : here, config.cluster.gpus());
  // Played peers need a partner: an odd one out would play its own.
  if (gpus < config.cluster.gpus() && gpus > 1) gpus = gpus / 2 * 2;
  return gpus;
}

std::string versions_text(const std::string& program) {
  const runtime::Versions v = runtime::versions();
  return program + ", driver for CUDA " + runtime::version_text(v.driver) + ", CUDA " +
         runtime::version_text(v.runtime) + ", NCCL " + runtime::nccl_version_text(v.nccl);
}

/// Replays on every rank; the result of the first one.
ReplayedCase replay(const ValidationCase& validated, const ValidateOptions& options, bool& leads) {
  runtime::HangGuard guard(Ns{options.deadline_s * 1'000'000'000});
  LiveReplays live;
  ReplayedCase out;
  if (const auto rank = launcher()) {
    const int gpu = rank->local_rank % static_cast<int>(runtime::list_gpus().size());
    runtime::start_gpu(gpu);
    const runtime::ProcessGroup joined = runtime::join_processes(*rank);
    leads = joined.group->rank() == 0;
    ReplayRules rules = options.rules;
    rules.deadline = Ns{options.deadline_s * 1'000'000'000};
    rules.processes = true;
    return replay_case(*joined.group, gpu, validated, guard, live, rules);
  }
  leads = true;
  runtime::InProcessGroup group(validated.gpus);
  runtime::run_ranks(
      group, validated.gpus,
      [&](runtime::HostGroup& member) {
        ReplayRules rules = options.rules;
        rules.deadline = Ns{options.deadline_s * 1'000'000'000};
        ReplayedCase mine = replay_case(member, member.rank(), validated, guard, live, rules);
        if (member.rank() == 0) out = std::move(mine);
      },
      [&](int rank) { live.stop(rank); });
  return out;
}

void tag(Trace& trace, const ValidationCase& validated, const PredictedWay& way) {
  const runtime::GpuInfo gpu = runtime::list_gpus().front();
  const runtime::Versions v = runtime::versions();
  trace.metadata.set("device", gpu.name);
  trace.metadata.set("driver", runtime::version_text(v.driver));
  trace.metadata.set("cuda", runtime::version_text(v.runtime));
  trace.metadata.set("nccl", runtime::nccl_version_text(v.nccl));
  trace.metadata.set("way", way.name());
  trace.metadata.set("emulated", validated.emulated);
}

/// Predicted and measured traces, plans, and a report for each way; `brief`: as ValidateOptions.
void write_files(const std::string& folder, bool brief, const ValidationCase& validated, ReplayedCase& replayed,
                 const std::vector<WayComparison>& comparisons) {
  make_folder(folder);
  for (std::size_t w = 0; w < validated.ways.size() && (w == 0 || !brief); ++w) {
    const PredictedWay& way = validated.ways[w];
    MeasuredWay& measured = replayed.ways[w];
    const std::string prefix = folder + "/" + way.name() + ".";
    tag(measured.split.trace, validated, way);
    tag(measured.unsplit.trace, validated, way);
    write_file(prefix + "plan.json", plan_text(way.split.plan));
    write_chrome_trace(prefix + "predicted.trace.json", way.split.result.trace);
    write_chrome_trace(prefix + "measured.trace.json", measured.split.trace);
    if (!brief) {
      write_file(prefix + "unsplit.plan.json", plan_text(way.unsplit.plan));
      write_chrome_trace(prefix + "unsplit.predicted.trace.json", way.unsplit.result.trace);
      write_chrome_trace(prefix + "unsplit.measured.trace.json", measured.unsplit.trace);
    }
    CompareInput input;
    input.predicted = way.split.result.trace;
    input.measured = measured.split.trace;
    input.predicted_file = way.name() + ".predicted.trace.json";
    input.measured_file = way.name() + ".measured.trace.json";
    input.plan = way.split.plan;
    input.baseline = measured.unsplit.trace;
    input.baseline_measured = true;
    ReportOptions report;
    report.title = validated.name + ", " + way.name();
    report.assumptions = validated.assumptions;
    report.assumptions.insert(report.assumptions.end(), validated.notes.begin(), validated.notes.end());
    for (const Bubble& bubble : way.split.result.bubbles) {
      if (way.split.plan.lanes[bubble.lane] == "compute")
        report.bubbles.emplace_back(cause_name(bubble.cause), Ns{bubble.ns});
    }
    // The first way is what people look at first.
    write_file(w == 0 ? folder + "/report.html" : prefix + "report.html",
               report_html(input, comparisons[w].split, report));
  }
}

double computing_share(const PredictedPlan& predicted) {
  const auto step = static_cast<double>(predicted.result.step_ns);
  return step > 0 ? std::min(static_cast<double>(compute_ns(predicted.plan, predicted.costs)) / step, 1.0) : 1;
}

/// Of each way: against a prediction at the clock that its steps ran at, or by the anchors.
std::vector<Drift> drifts_of(const Config& config, const std::string& profile_path, CaseOptions options,
                             const ValidationCase& validated, const ReplayedCase& replayed) {
  const Profile profile = profile_path.empty() ? Profile{} : load_profile(profile_path);
  std::vector<Drift> drifts;
  std::vector<ComputingShare> shares;
  for (const PredictedWay& way : validated.ways)
    shares.push_back({computing_share(way.split), computing_share(way.unsplit)});
  const double mhz = computing_clock(replayed.ways, shares, runtime::list_gpus().front().clock_khz / 1000.0);
  if (mhz > 0 && !validated.ways.empty() && validated.ways.front().split.costs.sm_mhz > 0) {
    options.sm_mhz = mhz;
    const ValidationCase at_clock = make_case(config, profile_path, options);
    const auto ratio = [](const PredictedPlan& is, const PredictedPlan& was) {
      return static_cast<double>(is.result.step_ns) /
             static_cast<double>(std::max<std::int64_t>(was.result.step_ns, 1));
    };
    for (std::size_t w = 0; w < validated.ways.size(); ++w) {
      const PredictedWay &is = at_clock.ways[w], &was = validated.ways[w];
      drifts.push_back({ratio(is.split, was.split), ratio(is.unsplit, was.unsplit)});
    }
    return drifts;
  }
  const Anchor now{(replayed.before.gemm_us + replayed.after.gemm_us) / 2,
                   (replayed.before.copy_us + replayed.after.copy_us) / 2};
  const auto drift = [&](const PredictedPlan& plan) {
    return drift_of(plan, validated.config.cluster.gpu, profile_anchor(profile), now, profile_anchor_noise(profile));
  };
  for (const PredictedWay& way : validated.ways) drifts.push_back({drift(way.split), drift(way.unsplit)});
  return drifts;
}

}  // namespace

Outcome validate_config(const Config& config, const std::string& name, const ValidateOptions& options) {
  const auto begin = Clock::now();
  const std::string profile_path = options.profiles.empty() ? std::string() : pick_profile(options.profiles, config);
  CaseOptions case_options;
  case_options.gpus = count_gpus(config, options.gpus);
  case_options.eager = options.eager;
  case_options.graph = options.graph;
  case_options.name = name;
  const ValidationCase validated = make_case(config, profile_path, case_options);
  bool leads = true;
  ReplayedCase replayed = replay(validated, options, leads);
  if (!leads) return {};
  const Profile profile = profile_path.empty() ? Profile{} : load_profile(profile_path);
  Outcome outcome;
  outcome.name = name;
  outcome.key = outcome_key(config, profile_path.empty() ? std::string() : read_file(profile_path), case_options.gpus);
  outcome.what = describe_config(validated.config);
  outcome.device = runtime::list_gpus().front().name;
  outcome.versions = versions_text(options.program);
  outcome.gpus = validated.gpus;
  outcome.emulated = validated.emulated;
  outcome.notes = validated.notes;
  if (is_calibration_config(profile, config))
    outcome.notes.emplace_back("the profile was measured on this very batch: its errors say little");
  outcome.notes.insert(outcome.notes.end(), replayed.how.begin(), replayed.how.end());
  outcome.anchor_before = replayed.before;
  outcome.anchor_after = replayed.after;
  outcome.anchor_calibrated = profile_anchor(profile);
  outcome.numerics = replayed.numerics;
  outcome.injected = replayed.injected;
  std::vector<WayComparison> comparisons;
  const std::vector<Drift> drifts = drifts_of(config, profile_path, case_options, validated, replayed);
  for (std::size_t w = 0; w < validated.ways.size(); ++w) {
    comparisons.push_back(compare_way(validated.ways[w], replayed.ways[w], drifts[w]));
    outcome.ways.push_back(comparisons.back().outcome);
  }
  if (!options.out.empty()) write_files(options.out, options.brief, validated, replayed, comparisons);
  outcome.seconds = seconds_since(begin);
  if (!options.out.empty()) {
    write_file(options.out + "/outcome.json", pretty_json(outcome_to_json(outcome)));
    write_file(options.out + "/outcome.txt", outcome_text(outcome));
  }
  return outcome;
}

namespace {

/// An outcome of an earlier run, of the same key.
std::optional<Outcome> earlier_outcome(const std::string& path, const std::string& key) {
  try {
    Outcome outcome = outcome_from_json(JsonRef(load_json(path)));
    if (outcome.key == key) return outcome;
  } catch (const InputError&) {
    // None, or of an older format: it is run again.
  }
  return std::nullopt;
}

/// Whether an earlier run began this config and never came back.
bool began_before(const std::string& path, const std::string& key) {
  try {
    return read_file(path) == key;
  } catch (const InputError&) {
    return false;
  }
}

class SuiteRunner {
 public:
  SuiteRunner(const Suite& suite, const ValidateOptions& options, double limit_s)
      : suite_(suite), options_(options), limit_s_(limit_s) {}

  SuiteRun run() {
    make_folder(options_.out);
    check();
    for (std::size_t i = 0; i < suite_.entries.size(); ++i) {
      at_ = i;
      one(suite_.entries[i]);
      write_tables();
    }
    return std::move(run_);
  }

 private:
  /// Before anything runs: no config of the suite may be one of the calibration's own.
  void check() {
    for (const SuiteEntry& entry : suite_.entries) {
      const std::string path = pick_profile(options_.profiles, entry.config);
      if (is_calibration_config(load_profile(path), entry.config))
        throw InputError(suite_.file, "/configs",
                         "\"" + entry.name + "\" is a batch that " + path +
                             " was measured on: predicting it proves nothing; change its tokens or context");
      keys_.push_back(outcome_key(entry.config, read_file(path), count_gpus(entry.config, options_.gpus)));
    }
  }

  void one(const SuiteEntry& entry) {
    const std::string folder = options_.out + "/" + entry.name;
    const std::string& key = keys_[at_];
    if (auto earlier = earlier_outcome(folder + "/outcome.json", key)) {
      say(entry, "done before");
      run_.outcomes.push_back(std::move(*earlier));
      return;
    }
    if (seconds_since(begin_) > limit_s_) {
      say(entry, "left for the next run");
      ++run_.left;
      return;
    }
    if (began_before(folder + "/begun", key)) {
      fail(entry, folder, "an earlier run of it ended with the whole process");
      return;
    }
    make_folder(folder);
    write_file(folder + "/begun", key);
    const auto begin = Clock::now();
    try {
      ValidateOptions one = options_;
      one.out = folder;
      one.brief = true;
      run_.outcomes.push_back(validate_config(entry.config, entry.name, one));
      std::string line = outcome_line(run_.outcomes.back());
      line.pop_back();
      char took[32];
      (void)std::snprintf(took, sizeof took, " (%.1f s)", seconds_since(begin));
      say(entry, line + took);
    } catch (const Error& error) {
      fail(entry, folder, std::string("cannot run: ") + error.what());
      write_tables();
      // A GPU that is lost fails everything that follows: leave with what there is.
      for (const runtime::GpuInfo& gpu : runtime::list_gpus()) {
        DBO_CUDA_CHECK(cudaSetDevice(gpu.index));
        DBO_CUDA_CHECK(cudaDeviceSynchronize());
      }
    }
  }

  void fail(const SuiteEntry& entry, const std::string& folder, const std::string& why) {
    say(entry, why);
    Outcome failed;
    failed.name = entry.name;
    failed.key = keys_[at_];
    failed.what = describe_config(entry.config);
    failed.versions = versions_text(options_.program);
    failed.numerics.problems.push_back(why);
    write_file(folder + "/outcome.json", pretty_json(outcome_to_json(failed)));
    run_.outcomes.push_back(std::move(failed));
  }

  void write_tables() const {
    const std::string base = options_.out + "/suite";
    write_file(base + ".json", pretty_json(suite_to_json(run_.outcomes)));
    write_file(base + ".txt", suite_text(run_.outcomes));
    write_file(base + ".md", suite_markdown(run_.outcomes));
    write_file(base + ".csv", suite_csv(run_.outcomes));
  }

  void say(const SuiteEntry& entry, const std::string& what) const {
    std::fprintf(stderr, "%2zu/%zu %6.1f s  %-30s %s\n", at_ + 1, suite_.entries.size(), seconds_since(begin_),
                 entry.name.c_str(), what.c_str());
    (void)std::fflush(stderr);
  }

  const Suite& suite_;
  const ValidateOptions& options_;
  double limit_s_;
  Clock::time_point begin_ = Clock::now();
  std::vector<std::string> keys_;
  std::size_t at_ = 0;
  SuiteRun run_;
};

}  // namespace

SuiteRun validate_suite(const Suite& suite, const ValidateOptions& options, double limit_s) {
  if (launcher()) throw InputError("--suite drives its GPUs from one process: start it without a launcher");
  return SuiteRunner(suite, options, limit_s).run();
}

bool leads_processes() {
  const auto rank = launcher();
  return !rank || rank->rank == 0;
}

}  // namespace dbo::validate
