// From a config to a predicted step: decide, plan, cost, simulate, and the same without DBO.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/batch/decide.h"
#include "sim/config/config.h"
#include "sim/cost/memory.h"
#include "sim/cost/profile.h"
#include "sim/engine/simulate.h"
#include "sim/plan/plan_check.h"
#include "sim/plan/routing.h"
#include "sim/sched/schedule.h"
#include "sim/search/sm_split.h"

namespace dbo {

struct Prediction {
  Decision decision;
  CostedPlan split;     ///< what the decision runs, split or not
  CostedPlan baseline;  ///< the same server with DBO off
  StepResult result{}, baseline_result{};
  std::int64_t tokens = 0;  ///< real tokens of the step, all ranks
  int gpus = 1;
  std::optional<MemoryUse> memory{};  ///< absent when the model has no dimensions
  std::optional<SmSplit> sm_split{};  ///< analytical costs of a plan that sets SMs aside for comm kernels
  std::vector<std::string> assumptions{};
  int waiting_rank = -1;  ///< with stragglers: the first rank that is none, whose idle time `result.waiting` tells
  std::vector<PlanFinding> warnings{};  ///< of the plan that runs; what stops is thrown

  double speedup() const { return static_cast<double>(baseline_result.step_ns) / static_cast<double>(result.step_ns); }
  /// Tokens a second and GPU; 0 for a step of no time.
  double tokens_per_s_per_gpu(const StepResult& of) const;
};

/// What every plan of the decision holds besides its programs.
ScheduleSpec step_spec(const Config& config, const Decision& decision);

/// What costs of one config are made from, kept between steps. For one thread; `loads` are those of one cluster.
struct CostSources {
  std::optional<Profile> profile;
  RoutedLoads loads;
  /// Between two steps, without work: the GPU rests.
  Ns pause{};
  /// SM clock where other work has a part in it (steps of several plans in turn); 0: what the plan's own steps come to.
  double sm_mhz = 0;
};

/// How long the rank with most computation computes in a step, alone, in ns.
std::int64_t compute_ns(const Plan& plan, const CostTable& costs);

/// The profile of a config whose costs come from one: its file, or what ships for its GPU and model. Throws InputError
/// when nothing does.
Profile profile_of(const Config& config);
/// What of the config's profile is not used; nothing for other costs.
std::vector<std::string> profile_warnings(const Config& config);
/// What of the SMs that the config asks for its one transport does not use.
std::vector<std::string> sm_warnings(const OverlapConfig& overlap);

/// The costs of a plan of the config; `split`: its decision splits the step.
CostTable step_costs(const Config& config, const Plan& plan, bool split);
CostTable step_costs(const Config& config, const Plan& plan, bool split, CostSources& sources);

/// The same in two steps: costs that all plans of the same ops, loads and execution share, and the clock that one of
/// them leaves the GPU: the longer it waits, the faster it computes, and the longer it waits. Settling throws
/// InputError for a plan that takes more than can be simulated.
ClockedCosts open_costs(const Config& config, const Plan& plan, bool split, CostSources& sources);
void settle_costs(const Config& config, const Plan& plan, const CostSources& sources, ClockedCosts& costs);

/// The plan a decision runs. `baseline`: the decision was made without DBO.
Plan make_step_plan(const Config& config, const Decision& decision, bool baseline);

/// The same with its costs. `baseline`: the decision was made without DBO.
CostedPlan make_costed_plan(const Config& config, const Decision& decision, bool baseline);
CostedPlan make_costed_plan(const Config& config, const Decision& decision, bool baseline, CostSources& sources);

/// What the plan's step takes of the fullest GPU; nothing when the model has no dimensions.
std::optional<MemoryUse> step_memory(const Config& config, const Plan& plan);

/// One step of the config's workload. Throws InputError for notation that does not hold together and FindingError for a
/// plan with a deadlock or race.
Prediction predict(const Config& config, const StepBatch& step, const StepOptions& options = {});

}  // namespace dbo
