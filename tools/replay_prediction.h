// What the engine says of a replayed step, and the two side by side, op by op.
#pragma once

#include <vector>

#include "runtime/measured_trace.h"
#include "sim/cost/cost_table.h"
#include "sim/engine/engine.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo {

/// One op of a rank's step in ns from the step's first begin: medians over the measured steps.
struct MeasuredOp {
  bool ran = false;
  std::int64_t begin = 0, ready = 0, end = 0;
};

/// Collects the ops of one rank, step after step.
class OpMedians {
 public:
  explicit OpMedians(std::size_t ops) : begin_(ops), ready_(ops), end_(ops), length_(ops) {}
  void add(const runtime::RankTimes& times);
  std::vector<MeasuredOp> medians() const;
  /// Of each op, in every step: from its begin (or, where it waits, what it waited for) to its end.
  const std::vector<std::vector<Ns>>& lengths() const { return length_; }

 private:
  std::vector<std::vector<Ns>> begin_, ready_, end_, length_;
};

struct PredictedStep {
  Ns step{};
  std::vector<OpTimes> ops;  ///< by plan_op of the rank asked for
};

/// The step of stand-ins with these durations and the gaps and launch cost of this run. Ops given less than what a
/// stand-in needs for its own work last what they were measured to.
PredictedStep predict_step(const Plan& plan, CostTable costs, int rank, bool graph, const runtime::LaneGaps& gaps,
                           Ns launch, const Linear& linear, const std::vector<std::vector<Ns>>& lengths);

/// A middle MoE layer, every op predicted and measured: where each microsecond between the two comes from.
void print_layer(const Plan& plan, const Linear& linear, const PredictedStep& predicted,
                 const std::vector<MeasuredOp>& measured);

}  // namespace dbo
