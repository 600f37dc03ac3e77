#include "sim/cost/cost_table.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

int count_of(const std::vector<int>& classes, std::string_view what) {
  DBO_CHECK(!classes.empty(), what);
  DBO_CHECK(*std::min_element(classes.begin(), classes.end()) >= 0, what);
  return *std::max_element(classes.begin(), classes.end()) + 1;
}

int highest_ubatch(const Program& program) {
  int highest = 0;
  for (const Instruction& step : program) {
    highest = std::max<int>(highest, step.op.ubatch);
    for (const OpRef& ref : step.hook) highest = std::max<int>(highest, ref.ubatch);
  }
  return highest;
}

/// The smallest step after which the values from `first` on repeat.
std::int32_t repeat_of(const std::vector<int>& values, std::int32_t first) {
  const auto size = static_cast<std::int32_t>(values.size());
  for (std::int32_t step = 1; step < size - first; ++step) {
    bool same = true;
    for (std::int32_t i = first; same && i + step < size; ++i)
      same = values[static_cast<std::size_t>(i)] == values[static_cast<std::size_t>(i + step)];
    if (same) return step;
  }
  return std::max<std::int32_t>(1, size - first);
}

}  // namespace

int plan_ubatches(const Plan& plan) {
  int count = 1;
  for (const Load& load : plan.loads) count = std::max(count, static_cast<int>(load.ubatches.size()));
  for (const Thread& thread : plan.threads)
    count = std::max({count, thread.ubatch + 1, highest_ubatch(thread.body) + 1});
  for (const Block& block : plan.blocks) count = std::max(count, highest_ubatch(block.body) + 1);
  return count;
}

CostTable::CostTable(const Plan& plan, std::vector<int> group_of_rank, std::vector<int> class_of_layer)
    : group_of_rank_(std::move(group_of_rank)),
      class_of_layer_(std::move(class_of_layer)),
      groups_(count_of(group_of_rank_, "a cost table needs a group for every rank")),
      layer_classes_(count_of(class_of_layer_, "a cost table needs a class for every layer")),
      ubatches_(plan_ubatches(plan)),
      ops_(plan.ops.size()) {
  DBO_CHECK(static_cast<int>(group_of_rank_.size()) == plan.world.ranks, "one group a rank");
  const auto layers = static_cast<std::int32_t>(class_of_layer_.size());
  leading_ = std::min(plan.shape.dense_layers, layers - 1);
  repeat_layers_ = repeat_of(class_of_layer_, leading_);
  costs_.resize(static_cast<std::size_t>(groups_) * static_cast<std::size_t>(layer_classes_) *
                static_cast<std::size_t>(ubatches_) * ops_);
}

void check_flow_ranks(const Plan& plan) {
  constexpr int kMostRanksInPairs = 256;
  if (plan.world.ranks > kMostRanksInPairs)
    throw InputError("pairwise flows are for at most " + std::to_string(kMostRanksInPairs) +
                     " ranks that differ, not " + std::to_string(plan.world.ranks) + ": use \"network\": \"ports\"");
}

CostTable uniform_table(const Plan& plan) {
  const auto ranks = static_cast<std::size_t>(plan.world.ranks);
  const auto layers = static_cast<std::size_t>(std::max(plan.shape.layers, 1));
  return CostTable(plan, std::vector<int>(ranks, 0), std::vector<int>(layers, 0));
}

}  // namespace dbo
