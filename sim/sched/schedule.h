// Schedules: named rules that make a plan's programs, and the same from notation.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo {

/// Everything a plan holds besides its programs.
struct ScheduleSpec {
  ModelShape shape;
  World world;
  Execution execution = Execution::Eager;
  Transport transport = Transport::Ll;
  int tensor_parallel = 1;
  SmBudget sm;
  Routing routing;
  int ubatches = 2;
  std::vector<Load> loads;
  /// Ranks by load: half-open ranges and the index of their load.
  std::vector<std::pair<std::vector<std::pair<int, int>>, int>> classes;
  /// Whether the step begins with an embedding and ends with norm and logits (fixed costs have neither).
  bool embed_and_head = true;
};

/// The plan of a schedule of sim/base/schedule_names.h. `spec.ubatches` must be within what the schedule allows; the
/// sequential one always makes one batch of it. Throws InternalError for an unknown name: names are checked where they
/// are read.
Plan make_plan(std::string_view schedule, const ScheduleSpec& spec);

/// The un-split server that a split step is compared with: the same ops once per layer, overlapping what one batch can.
/// `spec` holds the un-split loads; `combine_copy` whether the split schedule copies the combined tokens.
Plan make_baseline(const ScheduleSpec& spec, bool low_latency, bool combine_copy);

/// Whether plans of this schedule have the op C.copy.
bool has_combine_copy(const Plan& plan);

}  // namespace dbo
