#include <filesystem>

#include "sim/base/error.h"
#include "sim/plan/plan_json.h"
#include "traces/classify.h"
#include "traces/compare.h"
#include "traces/join.h"
#include "traces/own_trace.h"
#include "traces/trace_reader.h"

namespace dbo {
namespace {

Trace read_own(const std::string& path) {
  const RawTrace raw = read_raw_trace(path);
  if (!raw.own()) throw InputError(path, "", "holds no op slices (args.op): not a trace of ours");
  return own_trace(raw);
}

/// The plan given by name, or the one beside the prediction that it is of.
std::optional<Plan> find_plan(const CompareFiles& files, const std::string& hash) {
  if (!files.plan.empty()) {
    Plan plan = load_plan(files.plan);
    if (!hash.empty() && plan_hash(plan) != hash)
      throw InputError(files.plan, "", "is plan " + plan_hash(plan) + ", the prediction is of plan " + hash);
    return plan;
  }
  const std::filesystem::path folder = std::filesystem::path(files.predicted).parent_path();
  for (const char* name : {"plan.json", "baseline.plan.json"}) {
    if (hash.empty() || !std::filesystem::exists(folder / name)) continue;
    Plan plan = load_plan((folder / name).string());
    if (plan_hash(plan) == hash) return plan;
  }
  return std::nullopt;
}

/// A profiler's trace as ops of the plan.
Trace read_foreign(RawTrace raw, const CompareFiles& files, const std::optional<Plan>& plan) {
  KernelRules rules;
  for (const std::string& file : files.rules) rules.add_file(file);
  const ClassifiedTrace classified = classify(std::move(raw), rules);
  if (classified.how.empty())
    throw InputError(files.measured, "", "no layers were recognised in it, so nothing can be joined (see dbo inspect)");
  // One pass in the middle: the first is often cold, the last often cut.
  Trace ops = ops_of(classified, classified.steps > 1 ? classified.steps / 2 : -1);
  if (!plan) return ops;
  std::vector<Linear> linear;
  for (std::size_t c = 0; c < plan->classes.size(); ++c) linear.push_back(linearise(*plan, static_cast<int>(c)));
  return adopt_plan(ops, *plan, linear);
}

}  // namespace

CompareInput load_compare_input(const CompareFiles& files) {
  CompareInput input;
  input.predicted_file = files.predicted;
  input.measured_file = files.measured;
  input.predicted = read_own(files.predicted);
  input.plan = find_plan(files, input.predicted.plan_hash());
  RawTrace raw = read_raw_trace(files.measured);
  input.foreign = !raw.own();
  input.measured = input.foreign ? read_foreign(std::move(raw), files, input.plan) : own_trace(raw);
  const std::filesystem::path beside = std::filesystem::path(files.predicted).parent_path() / "baseline.trace.json";
  if (!files.measured_baseline.empty()) {
    input.baseline = read_own(files.measured_baseline);
    input.baseline_measured = true;
  } else if (!files.predicted_baseline.empty()) {
    input.baseline = read_own(files.predicted_baseline);
  } else if (std::filesystem::exists(beside) && beside != std::filesystem::path(files.predicted)) {
    input.baseline = read_own(beside.string());
  }
  return input;
}

}  // namespace dbo
