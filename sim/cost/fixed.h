// Costs that somebody states: by kind of op, or op by op.
#pragma once

#include <string>
#include <vector>

#include "sim/base/fixed_costs.h"
#include "sim/base/settings.h"
#include "sim/cost/cost_table.h"

namespace dbo {

/// What stated durations leave open.
struct FixedSettings {
  int ubatches_in_one = 1;  ///< 1 for a split plan, the number of ubatches for the un-split baseline
  std::vector<Straggler> stragglers = {};
  bool flows = false;  ///< a wire is made of equal flows to all other ranks, which share ports fairly
};

/// The table of stated durations, each times `ubatches_in_one`: the baseline's one batch does the work of all. A comm
/// kernel lasts send + wire + recv. No op blocks the host; records, waits, yields and graph gaps cost nothing; ops of
/// other kinds (EMB, HEAD) cost nothing. Every rank exchanges data with all others, so a wire takes as long as the
/// slowest straggler's; with flows, where data moves from when its sender comes to it, that shows in the engine.
CostTable fixed_costs(const Plan& plan, const FixedCosts& costs, const FixedSettings& settings = {});

/// Costs of a plan from a file:
///   {"source": "fixed", ...} as in a config, or
///   {"source": "ops", "ops": {NAME: us or {"time_us", "wire_us", "peers_us", "notify_us"}, ...}, "launches_us": [...],
///   "host":
///    {...}}
/// where NAME is an op of the plan, `launches_us` gives each launch's own time by plan_op (null: the op's), and `host`
/// has the keys of a config's execution.host. Throws InputError at the place: unknown op, negative time.
CostTable costs_from_file(const Plan& plan, const std::string& path);

}  // namespace dbo
