// dbo compare: a predicted trace against a measured one.
#include <fmt/format.h>

#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/json_reader.h"
#include "tools/commands.h"
#include "traces/compare.h"
#include "traces/report_html.h"

namespace dbo {
namespace {

double tolerance(const char* flag, double percent) {
  if (!(percent >= 0) || percent > 1e6)
    throw InputError(fmt::format("{}: must be a percentage from 0, is {}", flag, percent));
  return percent / 100;
}

/// What the prediction's summary, which lies beside it, adds to a report; nothing when there is none of its plan.
void add_summary(const CompareFiles& files, const Comparison& comparison, ReportOptions& report) {
  const std::filesystem::path path = std::filesystem::path(files.predicted).parent_path() / "summary.json";
  if (!std::filesystem::exists(path)) return;
  const auto document = load_json(path.string());
  const Json& summary = document->root;
  const Json* hash = summary.find("plan_hash");
  if (hash == nullptr || !hash->is_string() || hash->as_string() != comparison.plan_hash) return;
  if (const Json* list = summary.find("assumptions"); list != nullptr && list->is_array())
    for (const Json& line : list->items())
      if (line.is_string()) report.assumptions.push_back(line.as_string());
  const Json* bubbles = summary.find("bubbles");
  if (bubbles == nullptr || !bubbles->is_array()) return;
  for (const Json& bubble : bubbles->items()) {
    const Json *lane = bubble.find("lane"), *cause = bubble.find("cause"), *ns = bubble.find("ns");
    if (lane == nullptr || cause == nullptr || ns == nullptr || !lane->is_string() || !cause->is_string() ||
        !ns->is_int())
      continue;
    if (lane->as_string() == "compute") report.bubbles.emplace_back(cause->as_string(), Ns{ns->as_int()});
  }
}

}  // namespace

int run_compare(const CompareCommand& command) {
  std::vector<std::string> inputs = {command.files.predicted, command.files.measured};
  for (const std::string* file :
       {&command.files.plan, &command.files.predicted_baseline, &command.files.measured_baseline})
    if (!file->empty()) inputs.push_back(*file);
  inputs.insert(inputs.end(), command.files.rules.begin(), command.files.rules.end());
  const bool taken = check_outputs(command.json, {{"--report", command.report}}, inputs);
  CompareOptions options;
  options.any_plan = command.any_plan;
  options.step_tolerance = tolerance("--step-tolerance", command.step_percent);
  options.kind_tolerance = tolerance("--op-tolerance", command.op_percent);
  options.window_tolerance = tolerance("--window-tolerance", command.window_percent);
  if (!(command.slack_us >= 0) || command.slack_us > 1e9)
    throw InputError(fmt::format("--slack-us: must be a time from 0, is {}", command.slack_us));
  options.lane_slack = ns_from_us(command.slack_us);
  const CompareInput input = load_compare_input(command.files);
  if (!command.files.rules.empty() && !input.foreign)
    throw InputError("--rules: " + command.files.measured + " is a trace of ours, which names its ops: leave it out");
  const Comparison comparison = compare_traces(input, options);
  if (!command.report.empty()) {
    ReportOptions report;
    add_summary(command.files, comparison, report);
    write_file(command.report, report_html(input, comparison, report));
  }
  fmt::print(taken ? stderr : stdout, "{}",
             command.json ? pretty_json(comparison_json(comparison)) : comparison_text(comparison));
  return static_cast<int>(comparison.pass() ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
