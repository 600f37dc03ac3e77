// What a validation found: predicted beside measured, as plain data with a JSON form, so that suites can be resumed and
// their tables worked out without a GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "traces/compare.h"
#include "validate/measured.h"

namespace dbo::validate {

/// A median with its spread, in us.
struct Figure {
  double median_us = 0;
  double spread_us = 0;  ///< between the quartiles
  int count = 0;

  double relative_spread() const { return median_us > 0 ? spread_us / median_us : 0; }
  friend bool operator==(const Figure&, const Figure&) = default;
};
Figure figure_of(std::vector<double> us);

/// Largest allowed difference between split and un-split logits of a token, ||a - b|| / ||b||: the bound of the error
/// of either against an fp32 reference, times sqrt(2). Squares of errors are followed through the layers, in units of
/// what one layer adds to the residual stream (which after l layers is l such): 16 roundings to bf16 (2^-9) of a
/// layer's intermediates and two of the stream itself, each independent; the error e that is there already, relative to
/// the stream, comes out of gated products and softmax with twice its square; and with fp8 dispatch, which an error of
/// e makes fall on the other side of a rounding in e / q of all elements, q = 2^-3 apart, the experts' half of the
/// layer gets e q / 2 more; as much again where experts in fp8 round what they have between their products.
double split_bound(const ModelShape& shape);

/// One row of the error table: an op kind, a window or the step.
struct ErrorRow {
  std::string what;
  int count = 0;
  double predicted = 0, measured = 0;  ///< us; windows: hidden share, 0 to 1
  double error = 0;                    ///< predicted over measured, minus 1; windows: difference of shares

  friend bool operator==(const ErrorRow&, const ErrorRow&) = default;
};

/// How much longer steps take on the machine as it was than as it was predicted to be: by the SM clock they ran at
/// where the profile knows what that does, else by the anchors.
struct Drift {
  double split = 1, unsplit = 1;

  friend bool operator==(const Drift&, const Drift&) = default;
};

/// Of the split and the un-split step, the part in which the GPU computes, from 0 to 1.
struct ComputingShare {
  double split = 1, unsplit = 1;
};

struct WayOutcome {
  bool graph = false;
  Figure split, unsplit;  ///< measured
  double predicted_split_us = 0, predicted_unsplit_us = 0;
  Drift drift;                  ///< how much slower the machine was than predicted for
  std::vector<ErrorRow> kinds;  ///< "A1", "A1 un-split", ...: medians
  std::vector<ErrorRow> windows;
  int order_findings = 0;
  std::vector<std::string> named;  ///< named failures found, "F3 ..."
  std::string largest_cause;       ///< of the step's error
  double tracing_us = 0;
  double split_mhz = 0, unsplit_mhz = 0;  ///< SM clock of the measured steps, waiting included; median; 0: not known
  double predicted_mhz = 0;               ///< that computation was priced at; 0: whatever it was at calibration
  double recomputed_us = 0;  ///< the split step with each op as long as alone at calibration: what overlap costs
  /// The split step by the plan with each op as long as it was measured there: what is left is no op's duration, but
  /// gaps, waits and order. 0: not worked out.
  double structure_us = 0;

  double predicted_gain() const { return predicted_unsplit_us / predicted_split_us; }
  double measured_gain() const { return unsplit.median_us / split.median_us; }
  /// Predicted over measured, minus 1; `normalised`: without the drift.
  double step_error(bool normalised) const;
  double unsplit_error(bool normalised) const;
  double gain_error() const { return predicted_gain() / measured_gain() - 1; }
  /// Of the gain, from the quartiles of both steps.
  double gain_spread() const { return split.relative_spread() + unsplit.relative_spread(); }
  friend bool operator==(const WayOutcome&, const WayOutcome&) = default;
};

struct Outcome {
  std::string name;
  std::string key;   ///< of config and profile; see outcome_key
  std::string what;  ///< "DeepSeek-V3, decode 256, EP64, lsa-ll"
  std::string device;
  std::string versions;  ///< of this program, driver, CUDA and NCCL
  int gpus = 1;
  bool emulated = false;
  std::vector<std::string> notes;
  std::optional<Anchor> anchor_before, anchor_after, anchor_calibrated;
  NumericsResult numerics;
  std::vector<WayOutcome> ways;
  std::string injected;  ///< "F5: MLP ... does not wait for ...": a fault planted on purpose; empty: none
  double seconds = 0;

  /// Whether the planted fault was named by what was found.
  bool caught() const;

  /// What is outside its tolerance; empty: it passed.
  std::vector<std::string> failures() const;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Tolerances of one validation: loose enough for a single run of a machine whose clock moves by itself, tight enough
/// that a wrong schedule, a lost overlap or a wrong cost shows.
inline constexpr double kStepTolerance = 0.10;
inline constexpr double kGainTolerance = 0.08;
/// Below this predicted difference from 1 the sign of a gain is not asked for.
inline constexpr double kSignMargin = 0.04;

/// Compares one way: durations by kind, windows, order, step. `drift` as in WayOutcome.
struct WayComparison {
  WayOutcome outcome;
  Comparison split;  ///< of the traces, for the report
};
WayComparison compare_way(const PredictedWay& predicted, const MeasuredWay& measured, const Drift& drift);

/// The plan's step, us, were its ops, by plan_op of the first rank, as long as `op_us` says; 0 when that is not for
/// this plan.
double step_of_durations(const PredictedPlan& predicted, const std::vector<double>& op_us);

/// How much slower compute- and memory-bound work is now than at calibration, in the proportion the plan has of them.
/// `noise`: by how much of itself each anchor moved during the calibration; a change within that says nothing.
double drift_of(const PredictedPlan& plan, const GpuSpec& gpu, const std::optional<Anchor>& calibrated,
                const std::optional<Anchor>& now, const Anchor& noise = {});

/// The SM clock that computation of the measured steps of all plans ran at, mean over its time; 0: not known. The GPU
/// computes for `shares` of the steps' time (by way); the rest of it clocks at `idle_mhz`.
double computing_clock(const std::vector<MeasuredWay>& ways, const std::vector<ComputingShare>& shares,
                       double idle_mhz);

/// "predicted gain 1.31x, measured 1.28x, error +2.3 %, largest cause: MLP is 4 % slower than priced".
std::string outcome_line(const Outcome& outcome);
std::string outcome_text(const Outcome& outcome);
Json outcome_to_json(const Outcome& outcome);
Outcome outcome_from_json(const JsonRef& ref);

}  // namespace dbo::validate
