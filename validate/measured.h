// What a replay brought back, as plain data that is kept in files: predictions are judged against it, the run's own and
// later ones.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json_reader.h"
#include "traces/trace.h"
#include "validate/calibration_result.h"
#include "validate/case.h"

namespace dbo::validate {

/// One plan as replayed one way.
struct MeasuredPlan {
  std::vector<double> steps_us;  ///< by iteration: the slowest rank's, without any tracing
  std::vector<double> host_us;   ///< host time of the same steps, first rank
  std::vector<double> op_us;     ///< by plan_op of the first rank: median over traced steps, 0 where it did not run
  /// By plan_op of the first rank: how long after its lane was free for it a comm kernel's first block ran, median over
  /// traced steps; negative: unknown.
  std::vector<double> entry_us;
  Trace trace;            ///< of the traced step nearest to the median; no op: not kept
  double tracing_us = 0;  ///< what tracing adds to a step
  /// Mean SM clock of each step of `steps_us`, on the GPU where it was lowest.
  std::vector<double> clocks_mhz;
  /// The same of the traced steps, on the first rank's GPU: they run in a row, with events between their ops, and so at
  /// another clock than the steps that take turns.
  std::vector<double> traced_mhz;
};

struct MeasuredWay {
  bool graph = false;
  MeasuredPlan split, unsplit;
};

/// Whether results are what they have to be.
struct NumericsResult {
  bool same_bits = true;              ///< eager, graph and repeats of one plan
  double split_error = 0;             ///< largest relative difference of a token's logits, split against un-split
  double split_bound = 0;             ///< what is allowed
  int tokens = 0;                     ///< compared
  int audited = 0;                    ///< ops that were run one by one, with memory looked at between them
  std::vector<std::string> problems;  ///< what was wrong, by name

  bool ok() const { return problems.empty(); }
  friend bool operator==(const NumericsResult&, const NumericsResult&) = default;
};

/// A case as replayed; whole on the first rank.
struct MeasuredCase {
  std::vector<MeasuredWay> ways;  ///< as the case's
  NumericsResult numerics;
  Anchor before, after;
  std::string injected;          ///< a fault planted on purpose, for people
  std::vector<std::string> how;  ///< for people: memory, clocks
  std::string device, versions;  ///< it ran on, and of this program, driver, CUDA and NCCL
  double highest_mhz = 0;        ///< that the GPU's SMs can be clocked at
  bool whole = true;             ///< false: of an earlier run, of which steps and some traces are left
};

/// Everything of a replay but its traces, which lie beside it, and what its outcome says too (numerics, anchors, what
/// was planted). With the plans and emulated wires that it was a replay of.
Json measured_to_json(const ValidationCase& validated, const MeasuredCase& measured);

/// The same back, for the case it was a replay of. Throws InputError when it was one of other plans, or of other wires
/// where those are emulated.
MeasuredCase measured_from_json(const JsonRef& ref, const ValidationCase& validated);

}  // namespace dbo::validate
