// dbo decide: what happens before the first kernel of a step, and nothing after it.
#include <fmt/format.h>

#include "sim/batch/decision_json.h"
#include "tools/commands.h"
#include "tools/decision_text.h"
#include "tools/jobs.h"
#include "tools/steps.h"
#include "tools/summary.h"

namespace dbo {

int run_decide(const DecideOptions& options) {
  const Config config = load_config(options.config);
  // JSON on stdout stays JSON: the log goes beside it.
  if (options.log_steps) fmt::print(options.json ? stderr : stdout, "{}", step_log(config));
  if (config.workload.sequence) {
    const SequenceOutcome outcome = run_sequence(config, thread_count(0));
    fmt::print("{}", options.json ? pretty_json(sequence_json(config, outcome)) : sequence_table(config, outcome));
    return 0;
  }
  const Decision decision = decide(config.workload.steps.front(), decide_settings(config));
  fmt::print("{}", options.json ? pretty_json(decision_to_json(decision))
                                : headline(config) + "\n" + decision_table(config, decision));
  return 0;
}

}  // namespace dbo
