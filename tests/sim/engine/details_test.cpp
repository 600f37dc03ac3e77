// Bubbles, bounds and the other things said of a step.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/cost/fixed.h"
#include "sim/engine/simulate.h"
#include "sim/plan/plan_graph.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::small_spec;

namespace {

FixedCosts costs_of(std::initializer_list<int> us) {
  const std::vector<int> t(us);
  FixedCosts c;
  c.a0 = Ns{t[0] * 1000};
  c.a1 = Ns{t[1] * 1000};
  c.mlp = Ns{t[2] * 1000};
  c.s = Ns{t[3] * 1000};
  c.dispatch.wire = Ns{t[4] * 1000};
  c.combine.wire = Ns{t[5] * 1000};
  return c;
}

StepResult details(const Plan& plan, const FixedCosts& costs, bool trace = false) {
  return simulate_plan({plan, fixed_costs(plan, costs)}, {.details = true, .trace = trace, .trace_ranks = {}});
}

std::int64_t bubble(const StepResult& result, LaneId lane, BubbleCause cause) {
  for (const Bubble& b : result.bubbles)
    if (b.lane == lane && b.cause == cause) return b.ns;
  return 0;
}

}  // namespace

TEST_CASE("bubbles: the hand-worked low-latency step idles only for the last combine") {
  // Busy 800 of 850; C1' is sent at 800 at the latest order, its wire ends at 850.
  const StepResult r =
      details(make_plan("vllm-ll", small_spec(2, 2, Transport::Ll)), costs_of({40, 60, 80, 20, 60, 70}));
  CHECK(r.step_ns == 850000);
  CHECK(bubble(r, kComputeLane, BubbleCause::Wire) == 50000);
  CHECK(r.bubbles.size() == 1);
  CHECK(r.exposed_comm_ns == 50000);
}

TEST_CASE("bubbles: idle time by cause adds up to the step minus the busy time on every lane") {
  std::uint64_t draw = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (int round = 0; round < 20; ++round) {
      const auto next = [&] { return Ns{static_cast<std::int64_t>(mix_below(5, draw++, 90001))}; };
      FixedCosts c;
      c.a0 = next();
      c.a1 = next();
      c.mlp = next();
      c.s = next();
      c.dispatch = {next() / 10, next(), next() / 10, Ns{0}};
      c.combine = {next() / 10, next(), next() / 10, next() / 10};
      c.host = next() / 20;
      const Plan plan = fakes::small_plan(schedule, 5);
      const CostTable table = fixed_costs(plan, c);
      EngineOptions options;
      options.record = {0};
      const EngineResult run = run_engine(plan, table, options);
      std::map<int, std::int64_t> idle, busy;
      for (const Bubble& b : find_bubbles(plan, table, run, {0}, 0)) idle[b.lane] += b.ns;
      for (std::size_t i = 0; i < run.linear[0].ops.size(); ++i) {
        const OpTimes& t = run.times[0][i];
        const OpKind kind = plan.ops[run.linear[0].ops[i].op].kind;
        const std::int64_t waiting = is_recv(kind) ? std::max<std::int64_t>(0, t.arrived - t.start) : 0;
        busy[run.linear[0].ops[i].lane] += t.end - t.start - waiting;
      }
      for (const auto& [lane, ns] : busy) CHECK(ns + idle[lane] == run.step());
      const StepResult r = simulate_plan({plan, table}, {});
      for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane)
        CHECK(r.lane_busy_ns[lane] == busy[static_cast<int>(lane)]);
      // Compute waits for data, or for ranks that send it, only where communication is exposed.
      CHECK(bubble(r, kComputeLane, BubbleCause::Wire) + bubble(r, kComputeLane, BubbleCause::Peer) <=
            r.exposed_comm_ns);
    }
  }
}

TEST_CASE("bubbles: a slow host is named, and so is a slow rank") {
  FixedCosts c = costs_of({1, 1, 1, 1, 0, 0});
  c.host = Ns{10000};
  const StepResult host = details(make_plan("sequential", small_spec(3, 1, Transport::Ll)), c);
  CHECK(bubble(host, kComputeLane, BubbleCause::Host) > host.step_ns / 2);
  // Rank 1 is 30 us slow in attention: rank 0's receive waits for it, then for the wire.
  const Plan plan = make_plan("sequential", small_spec(1, 1, Transport::Ll));
  const CostTable base = fixed_costs(plan, costs_of({40, 60, 80, 20, 60, 70}));
  CostTable costs(plan, {0, 1}, {0});
  for (std::size_t op = 0; op < plan.ops.size(); ++op)
    for (int g = 0; g < 2; ++g) costs.at(g, 0, 0, static_cast<OpId>(op)) = base.at(0, 0, 0, static_cast<OpId>(op));
  costs.at(1, 0, 0, *plan.find_op("A1")).time += Ns{30000};
  EngineOptions options;
  options.record = {0};
  const EngineResult run = run_engine(plan, costs, options);
  for (const Bubble& b : find_bubbles(plan, costs, run, {0}, 0)) {
    if (b.cause == BubbleCause::Peer) CHECK(b.ns == 30000);
    if (b.cause == BubbleCause::Wire) CHECK(b.ns == 60000 + 50000);  // dispatch, and the combine past the shared expert
  }
}

TEST_CASE("simulate: a trace of chosen ranks and layers holds those alone, with the times they have in the whole") {
  const Plan plan = make_plan("vllm-ll", small_spec(6, 2, Transport::Ll));
  const CostedPlan costed{plan, fixed_costs(plan, costs_of({40, 60, 80, 20, 60, 70}))};
  const StepResult whole = simulate_plan(costed, {.trace = true, .trace_ranks = {1}});
  const StepResult part = simulate_plan(costed, {.trace = true, .trace_ranks = {1}, .trace_layers = {2, 3}});
  CHECK(part.step_ns == whole.step_ns);
  CHECK(part.exposed_comm_ns == whole.exposed_comm_ns);
  std::vector<TraceOp> wanted;
  for (const TraceOp& op : whole.trace.ops)
    if (op.layer == 2 || op.layer == 3) wanted.push_back(op);
  REQUIRE(part.trace.ops.size() == wanted.size());
  CHECK(wanted.size() < whole.trace.ops.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(part.trace.ops[i].plan_op == wanted[i].plan_op);
    CHECK(part.trace.ops[i].start == wanted[i].start);
    CHECK(part.trace.ops[i].end == wanted[i].end);
    CHECK(part.trace.ops[i].rank == 1);
  }
  for (const TraceFlow& flow : part.trace.flows) CHECK(std::max(flow.from, flow.to) < wanted.size());
  CHECK(compact_json(*part.trace.metadata.find("layers")) == "[2,3]");
}

TEST_CASE("bound: no built-in schedule beats it, at any durations") {
  std::uint64_t draw = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (int round = 0; round < 60; ++round) {
      const auto next = [&] { return Ns{static_cast<std::int64_t>(mix_below(7, draw++, 100001))}; };
      FixedCosts c;
      c.a0 = next();
      c.a1 = next();
      c.mlp = next();
      c.s = next();
      c.dispatch = {next() / 10, next(), next() / 10, Ns{0}};
      c.combine = {next() / 10, next(), next() / 10, next() / 10};
      const Plan plan = fakes::small_plan(schedule, 4);
      const CostTable table = fixed_costs(plan, c);
      CHECK(steady_period_time(plan, table).period_ns >= period_bound(plan, table).bound_ns);
    }
  }
}

TEST_CASE("bound: its three limits, worked by hand") {
  const Plan ht = make_plan("vllm-ht", small_spec(2, 2, Transport::LsaHt));
  const auto bound = [&](std::initializer_list<int> us) { return period_bound(ht, fixed_costs(ht, costs_of(us))); };
  // A0 A1 M S D C.
  CHECK(bound({0, 100, 80, 20, 60, 70}).bound_ns == 400000);
  CHECK(bound({0, 100, 80, 20, 60, 70}).kind == BoundKind::Compute);
  CHECK(bound({0, 20, 20, 20, 160, 160}).bound_ns == 640000);
  CHECK(bound({0, 20, 20, 20, 160, 160}).kind == BoundKind::Communication);
  const Plan one = make_baseline(small_spec(2, 1, Transport::LsaHt), false, false);
  const PeriodBound chain = period_bound(one, fixed_costs(one, costs_of({0, 20, 20, 20, 30, 30})));
  CHECK(chain.bound_ns == 100000);  // A D M C
  CHECK(chain.kind == BoundKind::Chain);
  // Low latency: calls (send, wire, receive) follow one another.
  const Plan ll = make_plan("vllm-ll", small_spec(2, 2, Transport::Ll));
  FixedCosts c = costs_of({0, 1, 1, 1, 50, 50});
  c.dispatch.send = c.combine.recv = Ns{2000};
  CHECK(period_bound(ll, fixed_costs(ll, c)).bound_ns == 2 * (52000 + 52000));
  CHECK(period_bound(ll, fixed_costs(ll, c), 2).bound_ns == 2 * (50000 + 50000));
}

TEST_CASE("plan_graph: the critical path is the engine's step when nothing waits for a wire") {
  FixedCosts c = costs_of({40, 60, 80, 20, 60, 70});
  const Plan plan = make_plan("vllm-ht", small_spec(3, 2, Transport::LsaHt));
  const CostTable table = fixed_costs(plan, c);
  const Linear linear = linearise(plan, 0);
  std::vector<std::int64_t> ns;
  for (const LinearOp& op : linear.ops) ns.push_back(table.at(0, 0, op.ubatch, op.op).time.count());
  std::int64_t sum = 0;
  for (const std::uint32_t op : critical_path(plan, linear, ns)) sum += ns[op];
  CHECK(sum == run_engine(plan, table).step());
}

TEST_CASE("plan_graph: sound plans have no cycle; ranks that dispatch in opposite orders have the smallest one") {
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 3);
    const std::vector<Linear> linear = {linearise(plan, 0)};
    CHECK(find_cycle(plan_graph(plan, linear), plan, linear).empty());
  }
  // Two classes of a single-thread high-throughput plan; the second one runs ubatch 1's dispatch first.
  ScheduleSpec spec = small_spec(1, 2, Transport::LsaHt);
  spec.classes = {{{{0, 1}}, 0}, {{{1, 2}}, 0}};
  Plan plan = make_plan("sglang-prefill", spec);
  Plan other = make_plan("deepseek-prefill", spec);
  plan.events.insert(plan.events.end(), other.events.begin(), other.events.end());
  const auto events = static_cast<EventId>(plan.events.size() - other.events.size());
  for (Block& block : other.blocks) {
    for (Instruction& i : block.body) i.event = static_cast<EventId>(i.event + events);
    block.name += "2";
  }
  const auto blocks = static_cast<BlockId>(plan.blocks.size());
  plan.blocks.insert(plan.blocks.end(), other.blocks.begin(), other.blocks.end());
  for (Instruction& i : other.threads[0].body) i.block = static_cast<BlockId>(i.block + blocks);
  plan.threads.push_back(other.threads[0]);
  plan.classes[0].threads = {0};
  plan.classes[1].threads = {1};
  const std::vector<Linear> linear = {linearise(plan, 0), linearise(plan, 1)};
  const std::vector<std::uint32_t> cycle = find_cycle(plan_graph(plan, linear), plan, linear);
  CHECK(cycle.size() == 2);
  CHECK_THROWS_AS(run_engine(plan, fixed_costs(plan, costs_of({1, 1, 1, 1, 1, 1}))), FindingError);
}

TEST_CASE("plan_graph: the picture of one layer has its edges reduced") {
  const std::string dot = layer_dot(make_plan("vllm-ll", small_spec(4, 2, Transport::Ll)));
  CHECK(dot.starts_with("digraph layer {"));
  // One lane and one call in flight: what is left is a chain through every node.
  const auto count = [&](const std::string& text) {
    int n = 0;
    for (std::size_t at = dot.find(text); at != std::string::npos; at = dot.find(text, at + 1)) ++n;
    return n;
  };
  CHECK(count("label") > 16);
  CHECK(count(" -> ") == count("label") - 1);
}
