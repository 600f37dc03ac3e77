// Runs a validation on this machine: case, replay, comparison, files.
#pragma once

#include <string>
#include <vector>

#include "validate/case.h"
#include "validate/cuda/replay_case.h"
#include "validate/outcome.h"
#include "validate/suite.h"

namespace dbo::validate {

struct ValidateOptions {
  std::vector<std::string> profiles;  ///< of several that of the config's model is taken; none: the cost model alone
  std::string program;                ///< name, version and commit of this program, for results
  std::string out;                    ///< folder for traces, plans, report.html and outcome.json; empty: none
  bool brief = false;                 ///< of the files only the first way's report and split traces
  int gpus = 0;                       ///< 0: all of this machine, at most the config's ranks
  bool eager = true, graph = true;
  ReplayRules rules;
  std::int64_t deadline_s = 20;
};

/// One config, on GPUs of this process or, under a launcher, of all its processes. The outcome is whole on the first
/// rank; others get an empty one.
Outcome validate_config(const Config& config, const std::string& name, const ValidateOptions& options);

/// Every config of a suite that has no outcome in `options.out` yet; prints a line for each on stderr as it is done,
/// and keeps the suite's tables there (suite.json, .txt, .md and .csv). A config that cannot run is an outcome with its
/// reason; one that took the process with it is not tried again. Nothing is begun after `limit_s` seconds. Throws
/// InputError for configs that the profile was itself measured on, CudaError when a GPU is lost: run it again to go on.
struct SuiteRun {
  std::vector<Outcome> outcomes;  ///< in the suite's order
  std::size_t left = 0;           ///< configs for the next run
};
SuiteRun validate_suite(const Suite& suite, const ValidateOptions& options, double limit_s);

/// Whether this process is the one that prints: the launcher's first, or the only one.
bool leads_processes();

}  // namespace dbo::validate
