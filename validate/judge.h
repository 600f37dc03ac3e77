// Judges what a replay measured by a prediction, and keeps both in a folder: the same after a replay as for one that
// was measured before.
#pragma once

#include <string>
#include <vector>

#include "validate/case.h"
#include "validate/measured.h"
#include "validate/outcome.h"

namespace dbo::validate {

/// "DeepSeek-V3, decode 256 tokens a rank, EP64, vllm-ll over lsa-ll".
std::string describe_config(const Config& config);

/// How `validated` was made, by make_case; for whoever predicts it at another clock.
struct CaseOrigin {
  Config config;
  std::string profile_path;  ///< empty: the cost model alone
  CaseOptions options;
};

struct JudgedCase {
  Outcome outcome;                         ///< but for `seconds`
  std::vector<WayComparison> comparisons;  ///< by way
};

/// Of what receives took in `measured`, the prediction says how much was waiting: its traces are changed so. A plan
/// without a trace is judged by its steps alone.
JudgedCase judge_case(const CaseOrigin& origin, const ValidationCase& validated, MeasuredCase& measured);

/// Predicted and measured traces, plans, a report for each way, and measured.json; `brief`: only the first way's report
/// and split step, and all measured traces, the others packed. An incomplete measurement leaves no measured.json.
void write_case_files(const std::string& folder, bool brief, const ValidationCase& validated,
                      const MeasuredCase& measured, const JudgedCase& judged);

/// outcome.json and outcome.txt.
void write_outcome(const std::string& folder, const Outcome& outcome);

/// Path of a measured trace as write_case_files leaves it, plain or packed; empty: there is none.
std::string find_measured_trace(const std::string& folder, bool graph, bool split);

}  // namespace dbo::validate
