// dbo-gpu validate: predicts a step, replays the same plan, says how wrong the prediction was and why.
#include <fmt/format.h>

#include "commit.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "tools/dbo_gpu.h"
#include "tools/version.h"
#include "validate/cuda/validate_run.h"

namespace dbo {
namespace {

/// "examples/teaching.json" is "teaching".
std::string name_of(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  return name.substr(0, name.rfind(".json"));
}

validate::ValidateOptions options_of(const ValidateCommand& command) {
  validate::ValidateOptions options;
  options.profiles = command.profiles;
  options.program = fmt::format("dbo {} ({})", kVersion, kCommit);
  options.out = command.out;
  options.gpus = static_cast<int>(command.gpus);
  options.eager = command.eager || !command.graph;
  options.graph = command.graph || !command.eager;
  options.rules.iterations = static_cast<int>(command.iterations);
  options.rules.warmup = static_cast<int>(command.warmup);
  options.rules.windows = command.windows;
  options.rules.inject = command.inject;
  options.deadline_s = command.deadline_s;
  return options;
}

int run_suite(const ValidateCommand& command, validate::ValidateOptions options) {
  if (options.out.empty()) throw InputError("--out says where a suite's results go");
  const validate::Suite suite = validate::load_suite(command.suite);
  if (command.list) {
    for (const validate::SuiteEntry& entry : suite.entries) fmt::print("{}\n", entry.name);
    return static_cast<int>(Exit::Ok);
  }
  const validate::SuiteRun run = validate::validate_suite(suite, options, static_cast<double>(command.limit_s));
  fmt::print("{}", validate::suite_text(run.outcomes));
  if (run.left > 0) fmt::print("{} configs are left: run the same command again to go on\n", run.left);
  bool ok = run.left == 0;
  for (const validate::Outcome& outcome : run.outcomes) ok = ok && outcome.failures().empty();
  return static_cast<int>(ok ? Exit::Ok : Exit::Finding);
}

}  // namespace

int run_validate(const ValidateCommand& command) {
  if (command.iterations < 1 || command.warmup < 0)
    throw InputError("--iters: must be at least 1, and --warmup at least 0; are " + std::to_string(command.iterations) +
                     " and " + std::to_string(command.warmup));
  validate::ValidateOptions options = options_of(command);
  options.rules.announce = command.suite.empty();
  if (!command.suite.empty()) {
    if (!command.config.empty()) throw InputError("give either a config or --suite");
    if (!command.inject.empty()) throw InputError("--inject is for one config, not for a suite");
    return run_suite(command, options);
  }
  if (command.config.empty()) throw InputError("give a config, or --suite FILE");
  Config config = load_config(command.config);
  if (command.emulate == "off") config.emulate = Emulate::Off;
  if (command.emulate == "auto") config.emulate = Emulate::Auto;
  if (options.profiles.empty() && config.costs.source == CostSource::Profile && !config.costs.profile.empty())
    options.profiles.push_back(config.profile_path());
  const validate::Outcome outcome = validate::validate_config(config, name_of(command.config), options);
  if (!validate::leads_processes()) return static_cast<int>(Exit::Ok);
  fmt::print("{}", command.json ? pretty_json(validate::outcome_to_json(outcome)) : validate::outcome_text(outcome));
  // A fault that was planted and not found is a fault of ours.
  if (!outcome.injected.empty() && !outcome.caught()) return static_cast<int>(Exit::Bug);
  return static_cast<int>(outcome.failures().empty() ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
