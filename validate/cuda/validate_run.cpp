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
#include "validate/judge.h"

namespace dbo::validate {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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
MeasuredCase replay(const ValidationCase& validated, const ValidateOptions& options, bool& leads) {
  runtime::HangGuard guard(Ns{options.deadline_s * 1'000'000'000});
  LiveReplays live;
  MeasuredCase out;
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
        MeasuredCase mine = replay_case(member, member.rank(), validated, guard, live, rules);
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

}  // namespace

Outcome validate_config(const Config& config, const std::string& name, const ValidateOptions& options) {
  const auto begin = Clock::now();
  CaseOrigin origin{config, options.profiles.empty() ? std::string() : pick_profile(options.profiles, config), {}};
  origin.options.gpus = count_gpus(config, options.gpus);
  origin.options.eager = options.eager;
  origin.options.graph = options.graph;
  origin.options.name = name;
  const ValidationCase validated = make_case(config, origin.profile_path, origin.options);
  bool leads = true;
  MeasuredCase measured = replay(validated, options, leads);
  if (!leads) return {};
  const runtime::GpuInfo gpu = runtime::list_gpus().front();
  measured.device = gpu.name;
  measured.versions = versions_text(options.program);
  measured.highest_mhz = gpu.clock_khz / 1000.0;
  for (std::size_t w = 0; w < validated.ways.size(); ++w) {
    tag(measured.ways[w].split.trace, validated, validated.ways[w]);
    tag(measured.ways[w].unsplit.trace, validated, validated.ways[w]);
  }
  JudgedCase judged = judge_case(origin, validated, measured);
  if (!options.out.empty()) write_case_files(options.out, options.brief, validated, measured, judged);
  judged.outcome.seconds = seconds_since(begin);
  if (!options.out.empty()) write_outcome(options.out, judged.outcome);
  return std::move(judged.outcome);
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
    check_suite(suite_, options_.profiles);
    for (const SuiteEntry& entry : suite_.entries)
      keys_.push_back(outcome_key(entry.config, read_file(pick_profile(options_.profiles, entry.config)),
                                  count_gpus(entry.config, options_.gpus)));
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

  void write_tables() const { write_suite_tables(options_.out, run_.outcomes); }

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
