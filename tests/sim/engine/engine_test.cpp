#include "sim/engine/engine.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/cost/fixed.h"
#include "sim/engine/bubbles.h"
#include "sim/engine/period.h"
#include "sim/engine/predicted_trace.h"
#include "sim/plan/steady.h"
#include "tests/fakes/small_plans.h"
#include "tests/sim/engine/random_costs.h"
#include "traces/check_order.h"

using namespace dbo;
using fakes::small_spec;
using fakes::stated_costs;

namespace {

std::int64_t step_of(const Plan& plan, const FixedCosts& costs) {
  return run_engine(plan, fixed_costs(plan, costs)).step();
}

std::string first_finding(const Plan& plan, const Trace& trace) {
  const auto findings = check_order(plan, trace);
  return findings.empty() ? "none" : std::string(finding_name(findings[0].kind)) + ": " + findings[0].text;
}

Trace trace_of(const Plan& plan, const FixedCosts& costs) {
  const CostTable table = fixed_costs(plan, costs);
  EngineOptions options;
  options.record = {0};
  return predicted_trace(plan, table, run_engine(plan, table, options), options.record);
}

}  // namespace

TEST_CASE("engine: vLLM low latency, worked by hand") {
  // A0[0,100) A1[100,200) M0[200,280) S0[280,300) M1[300,380) S1[380,400) A0'[400,500) ... C1' sent 780, there 850.
  const FixedCosts costs = stated_costs();
  const Plan two = make_plan("vllm-ll", small_spec(2, 2, Transport::Ll));
  CHECK(step_of(two, costs) == 850000);
  CHECK(step_of(make_plan("vllm-ll", small_spec(1, 2, Transport::Ll)), costs) == 450000);
  const Period period = steady_period_time(two, fixed_costs(two, costs));
  CHECK(period.period_ns == 400000);
  CHECK((period.exact && period.layers == 1));
  // Un-split: 2A + 2D + 2M + max(2C, 2S) a layer.
  const Plan one = make_baseline(small_spec(2, 1, Transport::Ll), true, false);
  CHECK(run_engine(one, fixed_costs(one, costs, {2})).step() == 1240000);
}

TEST_CASE("engine: vLLM high throughput, worked by hand") {
  const FixedCosts costs = stated_costs();
  const Plan plan = make_plan("vllm-ht", small_spec(2, 2, Transport::Ht));
  CHECK(step_of(plan, costs) == 830000);
  CHECK(steady_period_time(plan, fixed_costs(plan, costs)).period_ns == 400000);
  const Plan one = make_baseline(small_spec(2, 1, Transport::Ht), false, true);
  CHECK(run_engine(one, fixed_costs(one, costs, {2})).step() == 1240000);
}

TEST_CASE("engine: an L-layer low-latency step follows the closed form at any durations") {
  // A0 + (L-1) T + max(A1,D0) + max(M0,D1) + max(S0+M1,C0) + max(S1,C1), T = max(A,D)+max(M,D)+max(S+M,C)+max(S+A,C).
  std::uint64_t draw = 0;
  for (int round = 0; round < 200; ++round) {
    const auto next = [&] { return static_cast<std::int64_t>(mix_below(11, draw++, 200001)); };
    FixedCosts c;
    c.a0 = Ns{next()};
    c.a1 = Ns{next()};
    c.mlp = Ns{next()};
    c.s = Ns{next()};
    c.dispatch.wire = Ns{next()};
    c.combine.wire = Ns{next()};
    const std::int64_t a = (c.a0 + c.a1).count(), m = c.mlp.count(), s = c.s.count(), d = c.dispatch.wire.count(),
                       x = c.combine.wire.count();
    const int layers = 1 + static_cast<int>(mix_below(12, draw++, 58));
    const std::int64_t period = std::max(a, d) + std::max(m, d) + std::max(s + m, x) + std::max(s + a, x);
    const std::int64_t step =
        a + (layers - 1) * period + std::max(a, d) + std::max(m, d) + std::max(s + m, x) + std::max(s, x);
    const Plan plan = make_plan("vllm-ll", small_spec(layers, 2, Transport::Ll));
    CHECK(step_of(plan, c) == step);
    CHECK(steady_period_time(plan, fixed_costs(plan, c)).period_ns == period);
  }
}

TEST_CASE("engine: five-stage decode has the published period at any durations") {
  // 2 [max(S + a, D) + M + max(b, C)], a and b the halves of attention.
  std::uint64_t draw = 0;
  for (int round = 0; round < 100; ++round) {
    const auto next = [&] { return Ns{static_cast<std::int64_t>(mix_below(21, draw++, 100001))}; };
    FixedCosts c;
    c.a0 = next();
    c.a1 = next();
    c.mlp = next();
    c.s = next();
    c.dispatch.wire = next();
    c.combine.wire = next();
    const Ns period = 2 * (std::max(c.s + c.a0, c.dispatch.wire) + c.mlp + std::max(c.a1, c.combine.wire));
    for (const char* name : {"sglang-decode", "deepseek-decode"}) {
      const Plan plan = make_plan(name, small_spec(4, 2, Transport::Ll));
      CHECK(steady_period_time(plan, fixed_costs(plan, c)).period_ns == period.count());
    }
  }
}

TEST_CASE("engine: added layers add one cycle per period_layers once steady") {
  std::uint64_t draw = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (int round = 0; round < 40; ++round) {
      const auto next = [&] { return Ns{static_cast<std::int64_t>(mix_below(31, draw++, 5001))}; };
      FixedCosts c;
      c.a0 = next();
      c.a1 = next();
      c.mlp = next();
      c.s = next();
      c.dispatch = {next(), next(), next(), Ns{0}};
      c.combine = {next(), next(), next(), next()};
      const Plan plan = fakes::small_plan(schedule, 4);
      const Period period = steady_period_time(plan, fixed_costs(plan, c));
      REQUIRE(period.exact);
      const int many = 60;
      const Plan longer = with_moe_iterations(plan, many), longest = with_moe_iterations(plan, many + period.layers);
      CHECK(step_of(longest, c) - step_of(longer, c) == period.cycle_ns);
    }
  }
}

TEST_CASE("engine: prologue, leading dense layers and epilogue are no part of the period") {
  // In the first iteration of this order only ubatch 0's attention has a layer; with dense layers before it all other
  // lanes look as idle after it as before.
  const Notation order = {"", "",
                          "D.send_0 S_0 A0_1 A1_1 D.recv_0 D.send_1 S_1 MLP_0 D.recv_1 C.send_0 MLP_1 C.recv_0 "
                          "C.send_1 A0_0' A1_0' C.recv_1"};
  FixedCosts c = stated_costs();
  c.ffn = Ns{700000};
  for (const int dense : {0, 1, 3}) {
    ScheduleSpec spec = small_spec(6 + dense, 2, Transport::Ll);
    spec.shape.dense_layers = dense;
    const Plan plan = make_plan(order, spec);
    // Windows: D0 | S0 A1, D1 | S1 M0, C0 | M1, C1 | A0'; all hidden but for nothing: 120 + 100 + 80 + 100.
    CHECK(steady_period_time(plan, fixed_costs(plan, c)).period_ns == 400000);
    for (const ScheduleName& schedule : schedule_names()) {
      ScheduleSpec other =
          small_spec(6 + dense, schedule.name == kSequentialSchedule ? 1 : 2, schedule.default_transport);
      other.shape.dense_layers = dense;
      const Plan with = make_plan(schedule.name, other), without = fakes::small_plan(schedule, 6);
      CHECK(steady_period_time(with, fixed_costs(with, c)).period_ns ==
            steady_period_time(without, fixed_costs(without, c)).period_ns);
    }
  }
}

TEST_CASE("engine: scaling all fixed costs scales all times") {
  FixedCosts c = stated_costs(), scaled = c;
  c.host = Ns{1700};
  for (Ns FixedCosts::*field : {&FixedCosts::a0, &FixedCosts::a1, &FixedCosts::mlp, &FixedCosts::s, &FixedCosts::ffn})
    scaled.*field = c.*field * 7;
  scaled.host = c.host * 7;
  scaled.dispatch.wire = c.dispatch.wire * 7;
  scaled.combine.wire = c.combine.wire * 7;
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 9);
    CHECK(step_of(plan, scaled) == 7 * step_of(plan, c));
  }
}

TEST_CASE("engine: a faster link never lengthens a fixed-order step") {
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 7);
    std::int64_t last = INT64_MAX;
    for (int wire = 150; wire >= 0; wire -= 10) {
      FixedCosts c = stated_costs();
      c.dispatch.wire = Ns{wire * 1000};
      c.combine.wire = Ns{wire * 1300};
      const std::int64_t step = step_of(plan, c);
      CHECK(step <= last);
      last = step;
    }
  }
}

TEST_CASE("engine: the host's launches bound a step that is all host") {
  FixedCosts c;
  c.host = Ns{5000};
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 6);
    const std::size_t launches = linearise(plan, 0).ops.size();
    CHECK(step_of(plan, c) == static_cast<std::int64_t>(launches) * 5000);
    const Period period = steady_period_time(plan, fixed_costs(plan, c));
    const std::size_t more = linearise(with_moe_iterations(plan, 7), 0).ops.size();
    CHECK(period.period_ns == static_cast<std::int64_t>(more - launches) * 5000);
  }
}

TEST_CASE("engine: a receive waits for the slowest rank, and equal ranks are simulated once") {
  // Rank 1's attention is 30 us longer; both ranks' dispatch arrives by its clock.
  ScheduleSpec spec = small_spec(1, 1, Transport::Ll);
  spec.world = {4, 4};
  spec.classes = {{{{0, 4}}, 0}};
  const Plan plan = make_plan("sequential", spec);
  CostTable base = fixed_costs(plan, stated_costs());
  CostTable costs(plan, {0, 1, 0, 0}, {0});
  costs.host_blocks = false;
  for (std::size_t op = 0; op < plan.ops.size(); ++op)
    for (int g = 0; g < 2; ++g) costs.at(g, 0, 0, static_cast<OpId>(op)) = base.at(0, 0, 0, static_cast<OpId>(op));
  costs.at(1, 0, 0, *plan.find_op("A1")).time += Ns{30000};
  EngineOptions options;
  options.record = {0, 1};
  const EngineResult result = run_engine(plan, costs, options);
  REQUIRE(result.folding.groups.size() == 2);
  CHECK(result.folding.groups[0].ranks == 3);
  CHECK(result.folding.groups[1].first_rank == 1);
  // A 100 (130), D.send, wire 60 -> 190 on both, MLP 80 -> 270, C wire 70 -> 340 beside S.
  for (const std::vector<OpTimes>& times : result.times) {
    CHECK(times[3].end == 190000);
    CHECK(times[3].sent == 130000);
  }
  CHECK(result.times[0][3].start == 100000);
  CHECK(result.times[1][3].start == 130000);
  CHECK(result.step() == 340000);
}

TEST_CASE("engine: comm kernels start on their own rank and end by the slowest") {
  ScheduleSpec spec = small_spec(1, 1, Transport::LsaHt);
  const Plan plan = make_plan("sequential", spec);
  CostTable base = fixed_costs(plan, stated_costs());
  CostTable costs(plan, {0, 1}, {0});
  for (std::size_t op = 0; op < plan.ops.size(); ++op)
    for (int g = 0; g < 2; ++g) costs.at(g, 0, 0, static_cast<OpId>(op)) = base.at(0, 0, 0, static_cast<OpId>(op));
  costs.at(1, 0, 0, *plan.find_op("A1")).time += Ns{30000};
  EngineOptions options;
  options.record = {0, 1};
  const EngineResult result = run_engine(plan, costs, options);
  CHECK(result.times[0][2].start == 100000);
  CHECK(result.times[1][2].start == 130000);
  CHECK(result.times[0][2].end == 190000);
  CHECK(result.times[1][2].end == 190000);
}

TEST_CASE("engine: a comm kernel waits on its SMs and lane for ranks that come late, and moves data after") {
  // A 100, D waits 15 for the last rank and takes 60, MLP 80, C waits 5 and takes 70 beside S.
  const Plan plan = make_plan("sequential", small_spec(1, 1, Transport::LsaHt));
  CostTable costs = fixed_costs(plan, stated_costs());
  costs.at(0, 0, 0, *plan.find_op("D")).peers = Ns{15000};
  costs.at(0, 0, 0, *plan.find_op("C")).peers = Ns{5000};
  for (const Executor executor : {Executor::Plain, Executor::Contended}) {
    EngineOptions options;
    options.record = {0};
    options.executor = executor;
    const EngineResult result = run_engine(plan, costs, options);
    const OpTimes& dispatch = result.times[0][2];
    CHECK(dispatch.start == 100000);
    CHECK(dispatch.sent == 115000);
    CHECK(dispatch.end == 175000);
    CHECK(result.step() == 175000 + 80000 + 5000 + 70000);
    std::int64_t waited = 0;
    for (const Bubble& bubble : find_bubbles(plan, costs, result, options.record, 0))
      if (bubble.lane == kCommLane && bubble.cause == BubbleCause::Peer) waited += bubble.ns;
    CHECK(waited == 20000);
  }
}

TEST_CASE("engine: a dispatch that blocks the host holds back what is launched after it") {
  // Host free otherwise: MLP0 is issued at D0's notify, not earlier; ubatch 1's dispatch cannot be issued before that.
  const Plan plan = make_plan("vllm-ht", small_spec(1, 2, Transport::Ht));
  CostTable costs = fixed_costs(plan, stated_costs());
  costs.host_blocks = true;
  for (int u = 0; u < 2; ++u) costs.at(0, 0, u, *plan.find_op("D")).notify = Ns{25000};
  EngineOptions options;
  options.record = {0};
  const EngineResult result = run_engine(plan, costs, options);
  const Linear& linear = result.linear[0];
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    if (plan.ops[linear.ops[i].op].kind != OpKind::MLP) continue;
    const std::uint32_t dispatch = i - 1;
    CHECK(plan.ops[linear.ops[dispatch].op].kind == OpKind::D);
    CHECK(result.times[0][i].issued == result.times[0][dispatch].start + 25000);
  }
}

TEST_CASE("engine: a replayed graph has one launch, node gaps on a lane and lane gaps across") {
  ScheduleSpec spec = small_spec(1, 1, Transport::LsaHt);
  spec.execution = Execution::Graph;
  const Plan plan = make_plan("sequential", spec);
  CostTable costs = fixed_costs(plan, stated_costs());
  costs.host.launch = Ns{9000000};  // not paid in a graph
  costs.host.graph_launch = Ns{5000};
  costs.host.node_gap = Ns{1000};
  costs.host.lane_gap = Ns{2000};
  EngineOptions options;
  options.record = {0};
  const EngineResult result = run_engine(plan, costs, options);
  const std::vector<OpTimes>& t = result.times[0];
  CHECK(t[0].start == 5000);           // A0
  CHECK(t[1].start == 45000 + 1000);   // A1
  CHECK(t[2].start == 106000 + 2000);  // D: first on its lane, after A1 on the other
  CHECK(t[3].start == 168000 + 3000);  // MLP: after D on the other lane, and a node after A1 on its own
}

TEST_CASE("engine: eager ops have gaps of their own, which hide behind a host that is late") {
  const Plan plan = make_plan("sequential", small_spec(1, 1, Transport::LsaHt));
  CostTable costs = fixed_costs(plan, stated_costs());
  costs.host.node_gap = costs.host.lane_gap = Ns{9000000};  // of graphs only
  costs.host.eager_node_gap = Ns{3000};
  costs.host.eager_lane_gap = Ns{500};
  EngineOptions options;
  options.record = {0};
  for (const Executor executor : {Executor::Plain, Executor::Contended}) {
    options.executor = executor;
    costs.host.launch = Ns{};
    const EngineResult result = run_engine(plan, costs, options);
    const std::vector<OpTimes>& t = result.times[0];
    CHECK(t[0].start == 0);              // A0
    CHECK(t[1].start == 40000 + 3000);   // A1
    CHECK(t[2].start == 103000 + 500);   // D: first on its lane
    CHECK(t[3].start == 163500 + 3500);  // MLP: after D on the other lane
    // A launch takes longer than an op and its gap: the host is late every time.
    costs.host.launch = Ns{50000};
    CHECK(run_engine(plan, costs, options).times[0][1].start == 100000);
  }
}

TEST_CASE("engine: every predicted trace keeps its plan's order, and a moved op does not") {
  FixedCosts c = stated_costs();
  c.host = Ns{300};
  c.dispatch.send = c.combine.send = Ns{2000};
  c.dispatch.recv = c.combine.recv = Ns{3000};
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 3);
    const Trace trace = trace_of(plan, c);
    CHECK(first_finding(plan, trace) == "none");
    // Starting any op 1 ns before what it was bound by is found, for the ops an event or lane holds.
    int found = 0;
    for (std::size_t i = 0; i < trace.ops.size(); ++i) {
      if (is_wire(trace.ops[i].kind) || trace.ops[i].start == SimTime{}) continue;
      Trace moved = trace;
      moved.ops[i].start -= Ns{200000};
      found += first_finding(plan, moved) != "none";
    }
    CHECK(found > 10);
  }
}

TEST_CASE("check_order: each kind of fault has its name") {
  const Plan plan = make_plan("vllm-ht", small_spec(2, 2, Transport::LsaHt));
  const Trace good = trace_of(plan, stated_costs());
  const auto with = [&](auto&& change) {
    Trace trace = good;
    change(trace);
    const auto findings =
        check_order(plan, trace, {.lane_slack = Ns{0}, .rank_slack = Ns{0}, .absent_is_zero_length = false});
    return findings.empty() ? std::string("none") : std::string(finding_name(findings[0].kind));
  };
  const auto index = [&](OpKind kind, int ubatch) {
    for (std::size_t i = 0; i < good.ops.size(); ++i)
      if (good.ops[i].kind == kind && good.ops[i].ubatch == ubatch) return i;
    return std::size_t{0};
  };
  CHECK(with([](Trace&) {}) == "none");
  CHECK(with([&](Trace& t) { t.ops[index(OpKind::D, 0)].lane = kComputeLane; }) == "wrong-lane");
  CHECK(with([&](Trace& t) { t.ops.push_back(t.ops[0]); }) == "twice");
  CHECK(with([&](Trace& t) { t.ops.erase(t.ops.begin() + 3); }) == "missing");
  CHECK(with([&](Trace& t) { t.ops[2].layer = 7; }) == "unknown");
  CHECK(with([&](Trace& t) { t.ops[index(OpKind::C, 0)].start -= Ns{1}; }) == "wait");
  CHECK(with([&](Trace& t) { t.ops[index(OpKind::S, 1)].start -= Ns{1}; }) == "lane-order");
}

TEST_CASE("engine: ranks with different programs that do not meet are a finding, not a hang") {
  // Rank 0 split, rank 1 did not: their calls do not match.
  ScheduleSpec spec = small_spec(2, 2, Transport::Ll);
  spec.classes = {{{{0, 1}}, 0}, {{{1, 2}}, 0}};
  Plan plan = make_plan("vllm-ll", spec);
  plan.classes[1].threads = {0};
  CHECK_THROWS_WITH_AS(run_engine(plan, fixed_costs(plan, stated_costs())),
                       "F1: the ranks' orders do not meet: rank 0 waits for every rank's D.recv of ubatch 1, layer 0; "
                       "rank 1 waits for every rank's C.recv of ubatch 0, "
                       "layer 0.",
                       FindingError);
}
