// What a run of the contended executor starts from.
#include "sim/base/error.h"
#include "sim/engine/contended.h"
#include "sim/engine/contended_run.h"

namespace dbo {

ContendedRun::ContendedRun(const Plan& plan, const CostTable& costs, const EngineOptions& options)
    : plan_(plan), costs_(costs), options_(options), machine_(costs.machine), network_(costs.flows.ports) {
  result_.contended = true;
  result_.folding = fold_ranks(plan, costs);
  result_.linear = Linears(plan, result_.folding);
  TapeMaker maker(plan, costs, result_.folding);
  tags_per_layer_ = maker.tags_per_layer();
  std::uint32_t tags = 0;
  for (std::size_t p = 0; p < result_.linear.programs(); ++p) {
    tapes_.push_back(maker.make(p, result_.linear.of_program(p)));
    programs_.push_back(make_lanes(plan, costs, result_.folding, p, result_.linear.of_program(p), tapes_.back()));
    tags = std::max(tags, tapes_[p].tags);
    most_values_ = std::max<std::size_t>(most_values_, tapes_[p].values);
    most_points_ = std::max(most_points_, programs_[p].points.size() + 1);
    host_waits_ = host_waits_ || tapes_[p].host_waits;
  }
  calls_.resize(tags);
  mark_of_tag_.assign(tags, -1);
  looking_ = (options.extrapolate || options.stop_at_repeat) && !options.audit && !options.audit_ports;
  node_gap_ = costs.host.node_gap_in(plan.execution).count();
  if (plan.execution == Execution::Graph) graph_launch_ = costs.host.graph_launch.count();
  lanes_ = plan.lanes.size();
  stride_ = lanes_ + 1;
  DBO_CHECK(stride_ <= 64, "at most 63 lanes");
  runners_.resize(stride_);
  running_.resize(stride_);
  const std::size_t groups = result_.folding.groups.size();
  result_.step_ns.assign(groups, 0);
  ranks_.resize(groups);
  actors_.resize(groups * stride_);
  values_.assign(groups * most_values_, -1);
  hosts_.assign(groups * most_points_, graph_launch_);
  for (std::size_t p = 0; p < programs_.size(); ++p) {
    const auto [begin, end] = result_.folding.of_program[p];
    for (int g = begin; g < end; ++g) {
      Rank& rank = ranks_[static_cast<std::size_t>(g)];
      rank.program = static_cast<std::uint32_t>(p);
      rank.place = static_cast<std::uint32_t>(g - begin);
      rank.free_sms = machine_.sms;
    }
    // The first call of each iteration, whose start or send tells where all ranks stand.
    if (p > 0) continue;
    for (std::size_t m = 0; m + 1 < tapes_[p].marks.size(); ++m)
      for (std::uint32_t s = tapes_[p].marks[m].step; s < tapes_[p].marks[m + 1].step; ++s) {
        const TapeStep& step = tapes_[p].steps[s];
        if (step.kind != TapeStep::Kind::Send && step.kind != TapeStep::Kind::Collective) continue;
        mark_of_tag_[step.tag] = static_cast<int>(m);
        break;
      }
  }
  for (std::size_t r = 0; r < options.record.size(); ++r) {
    Rank& rank = ranks_[static_cast<std::size_t>(options.record[r])];
    rank.record = static_cast<int>(r);
    result_.times.emplace_back(result_.linear.of_program(rank.program).ops.size());
  }
  lost_.resize(options.record.size() * stride_);
  if (costs.flows.on()) set_up_flows(costs);
}

EngineResult run_contended(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  return ContendedRun(plan, costs, options).run();
}

}  // namespace dbo
