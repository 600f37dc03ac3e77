#include "sim/engine/simulate.h"

#include <algorithm>

#include "sim/engine/predicted_trace.h"
#include "traces/overlap.h"

namespace dbo {
namespace {

std::vector<int> groups_to_trace(const EngineResult& run, const StepOptions& options, int slowest) {
  std::vector<int> groups;
  const auto add = [&](int group) {
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  };
  for (const int rank : options.trace_ranks) add(run.folding.group_of_rank[static_cast<std::size_t>(rank)]);
  if (options.trace_ranks.empty() && options.trace)
    for (int g = 0; g < static_cast<int>(run.folding.groups.size()) && g < kTracedGroups; ++g) add(g);
  if (groups.empty() || options.details) add(slowest);
  if (options.waiting_rank >= 0) add(run.folding.group_of_rank[static_cast<std::size_t>(options.waiting_rank)]);
  return groups;
}

void add_details(const CostedPlan& costed, const EngineResult& run, const std::vector<int>& recorded, int group,
                 const Trace& trace, StepResult& out) {
  const FoldGroup& fold = run.folding.groups[static_cast<std::size_t>(group)];
  out.exposed_comm_ns = exposed_communication(trace, fold.first_rank).count();
  const Linear& linear = run.linear[static_cast<std::size_t>(fold.class_index)];
  out.windows = window_shares(planned_windows(costed.plan, linear), trace, fold.first_rank);
  out.bubbles = find_bubbles(costed.plan, costed.costs, run, recorded, group);
  out.lane_busy_ns = busy_lanes(costed.plan, linear, out.bubbles, out.step_ns);
  out.losses = find_losses(costed.plan, costed.costs, run, recorded, group);
  out.period = steady_period_time(costed.plan, costed.costs);
  out.bound = period_bound(costed.plan, costed.costs);
  // The bound holds for layers without end. A mean spans some of them, between two instants at which the lanes need not
  // be equally far: it is off by what they differ in, at most about a layer's time, over as many (16 with flows, 1024
  // otherwise). So it could lie below, though of some 1300 means of random plans none did.
  if (!out.period.exact) out.period.period_ns = std::max(out.period.period_ns, out.bound.bound_ns);
}

}  // namespace

StepResult simulate_plan(const CostedPlan& costed, const StepOptions& options) {
  StepResult out;
  EngineOptions engine;
  engine.extrapolate = options.extrapolate;
  EngineResult run = run_engine(costed.plan, costed.costs, engine);
  out.step_ns = run.step();
  const int slowest = run.slowest();
  out.slowest_rank = run.folding.groups[static_cast<std::size_t>(slowest)].first_rank;
  if (!options.details && !options.trace) return out;
  // The first run told which rank to look at; a second one keeps its times.
  engine.record = groups_to_trace(run, options, slowest);
  run = run_engine(costed.plan, costed.costs, engine);
  Trace trace = predicted_trace(costed.plan, costed.costs, run, engine.record);
  if (options.details) add_details(costed, run, engine.record, slowest, trace, out);
  if (options.details && options.waiting_rank >= 0)
    out.waiting = find_bubbles(costed.plan, costed.costs, run, engine.record,
                               run.folding.group_of_rank[static_cast<std::size_t>(options.waiting_rank)]);
  if (!options.trace) return out;
  const bool whole = options.trace_ranks.empty() && options.trace_layers.empty();
  out.trace =
      whole ? std::move(trace)
            : predicted_trace(costed.plan, costed.costs, run, engine.record, options.trace_ranks, options.trace_layers);
  return out;
}

}  // namespace dbo
