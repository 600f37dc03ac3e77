#include "validate/judge.h"

#include <algorithm>
#include <filesystem>

#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "sim/search/predict.h"
#include "traces/chrome_writer.h"
#include "traces/report_html.h"
#include "validate/suite.h"

namespace dbo::validate {
namespace {

/// A receive's wait is what it took beyond the time that the prediction gives it when its data is there.
void set_waits(const PredictedPlan& predicted, Trace& measured) {
  std::vector<Linear> orders;
  for (std::size_t c = 0; c < predicted.plan.classes.size(); ++c)
    orders.push_back(linearise(predicted.plan, static_cast<int>(c)));
  for (TraceOp& op : measured.ops) {
    if (!is_recv(op.kind)) continue;
    const Linear& order = orders[static_cast<std::size_t>(predicted.plan.class_of(op.rank))];
    op.waited = std::max(Ns{}, (op.end - op.start) - cost_of(predicted, order, op.plan_op).time);
  }
}

double computing_share(const PredictedPlan& predicted) {
  const auto step = static_cast<double>(predicted.result.step_ns);
  return step > 0 ? std::min(static_cast<double>(compute_ns(predicted.plan, predicted.costs)) / step, 1.0) : 1;
}

double ratio(const PredictedPlan& is, const PredictedPlan& was) {
  return static_cast<double>(is.result.step_ns) / static_cast<double>(std::max<std::int64_t>(was.result.step_ns, 1));
}

/// Of each way: against a prediction at the clock that its steps ran at, or by the anchors.
std::vector<Drift> drifts_of(const CaseOrigin& origin, const Profile& profile, const ValidationCase& validated,
                             const MeasuredCase& measured) {
  std::vector<Drift> drifts;
  std::vector<ComputingShare> shares;
  for (const PredictedWay& way : validated.ways)
    shares.push_back({computing_share(way.split), computing_share(way.unsplit)});
  const double mhz = computing_clock(measured.ways, shares, measured.highest_mhz);
  if (mhz > 0 && !validated.ways.empty() && validated.ways.front().split.costs.sm_mhz > 0) {
    CaseOptions options = origin.options;
    options.sm_mhz = mhz;
    const ValidationCase at_clock = make_case(origin.config, origin.profile_path, options);
    for (std::size_t w = 0; w < validated.ways.size(); ++w) {
      const PredictedWay &is = at_clock.ways[w], &was = validated.ways[w];
      drifts.push_back({ratio(is.split, was.split), ratio(is.unsplit, was.unsplit)});
    }
    return drifts;
  }
  const Anchor now{(measured.before.gemm_us + measured.after.gemm_us) / 2,
                   (measured.before.copy_us + measured.after.copy_us) / 2};
  const auto drift = [&](const PredictedPlan& plan) {
    return drift_of(plan, validated.config.cluster.gpu, profile_anchor(profile), now, profile_anchor_noise(profile));
  };
  for (const PredictedWay& way : validated.ways) drifts.push_back({drift(way.split), drift(way.unsplit)});
  return drifts;
}

std::string trace_name(bool graph, bool split) {
  return std::string(graph ? "graph." : "eager.") + (split ? "" : "unsplit.") + "measured.trace.json";
}

void write_report(const std::string& path, const ValidationCase& validated, const PredictedWay& way,
                  const MeasuredWay& measured, const Comparison& comparison) {
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
  write_file(path, report_html(input, comparison, report));
}

}  // namespace

std::string describe_config(const Config& config) {
  const auto& rank = config.workload.steps.front().ranks.front();
  const bool prefill = !rank.requests.empty() && rank.requests.front().query > kDecodeQueries;
  return config.model.name + ", " + (prefill ? "prefill " : "decode ") + std::to_string(rank.tokens()) +
         " tokens a rank, EP" + std::to_string(config.cluster.gpus()) + ", " +
         (config.overlap.notation ? "notation" : config.overlap.schedule) + " over " +
         std::string(transport_info(config.overlap.transport).name);
}

JudgedCase judge_case(const CaseOrigin& origin, const ValidationCase& validated, MeasuredCase& measured) {
  const std::string& path = origin.profile_path;
  const Profile profile = path.empty() ? Profile{} : load_profile(path);
  JudgedCase judged;
  Outcome& outcome = judged.outcome;
  outcome.name = validated.name;
  outcome.key = outcome_key(origin.config, path.empty() ? std::string() : read_file(path), origin.options.gpus);
  outcome.what = describe_config(validated.config);
  outcome.device = measured.device;
  outcome.versions = measured.versions;
  outcome.gpus = validated.gpus;
  outcome.emulated = validated.emulated;
  outcome.notes = validated.notes;
  if (is_calibration_config(profile, origin.config))
    outcome.notes.emplace_back("the profile was measured on this very batch: its errors say little");
  outcome.notes.insert(outcome.notes.end(), measured.how.begin(), measured.how.end());
  outcome.anchor_before = measured.before;
  outcome.anchor_after = measured.after;
  outcome.anchor_calibrated = profile_anchor(profile);
  outcome.numerics = measured.numerics;
  outcome.injected = measured.injected;
  const std::vector<Drift> drifts = drifts_of(origin, profile, validated, measured);
  for (std::size_t w = 0; w < validated.ways.size(); ++w) {
    set_waits(validated.ways[w].split, measured.ways[w].split.trace);
    set_waits(validated.ways[w].unsplit, measured.ways[w].unsplit.trace);
    judged.comparisons.push_back(compare_way(validated.ways[w], measured.ways[w], drifts[w]));
    outcome.ways.push_back(judged.comparisons.back().outcome);
  }
  return judged;
}

void write_case_files(const std::string& folder, bool brief, const ValidationCase& validated,
                      const MeasuredCase& measured, const JudgedCase& judged) {
  make_folder(folder);
  for (std::size_t w = 0; w < validated.ways.size(); ++w) {
    const PredictedWay& way = validated.ways[w];
    const MeasuredWay& replayed = measured.ways[w];
    const std::string prefix = folder + "/" + way.name() + ".";
    const bool plain = w == 0 || !brief;
    const auto write_measured = [&](bool split, const Trace& trace) {
      if (!trace.ops.empty())
        write_chrome_trace(folder + "/" + trace_name(way.graph, split) + (plain && (split || !brief) ? "" : ".gz"),
                           trace);
    };
    write_measured(true, replayed.split.trace);
    write_measured(false, replayed.unsplit.trace);
    if (!plain) continue;
    write_file(prefix + "plan.json", plan_text(way.split.plan));
    write_chrome_trace(prefix + "predicted.trace.json", way.split.result.trace);
    if (!brief) {
      write_file(prefix + "unsplit.plan.json", plan_text(way.unsplit.plan));
      write_chrome_trace(prefix + "unsplit.predicted.trace.json", way.unsplit.result.trace);
    }
    // The first way is what people look at first.
    if (!replayed.split.trace.ops.empty() && !replayed.unsplit.trace.ops.empty())
      write_report(w == 0 ? folder + "/report.html" : prefix + "report.html", validated, way, replayed,
                   judged.comparisons[w].split);
  }
  if (measured.whole) write_file(folder + "/measured.json", compact_json(measured_to_json(validated, measured)) + "\n");
}

void write_outcome(const std::string& folder, const Outcome& outcome) {
  write_file(folder + "/outcome.json", pretty_json(outcome_to_json(outcome)));
  write_file(folder + "/outcome.txt", outcome_text(outcome));
}

std::string find_measured_trace(const std::string& folder, bool graph, bool split) {
  const std::string plain = folder + "/" + trace_name(graph, split);
  for (const std::string& path : {plain, plain + ".gz"})
    if (std::filesystem::exists(path)) return path;
  return {};
}

}  // namespace dbo::validate
