// `dbo compare`: a predicted trace against a measured one. Order and dependencies first, then how much of every
// intended overlap was achieved, then durations, then the step; equal times are never asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/plan/plan.h"
#include "traces/check_order.h"
#include "traces/clock_align.h"
#include "traces/trace.h"

namespace dbo {

struct CompareOptions {
  bool any_plan = false;  ///< compare traces of different plans all the same
  /// How far a start may lie before the end it waits for: timestamps of a GPU's own clock are this coarse.
  Ns lane_slack{1000};
  /// The measured trace has events between its ops, which stretch its gaps: windows of wires are told by what receives
  /// waited.
  bool stretched_gaps = false;
  Ns tracing{};                    ///< what those events add to the step
  double step_tolerance = 0.10;    ///< |measured / predicted - 1|
  double kind_tolerance = 0.25;    ///< the same of the median of each kind of op
  double window_tolerance = 0.15;  ///< how much smaller the hidden share of a window may be than predicted
  double small_share = 0.01;       ///< kinds and windows below this share of the step are not judged
};

/// Where the measured order of a lane leaves the planned one.
struct Divergence {
  std::int32_t rank = 0;
  std::string lane;
  std::size_t position = 0;  ///< ops of the lane before it
  std::string before;        ///< last op in common, empty at the beginning
  std::string planned, measured;
};

struct WindowRow {
  std::string name;
  int planned = 0;   ///< occurrences in the plan, over the ranks compared
  int measured = 0;  ///< of them seen in the measured trace
  Ns predicted_hidden{}, predicted_exposed{}, hidden{}, exposed{};

  std::optional<double> predicted_share() const;  ///< hidden share of the transfer time, 0 to 1
  std::optional<double> share() const;
};

/// Ops of one kind, apart by whether half of them or more ran beside communication (or computation, for transfers).
struct KindRow {
  OpKind kind = OpKind::Other;
  bool overlapped = false;
  int count = 0;
  Ns predicted{}, measured{};              ///< medians
  double error = 0;                        ///< median of measured / predicted - 1
  double worst = 0;                        ///< the error of largest size
  std::string worst_op;                    ///< "A1 of ubatch 0, layer 3, rank 1"
  Ns predicted_total{}, measured_total{};  ///< over the ranks compared
};

/// What the step's error is made of, on the compute lane of the slowest measured rank.
struct StepPart {
  std::string what;
  Ns predicted{}, measured{};
  std::string assumption;  ///< what in the prediction is responsible
};

/// A named failure (F1 to F20 of the project's list), with its evidence.
struct NamedFinding {
  std::string code, title;
  std::vector<std::string> evidence;
};

struct Criterion {
  std::string what;
  bool ok = true;
  std::string value, allowed;
};

struct Comparison {
  std::string predicted_file, measured_file;
  std::string plan_hash;
  bool same_plan = true;            ///< both traces carry the plan's hash
  bool by_plan = false;             ///< the plan was at hand: order, windows and named findings are judged by it
  bool foreign = false;             ///< the measured trace is a profiler's, joined by kind, layer and ubatch
  std::vector<std::int32_t> ranks;  ///< measured ones
  int joined = 0, only_predicted = 0, only_measured = 0;  ///< ops
  std::vector<RankClock> clocks;
  std::vector<OrderFinding> order;
  std::optional<Divergence> divergence;
  std::vector<WindowRow> windows;
  std::vector<KindRow> kinds;
  Ns predicted_step{}, measured_step{}, predicted_exposed{}, measured_exposed{};
  std::optional<Ns> baseline_step;  ///< un-split, measured if there is one, else predicted
  bool baseline_measured = false;
  std::vector<StepPart> parts;
  std::vector<NamedFinding> findings;
  std::vector<Criterion> criteria;

  double step_error() const;
  bool pass() const;
};

/// What compare works on; loaded by load_compare_input or put together by a caller that has it all in memory.
struct CompareInput {
  Trace predicted, measured;
  std::string predicted_file, measured_file;
  bool foreign = false;
  std::optional<Plan> plan;
  std::optional<Trace> baseline;  ///< un-split
  bool baseline_measured = false;
};

struct CompareFiles {
  std::string predicted, measured;
  std::string plan;                ///< empty: plan.json beside the predicted trace, if it is the trace's plan
  std::string predicted_baseline;  ///< empty: baseline.trace.json beside the predicted trace, if there is one
  std::string measured_baseline;
  std::vector<std::string> rules;
};

/// Reads the traces (the measured one may be a profiler's) and the plan. Throws InputError when the predicted trace is
/// not one of ours, or a plan given by name is another one's.
CompareInput load_compare_input(const CompareFiles& files);

/// Throws InputError when the traces are of different plans and `any_plan` is not set.
Comparison compare_traces(const CompareInput& input, const CompareOptions& options = {});

/// Named failures that the two traces and the plan show.
std::vector<NamedFinding> named_findings(const CompareInput& input, const Trace& aligned, const Comparison& comparison,
                                         const CompareOptions& options);

std::string comparison_text(const Comparison& comparison);
Json comparison_json(const Comparison& comparison);

/// The predicted rank that stands for a measured one: itself, or one of its class, or the first.
std::int32_t predicted_rank_for(const CompareInput& input, std::int32_t rank);

}  // namespace dbo
