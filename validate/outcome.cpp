#include "validate/outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/model/hardware.h"
#include "traces/text_table.h"
#include "validate/starvation.h"

namespace dbo::validate {
namespace {

// Events around ops read to about half a microsecond each.
constexpr Ns kEventSlack{3'000};
// Roundings to bf16 on the way through a layer: norms, projections, attention, gate, expert GEMMs, sums.
constexpr double kRoundingsPerLayer = 16;
// How far apart e4m3 numbers are, relative to themselves, at most.
constexpr double kFp8Step = 0.125;

/// Times that a layer's rows are rounded to e4m3: as they are sent or as experts in fp8 take them, and by such again
/// between their products.
int fp8_roundings(const ModelShape& shape) {
  if (shape.moe.routed_experts == 0) return 0;
  if (shape.expert_weights == Precision::Fp8) return 2;
  return shape.dispatch == Precision::Fp8 ? 1 : 0;
}

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
}

std::string kind_name(const KindRow& row, bool unsplit) {
  return std::string(op_name(row.kind)) + (row.overlapped ? " beside" : "") + (unsplit ? " un-split" : "");
}

double us(Ns time) {
  return static_cast<double>(time.count()) / 1000;
}

Comparison compare_plan(const PredictedPlan& predicted, const MeasuredPlan& measured, const MeasuredPlan* baseline) {
  CompareInput input;
  input.predicted = predicted.result.trace;
  input.measured = measured.trace;
  input.predicted_file = "prediction";
  input.measured_file = "replay";
  input.plan = predicted.plan;
  if (baseline != nullptr && !baseline->trace.ops.empty()) {
    input.baseline = baseline->trace;
    input.baseline_measured = true;
  }
  CompareOptions options;
  options.lane_slack = kEventSlack;
  options.stretched_gaps = true;
  options.tracing = ns_from_us(std::max(measured.tracing_us, 0.0));
  return compare_traces(input, options);
}

void add_kinds(const Comparison& comparison, bool unsplit, std::vector<ErrorRow>& rows) {
  for (const KindRow& row : comparison.kinds) {
    // How long a receive waited is told apart from its own time by the prediction itself: nothing was measured of it.
    if (is_recv(row.kind)) continue;
    ErrorRow error;
    error.what = kind_name(row, unsplit);
    error.count = row.count;
    error.predicted = us(row.predicted);
    error.measured = us(row.measured);
    error.error = error.measured > 0 ? error.predicted / error.measured - 1 : 0;
    rows.push_back(std::move(error));
  }
}

void add_windows(const Comparison& comparison, std::vector<ErrorRow>& rows) {
  for (const WindowRow& row : comparison.windows) {
    const auto predicted = row.predicted_share(), measured = row.share();
    if (!predicted || !measured) continue;
    rows.push_back({row.name, row.measured, *predicted, *measured, *predicted - *measured});
  }
}

/// What in the prediction is responsible for most of the step's error. Tracing stretches the idle time of the traced
/// step, not that of the steps whose time is compared.
std::string find_cause(const Comparison& comparison, double tracing_us) {
  double most = 0;
  std::string cause = "none above 1 % of the step";
  const double step = us(comparison.measured_step);
  for (const StepPart& part : comparison.parts) {
    double difference = us(part.measured) - us(part.predicted);
    if (part.what == "idle") difference -= tracing_us;
    if (std::abs(difference) <= std::max(most, step / 100)) continue;
    most = std::abs(difference);
    cause = fmt::format("{} takes {:.1f} us {} than priced: {}", part.what, std::abs(difference),
                        difference > 0 ? "more" : "less", part.assumption);
  }
  return cause;
}

}  // namespace

Figure figure_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.75) - quantile(values, 0.25), static_cast<int>(values.size())};
}

double split_bound(const ModelShape& shape) {
  const double rounding = std::ldexp(1.0, -18);  // squared
  const double step = fp8_roundings(shape) * kFp8Step;
  // Of the difference: both steps' roundings count.
  double square = 0;
  for (int layer = 1; layer <= shape.layers; ++layer) {
    const double error = square / layer;
    square += 2 * error + 2 * kRoundingsPerLayer * rounding + 2 * 2 * rounding * layer + step / 2 * std::sqrt(error);
  }
  return std::sqrt(square / (shape.layers + 1) + 2 * 2 * rounding);
}

double WayOutcome::step_error(bool normalised) const {
  const double measured = split.median_us / (normalised ? drift.split : 1);
  return measured > 0 ? predicted_split_us / measured - 1 : 0;
}

double WayOutcome::unsplit_error(bool normalised) const {
  const double measured = unsplit.median_us / (normalised ? drift.unsplit : 1);
  return measured > 0 ? predicted_unsplit_us / measured - 1 : 0;
}

WayComparison compare_way(const PredictedWay& predicted, const MeasuredWay& measured, const Drift& drift) {
  WayComparison out;
  WayOutcome& way = out.outcome;
  way.graph = predicted.graph;
  way.split = figure_of(measured.split.steps_us);
  way.unsplit = figure_of(measured.unsplit.steps_us);
  way.predicted_split_us = static_cast<double>(predicted.split.result.step_ns) / 1000;
  way.predicted_unsplit_us = static_cast<double>(predicted.unsplit.result.step_ns) / 1000;
  way.drift = drift;
  way.split_mhz = figure_of(measured.split.clocks_mhz).median_us;
  way.unsplit_mhz = figure_of(measured.unsplit.clocks_mhz).median_us;
  way.predicted_mhz = predicted.split.costs.sm_mhz;
  way.tracing_us = measured.split.tracing_us;
  way.recomputed_us = static_cast<double>(predicted.split.alone_ns) / 1000;
  way.structure_us = step_of_durations(predicted.split, measured.split.op_us);
  if (!measured.unsplit.trace.ops.empty()) {
    const Comparison unsplit = compare_plan(predicted.unsplit, measured.unsplit, nullptr);
    add_kinds(unsplit, true, way.kinds);
    way.order_findings = static_cast<int>(unsplit.order.size());
  }
  if (measured.split.trace.ops.empty()) return out;
  out.split = compare_plan(predicted.split, measured.split, &measured.unsplit);
  std::vector<ErrorRow> kinds;
  add_kinds(out.split, false, kinds);
  way.kinds.insert(way.kinds.begin(), kinds.begin(), kinds.end());
  add_windows(out.split, way.windows);
  way.order_findings += static_cast<int>(out.split.order.size());
  for (const NamedFinding& finding : out.split.findings) way.named.push_back(finding.code + " " + finding.title);
  const Plan& plan = predicted.split.plan;
  const std::int32_t rank = measured.split.trace.ops.front().rank;
  if (auto starved = find_starvation(plan, linearise(plan, plan.class_of(rank)), measured.split.entry_us,
                                     predicted.split.result.trace, rank))
    way.named.push_back(std::move(*starved));
  way.largest_cause = find_cause(out.split, way.tracing_us);
  return out;
}

double step_of_durations(const PredictedPlan& predicted, const std::vector<double>& op_us) {
  const Linear linear = linearise(predicted.plan, predicted.plan.class_of(0));
  if (op_us.size() < linear.ops.size()) return 0;
  CostTable costs = solo_costs(predicted);
  costs.by_plan_op.assign(linear.ops.size(), Ns{-1});
  for (std::size_t op = 0; op < linear.ops.size(); ++op) {
    // What a receive takes beyond its wait is not told apart by measurement.
    if (!is_recv(predicted.plan.op(linear.ops[op].op).kind)) costs.by_plan_op[op] = ns_from_us(op_us[op]);
  }
  return static_cast<double>(run_engine(predicted.plan, costs).step()) / 1000;
}

double drift_of(const PredictedPlan& predicted, const GpuSpec& gpu, const std::optional<Anchor>& calibrated,
                const std::optional<Anchor>& now, const Anchor& noise) {
  if (!calibrated || !now || calibrated->gemm_us <= 0 || calibrated->copy_us <= 0) return 1;
  // Time of ops that are limited by arithmetic, by memory, and of those that are neither (wires, waiting).
  double arithmetic = 0, memory = 0;
  const Linear linear = linearise(predicted.plan, predicted.plan.class_of(0));
  for (std::uint32_t op = 0; op < linear.ops.size(); ++op) {
    if (!is_compute(predicted.plan.op(linear.ops[op].op).kind)) continue;
    const OpCost& cost = cost_of(predicted, linear, op);
    const double by_flops = static_cast<double>(cost.demand.flops) / std::max(gpu.bf16_flops, 1.0);
    const double by_bytes = static_cast<double>(cost.demand.hbm_bytes) / std::max(gpu.hbm_bytes_per_s, 1.0);
    (by_flops > by_bytes ? arithmetic : memory) += static_cast<double>(cost.time.count());
  }
  const auto step = static_cast<double>(predicted.result.step_ns);
  if (step <= 0) return 1;
  const double scale = std::min(1.0, step / std::max(arithmetic + memory, 1.0));
  const auto change = [](double was, double is, double by_itself) {
    return std::abs(is / was - 1) <= by_itself ? 0 : is / was - 1;
  };
  return 1 + scale * arithmetic / step * change(calibrated->gemm_us, now->gemm_us, noise.gemm_us) +
         scale * memory / step * change(calibrated->copy_us, now->copy_us, noise.copy_us);
}

double computing_clock(const std::vector<MeasuredWay>& ways, const std::vector<ComputingShare>& shares,
                       double idle_mhz) {
  double cycles = 0, time = 0;
  const auto add = [&](const MeasuredPlan& plan, double share) {
    const double mhz = figure_of(plan.clocks_mhz).median_us;
    if (mhz <= 0) return;
    const double step = figure_of(plan.steps_us).median_us;
    cycles += step * (mhz - (1 - share) * std::max(idle_mhz, mhz));
    time += step * share;
  };
  for (std::size_t w = 0; w < ways.size(); ++w) {
    add(ways[w].split, shares[w].split);
    add(ways[w].unsplit, shares[w].unsplit);
  }
  return time > 0 ? std::max(cycles / time, 0.0) : 0;
}

bool Outcome::caught() const {
  const std::string code = injected.substr(0, injected.find(':'));
  const auto names = [&](const std::string& text) { return !code.empty() && text.rfind(code + " ", 0) == 0; };
  if (std::any_of(numerics.problems.begin(), numerics.problems.end(), names)) return true;
  return std::any_of(ways.begin(), ways.end(),
                     [&](const WayOutcome& way) { return std::any_of(way.named.begin(), way.named.end(), names); });
}

std::vector<std::string> Outcome::failures() const {
  std::vector<std::string> out = numerics.problems;
  if (ways.empty() && out.empty()) out.emplace_back("nothing was replayed");
  for (const WayOutcome& way : ways) {
    const std::string how = way.graph ? "graph" : "eager";
    if (way.order_findings > 0)
      out.push_back(fmt::format("{}: {} findings against the planned order", how, way.order_findings));
    const double allowed = std::max(kStepTolerance, 1.5 * way.split.relative_spread());
    if (std::abs(way.step_error(true)) > allowed)
      out.push_back(fmt::format("{}: step predicted {:+.1f} % from the measured one (allowed {:.1f} %)", how,
                                way.step_error(true) * 100, allowed * 100));
    const double gain_allowed = std::max(kGainTolerance, 1.5 * way.gain_spread());
    if (std::abs(way.gain_error()) > gain_allowed)
      out.push_back(fmt::format("{}: gain predicted {:+.1f} % from the measured one (allowed {:.1f} %)", how,
                                way.gain_error() * 100, gain_allowed * 100));
    const double predicted = way.predicted_gain(), measured = way.measured_gain();
    if (std::abs(predicted - 1) > kSignMargin && (predicted - 1) * (measured - 1) < 0)
      out.push_back(fmt::format("{}: predicted a gain of {:.3f}, measured {:.3f}: the wrong side of 1", how, predicted,
                                measured));
    for (const std::string& finding : way.named) {
      // Where splitting was predicted not to pay, that it did not is no mistake of the prediction.
      const bool foretold = finding.rfind("F16", 0) == 0 && predicted < 1 + kSignMargin;
      if (!foretold) out.push_back(how + ": " + finding);
    }
  }
  return out;
}

std::string outcome_line(const Outcome& outcome) {
  if (outcome.ways.empty()) return outcome.failures().front() + "\n";
  const WayOutcome& way = outcome.ways.front();
  return fmt::format("predicted gain {:.3f}x, measured {:.3f}x, step error {:+.1f} %, largest cause: {}\n",
                     way.predicted_gain(), way.measured_gain(), way.step_error(true) * 100, way.largest_cause);
}

std::string outcome_text(const Outcome& outcome) {
  std::string text = outcome_line(outcome);
  text += fmt::format("config        {}: {}\n", outcome.name, outcome.what);
  text += fmt::format("machine       {} x {}{}\n", outcome.gpus, outcome.device, outcome.emulated ? ", emulated" : "");
  text += fmt::format("versions      {}\n", outcome.versions);
  for (const std::string& note : outcome.notes) text += "              " + note + "\n";
  if (outcome.anchor_before && outcome.anchor_after) {
    text += fmt::format("anchors       GEMM {:.1f} us before, {:.1f} after; copy {:.1f}, {:.1f}",
                        outcome.anchor_before->gemm_us, outcome.anchor_after->gemm_us, outcome.anchor_before->copy_us,
                        outcome.anchor_after->copy_us);
    if (outcome.anchor_calibrated)
      text += fmt::format("; at calibration {:.1f}, {:.1f}", outcome.anchor_calibrated->gemm_us,
                          outcome.anchor_calibrated->copy_us);
    text += "\n";
  }
  text += fmt::format("numerics      {}; split against un-split {:.4f} of {:.4f} allowed, {} tokens\n",
                      outcome.numerics.same_bits ? "same bits eager, by graph and on repeats" : "BITS DIFFER",
                      outcome.numerics.split_error, outcome.numerics.split_bound, outcome.numerics.tokens);
  if (outcome.numerics.audited > 0)
    text += fmt::format("memory        {} ops one by one, on poison, with guards behind every buffer\n",
                        outcome.numerics.audited);
  if (!outcome.injected.empty())
    text += fmt::format("planted       {}\n              {}\n", outcome.injected,
                        outcome.caught() ? "caught and named" : "NOT FOUND");
  for (const WayOutcome& way : outcome.ways) {
    text += fmt::format("\n{}\n", way.graph ? "graph" : "eager");
    text += fmt::format("  {:<24} {:>11} {:>11} {:>9} {:>9} {:>9}\n", "", "predicted", "measured", "spread", "error",
                        "norm.");
    const auto line = [&](const char* what, double predicted, const Figure& measured, double error, double normalised) {
      text += fmt::format("  {:<24} {:>8.1f} us {:>8.1f} us {:>8.1f}% {:>+8.1f}% {:>+8.1f}%\n", what, predicted,
                          measured.median_us, measured.relative_spread() * 100, error * 100, normalised * 100);
    };
    line("step, split", way.predicted_split_us, way.split, way.step_error(false), way.step_error(true));
    line("step, un-split", way.predicted_unsplit_us, way.unsplit, way.unsplit_error(false), way.unsplit_error(true));
    text += fmt::format("  {:<24} {:>10.3f}x {:>10.3f}x {:>8.1f}% {:>+8.1f}%\n", "gain", way.predicted_gain(),
                        way.measured_gain(), way.gain_spread() * 100, way.gain_error() * 100);
    if (way.split_mhz > 0)
      text += fmt::format("  SM clock {:.0f} MHz split, {:.0f} MHz un-split{}\n", way.split_mhz, way.unsplit_mhz,
                          way.predicted_mhz > 0
                              ? fmt::format("; predicted for {:.0f}, norm. for what it was", way.predicted_mhz)
                              : std::string());
    if (way.recomputed_us > 0)
      text += fmt::format(
          "  were no op slowed by another, the split step would take {:.1f} us: measured is {:.3f} of that\n",
          way.recomputed_us, way.split.median_us / way.recomputed_us);
    if (way.structure_us > 0)
      text += fmt::format("  with every op as long as measured, the plan takes {:.1f} us: measured is {:.3f} of that\n",
                          way.structure_us, way.split.median_us / way.structure_us);
    text += fmt::format("  tracing adds {:.1f} us a step; order findings: {}\n", way.tracing_us, way.order_findings);
    for (const ErrorRow& row : way.kinds)
      text += fmt::format("  {:<24} {:>8.2f} us {:>8.2f} us {:>9} {:>+8.1f}%\n", row.what, row.predicted, row.measured,
                          fmt::format("x{}", row.count), row.error * 100);
    for (const ErrorRow& row : way.windows)
      text += fmt::format("  {:<24} {:>9.1f}% {:>10.1f}% {:>9} {:>+8.1f} points\n", row.what, row.predicted * 100,
                          row.measured * 100, fmt::format("x{}", row.count), row.error * 100);
    for (const std::string& finding : way.named) text += "  finding: " + finding + "\n";
  }
  const std::vector<std::string> failures = outcome.failures();
  text += failures.empty() ? "\npassed\n" : "\nFAILED\n";
  for (const std::string& failure : failures) text += "  " + failure + "\n";
  return text;
}

}  // namespace dbo::validate
