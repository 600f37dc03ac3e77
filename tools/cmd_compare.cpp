// dbo compare: a predicted trace against a measured one.
#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/commands.h"
#include "traces/compare.h"

namespace dbo {
namespace {

double tolerance(const char* flag, double percent) {
  if (!(percent >= 0) || percent > 1e6)
    throw InputError(fmt::format("{}: must be a percentage from 0, is {}", flag, percent));
  return percent / 100;
}

}  // namespace

int run_compare(const CompareCommand& command) {
  CompareOptions options;
  options.any_plan = command.any_plan;
  options.step_tolerance = tolerance("--step-tolerance", command.step_percent);
  options.kind_tolerance = tolerance("--op-tolerance", command.op_percent);
  options.window_tolerance = tolerance("--window-tolerance", command.window_percent);
  if (!(command.slack_us >= 0) || command.slack_us > 1e9)
    throw InputError(fmt::format("--slack-us: must be a time from 0, is {}", command.slack_us));
  options.lane_slack = ns_from_us(command.slack_us);
  const CompareInput input = load_compare_input(command.files);
  const Comparison comparison = compare_traces(input, options);
  fmt::print("{}", command.json ? pretty_json(comparison_json(comparison)) : comparison_text(comparison));
  return static_cast<int>(comparison.pass() ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
