// One config to validate: what is predicted of its step, split and un-split, and what a replay of it has to emulate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/batch/decide.h"
#include "sim/config/config.h"
#include "sim/cost/profile.h"
#include "sim/engine/simulate.h"
#include "sim/plan/linearise.h"

namespace dbo::validate {

/// A plan with its prediction for one way of running it.
struct PredictedPlan {
  Plan plan;
  CostTable costs;
  StepResult result;          ///< with the trace of every rank that is replayed
  std::int64_t alone_ns = 0;  ///< the step if no op slowed another down
  std::vector<Ns> wires;  ///< by plan_op of the first rank: what receives and comm kernels hold for; empty: real wires
};

struct PredictedWay {
  bool graph = false;
  PredictedPlan split, unsplit;

  std::string name() const { return graph ? "graph" : "eager"; }
  /// Un-split over split.
  double gain() const {
    return static_cast<double>(unsplit.result.step_ns) / static_cast<double>(split.result.step_ns);
  }
};

struct ValidationCase {
  std::string name;
  Config config;  ///< with the transport and precisions the kernels run
  Decision decision;
  int gpus = 1;           ///< that replay it
  bool emulated = false;  ///< more ranks than GPUs: the first rank is replayed, peers are played, wires are emulated
  std::vector<PredictedWay> ways;
  std::vector<std::string> notes;        ///< what was emulated or changed, for people
  std::vector<std::string> assumptions;  ///< of the prediction

  int ranks_replayed() const { return emulated ? 1 : gpus; }
};

struct CaseOptions {
  int gpus = 1;  ///< here
  bool eager = true, graph = true;
  std::string name;  ///< empty: the config's file
  /// SM clock at which computation is priced, where it was measured; 0: what the steps of all plans, in turn, come to.
  double sm_mhz = 0;
};

/// Decides, plans and predicts with the profile at `profile_path`; empty: with the cost model alone. Throws InputError
/// for configs that cannot be replayed (why): tensor parallelism, stragglers, a sequence of steps, ranks to emulate
/// where the config forbids it, a model or GPU other than the profile's.
ValidationCase make_case(Config config, const std::string& profile_path, const CaseOptions& options);

/// The costs without what ops cost each other.
CostTable solo_costs(const PredictedPlan& predicted);

/// Durations of a launch: of `plan_op` on the plan's first rank.
const OpCost& cost_of(const PredictedPlan& predicted, const Linear& linear, std::uint32_t plan_op);

}  // namespace dbo::validate
