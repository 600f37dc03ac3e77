// A sequence of steps at the command line: `dbo decide` and `dbo simulate` of a config with "steps" or "steps_file".
#pragma once

#include <string>

#include "sim/base/json.h"
#include "sim/batch/sequence.h"
#include "sim/config/config.h"

namespace dbo {

struct SequenceOutcome {
  SequenceReport report;
  std::optional<ThresholdChoice> best;
};

/// Decides and simulates every step with DBO and without, and searches the best thresholds. Steps that run the same
/// plan are simulated once. The outcome does not depend on `jobs`, the number of threads.
SequenceOutcome run_sequence(const Config& config, std::size_t jobs);

/// {"steps": [decision, step, tokens, step_ns, baseline_step_ns ...], "total": {...}}
Json sequence_json(const Config& config, const SequenceOutcome& outcome);
std::string sequence_table(const Config& config, const SequenceOutcome& outcome);

/// The log line of every step of the workload, each ending in a newline.
std::string step_log(const Config& config);

}  // namespace dbo
