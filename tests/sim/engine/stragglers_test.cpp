// Ranks that are slower than the others.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/schedule_names.h"
#include "sim/cost/fixed.h"
#include "sim/engine/simulate.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;

namespace {

Plan plan_of(const std::string& schedule, int layers, Transport transport, int ranks) {
  ScheduleSpec spec = fakes::small_spec(layers, schedule == kSequentialSchedule ? 1 : 2, transport);
  spec.world = {ranks, ranks};
  spec.shape.moe.routed_experts = ranks;
  spec.classes = {{{{0, ranks}}, 0}};
  return make_plan(schedule, spec);
}

struct Recorded {
  Plan plan;
  CostTable costs;
  EngineResult run;
  std::vector<int> groups;

  std::int64_t idle(int rank, LaneId lane, BubbleCause cause) const {
    for (const Bubble& b : of(rank))
      if (b.lane == lane && b.cause == cause) return b.ns;
    return 0;
  }
  int waits_for(int rank, LaneId lane) const {
    for (const Bubble& b : of(rank))
      if (b.lane == lane && b.cause == BubbleCause::Peer) return b.rank;
    return -1;
  }
  std::vector<Bubble> of(int rank) const {
    return find_bubbles(plan, costs, run, groups, run.folding.group_of_rank[static_cast<std::size_t>(rank)]);
  }
};

Recorded run(Plan plan, const std::vector<Straggler>& stragglers, bool flows = false) {
  CostTable costs = fixed_costs(plan, fakes::stated_costs(), {1, stragglers, flows});
  EngineOptions options;
  for (int g = 0; g < costs.groups(); ++g) options.record.push_back(g);
  EngineResult result = run_engine(plan, costs, options);
  return {std::move(plan), std::move(costs), std::move(result), options.record};
}

std::int64_t step(const Plan& plan, const std::vector<Straggler>& stragglers, bool flows = false) {
  return run_engine(plan, fixed_costs(plan, fakes::stated_costs(), {1, stragglers, flows})).step();
}

}  // namespace

TEST_CASE("stragglers: the others wait for a rank that computes slowly, and say for which") {
  // rank 0  A[0,100) waits D M[210,290) S[290,310) waits C, there at 400
  // rank 1  A[0,150) D sent 150, there 210, M[210,330) C sent 330, S[330,360)
  const Recorded r = run(plan_of("sequential", 1, Transport::Ll, 2), {{{1}, 1.5, 1}});
  CHECK(r.run.step() == 400000);
  CHECK(r.idle(0, kComputeLane, BubbleCause::Peer) == 50000 + 20000);
  CHECK(r.idle(0, kComputeLane, BubbleCause::Wire) == 60000 + 70000);
  CHECK(r.waits_for(0, kComputeLane) == 1);
  CHECK(r.idle(1, kComputeLane, BubbleCause::Peer) == 0);
  CHECK(r.idle(1, kComputeLane, BubbleCause::Wire) == 60000 + 40000);
  // With flows rank 0's data moves while rank 1 computes, so that rank 1 waits less and is done sooner:
  // rank 0  A[0,100) waits D M[210,290) S[290,310) waits C, sent by rank 1 at 280, there at 350
  // rank 1  A[0,150) D there 160, M[160,280) S[280,310) waits C, sent by rank 0 at 290, there at 360
  const Recorded f = run(plan_of("sequential", 1, Transport::Ll, 2), {{{1}, 1.5, 1}}, true);
  CHECK(f.run.step() == 360000);
  CHECK(f.idle(0, kComputeLane, BubbleCause::Peer) == 50000);
  CHECK(f.idle(0, kComputeLane, BubbleCause::Wire) == 60000 + 40000);
  CHECK(f.idle(0, kComputeLane, BubbleCause::Drain) == 10000);
  CHECK(f.idle(1, kComputeLane, BubbleCause::Wire) == 10000 + 50000);
}

TEST_CASE("stragglers: a slow port holds up all its peers, for twice the wire their own takes") {
  // A[0,100) D wire to 220, own done 160; M[220,300) S[300,320) C wire to 440, own done 370.
  for (const bool flows : {false, true}) {
    CAPTURE(flows);
    const Recorded r = run(plan_of("sequential", 1, Transport::Ll, 3), {{{1}, 1, 2}}, flows);
    CHECK(r.run.step() == 440000);
    CHECK(r.idle(0, kComputeLane, BubbleCause::Wire) == 60000 + 50000);
    CHECK(r.idle(0, kComputeLane, BubbleCause::Peer) == 60000 + 70000);
    CHECK(r.waits_for(0, kComputeLane) == 1);
    CHECK(r.idle(1, kComputeLane, BubbleCause::Wire) == 120000 + 120000);
    CHECK(r.idle(1, kComputeLane, BubbleCause::Peer) == 0);
  }
  // A comm kernel lasts until the slow port's data is there.
  const Recorded r = run(plan_of("sequential", 1, Transport::LsaHt, 3), {{{1}, 1, 2}});
  CHECK(r.run.step() == 440000);
  CHECK(r.idle(0, kCommLane, BubbleCause::Peer) == 60000 + 70000);
  CHECK(r.waits_for(0, kCommLane) == 1);
  CHECK(r.idle(1, kCommLane, BubbleCause::Peer) == 0);
}

TEST_CASE("stragglers: idle time by cause still adds up to the step minus the busy time") {
  for (const ScheduleName& schedule : schedule_names())
    for (const bool flows : {false, true}) {
      CAPTURE(schedule.name);
      const Recorded r = run(plan_of(std::string(schedule.name), 4, schedule.default_transport, 4),
                             {{{1}, 1.3, 1}, {{3}, 1, 1.7}}, flows);
      for (std::size_t g = 0; g < r.groups.size(); ++g) {
        std::vector<std::int64_t> sum(r.plan.lanes.size(), 0), used(r.plan.lanes.size(), 0);
        for (const Bubble& b : find_bubbles(r.plan, r.costs, r.run, r.groups, static_cast<int>(g))) sum[b.lane] += b.ns;
        for (std::size_t i = 0; i < r.run.times[g].size(); ++i) {
          const OpTimes& t = r.run.times[g][i];
          const LinearOp& op = r.run.linear[0].ops[i];
          const OpKind kind = r.plan.ops[op.op].kind;
          std::int64_t waited = is_recv(kind) ? std::max<std::int64_t>(0, t.arrived - t.start) : 0;
          if (is_collective(kind)) {
            const OpCost& cost = r.costs.at(r.run.folding.groups[g].cost_group, 0, op.ubatch, op.op);
            waited = t.sent - t.start + t.end - t.moved + cost.for_peers.count();
          }
          sum[op.lane] += t.end - t.start - waited;
          used[op.lane] = 1;
        }
        for (std::size_t lane = 0; lane < sum.size(); ++lane)
          if (used[lane]) CHECK(sum[lane] == r.run.step());
      }
    }
}

TEST_CASE("stragglers: factors of 1 change nothing, and a slower straggler never shortens a step") {
  for (const ScheduleName& schedule : schedule_names()) {
    CAPTURE(schedule.name);
    const Plan plan = plan_of(std::string(schedule.name), 4, schedule.default_transport, 4);
    const std::int64_t even = step(plan, {});
    CHECK(step(plan, {{{2}, 1, 1}}) == even);
    for (const bool wire : {false, true}) {
      std::int64_t before = even;
      for (const double factor : {1.01, 1.2, 1.5, 2.0, 5.0}) {
        const std::int64_t now = step(plan, {{{2}, wire ? 1 : factor, wire ? factor : 1}});
        CHECK(now >= before);
        before = now;
      }
      CHECK(before > even);
    }
  }
}

TEST_CASE("stragglers: ranks of one pace are simulated once, with the times they have apart") {
  const Plan plan = plan_of("vllm-ll", 3, Transport::Ll, 64);
  const std::vector<Straggler> slow = {{{5, 40}, 1.25, 1}, {{9}, 1, 1.5}};
  const CostTable folded = fixed_costs(plan, fakes::stated_costs(), {1, slow});
  CHECK(folded.groups() == 3);
  std::vector<int> apart(64);
  for (int r = 0; r < 64; ++r) apart[static_cast<std::size_t>(r)] = r;
  CostTable costs(plan, apart, std::vector<int>(3, 0));
  costs.host = folded.host;
  costs.host_blocks = folded.host_blocks;
  for (int r = 0; r < 64; ++r)
    for (int u = 0; u < 2; ++u)
      for (OpId op = 0; op < plan.ops.size(); ++op)
        costs.at(r, 0, u, op) = folded.at(folded.group_of_rank()[static_cast<std::size_t>(r)], 0, u, op);
  const EngineResult once = run_engine(plan, folded), each = run_engine(plan, costs);
  CHECK(once.folding.groups.size() == 3);
  for (std::size_t r = 0; r < 64; ++r)
    CHECK(once.step_ns[static_cast<std::size_t>(once.folding.group_of_rank[r])] == each.step_ns[r]);
}
