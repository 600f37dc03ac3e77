// Exchanges whose data moves in pairwise flows.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "sim/cost/fixed.h"
#include "sim/engine/bound.h"
#include "sim/engine/period.h"
#include "tests/fakes/small_plans.h"
#include "tests/sim/engine/random_costs.h"

using namespace dbo;
using fakes::Draw;
using fakes::RandomCase;

namespace {

/// Without a shared expert.
FixedCosts stated() {
  FixedCosts c = fakes::stated_costs();
  c.s = {};
  return c;
}

Plan one_layer(Transport transport, int ranks) {
  ScheduleSpec spec = fakes::small_spec(1, 1, transport);
  spec.world = {ranks, ranks};
  spec.shape.moe.routed_experts = ranks;
  spec.shape.moe.shared_experts = 0;
  spec.classes = {{{{0, ranks}}, 0}};
  return make_plan("sequential", spec);
}

/// Times of an op by rank.
std::vector<OpTimes> times_of(const Plan& plan, const CostTable& costs, std::string_view op) {
  EngineOptions options;
  for (int g = 0; g < costs.groups(); ++g) options.record.push_back(g);
  const EngineResult run = run_engine(plan, costs, options);
  std::vector<OpTimes> out;
  for (const int rank : costs.group_of_rank())
    for (std::size_t i = 0; i < run.linear[0].ops.size(); ++i)
      if (plan.ops[run.linear[0].ops[i].op].name == op) out.push_back(run.times[static_cast<std::size_t>(rank)][i]);
  return out;
}

std::vector<std::int64_t> ends_of(const std::vector<OpTimes>& times) {
  std::vector<std::int64_t> out;
  for (const OpTimes& t : times) out.push_back(t.end);
  return out;
}

}  // namespace

TEST_CASE("flows: each sender's data moves from when that sender comes to it") {
  // A port carries two flows of 30 us of its time each. Ranks 0 and 2 send at 100, rank 1 at 130: at any time each port
  // has at most two flows in each direction, so all take 60. Rank 1 has what it needs at 160, the others at 190.
  const Plan ll = one_layer(Transport::Ll, 3);
  const FixedSettings late{1, {{{1}, 1.3, 1}}, true};
  CHECK(ends_of(times_of(ll, fixed_costs(ll, stated(), late), "D.recv")) ==
        std::vector<std::int64_t>{190000, 160000, 190000});
  // By port loads everybody waits for the last sender.
  CHECK(times_of(ll, fixed_costs(ll, stated(), {1, {{{1}, 1.3, 1}}}), "D.recv")[1].end == 190000);
  // One-sided comm kernels too, which end when all their data has moved; those that meet first wait at the start.
  for (const Transport transport : {Transport::LsaHt, Transport::Ht}) {
    const Plan ht = one_layer(transport, 3);
    const CostTable costs = fixed_costs(ht, stated(), late);
    const std::vector<OpTimes> d = times_of(ht, costs, "D");
    CHECK(ends_of(d) == std::vector<std::int64_t>{190000, 190000, 190000});
    CHECK(d[0].sent == (transport == Transport::Ht ? 130000 : 100000));
    CHECK(d[0].moved == (transport == Transport::Ht ? 190000 : 160000));
  }
}

TEST_CASE("flows: senders that begin apart share a receiver's port while both send") {
  // Rank 2 sends nothing; ranks 0 and 1 send it 60 us of its port's time each, rank 1 from 130: rank 0 alone in
  // [100,130), both at half the rate until rank 0's other half is done at 190, rank 1's 30 left alone until 220.
  const Plan plan = one_layer(Transport::Ll, 3);
  CostTable costs = fixed_costs(plan, stated(), {1, {{{1}, 1.3, 1}}, true});
  costs.flows.ports.assign(6, 1 << 20);
  costs.flows.exchanges[0].clear();  // a combine would come in between
  costs.flows.exchanges[1] = {{0, 2, 0, 5, std::int64_t{60000} << 20}, {1, 2, 1, 5, std::int64_t{60000} << 20}};
  const std::vector<std::int64_t> ends = ends_of(times_of(plan, costs, "D.recv"));
  CHECK(ends[0] == 130000);
  CHECK(ends[1] == 130000);
  CHECK(ends[2] == 220000);
}

TEST_CASE("flows: equal ranks take what their port loads say, simulated once or each") {
  for (const Transport transport : {Transport::Ll, Transport::LsaHt, Transport::Ht, Transport::Nccl}) {
    const Plan plan = one_layer(transport, 4);
    std::uint64_t draw = 0;
    for (int round = 0; round < 20; ++round) {
      const auto next = [&] { return Ns{static_cast<std::int64_t>(mix_below(11, draw++, 90001))}; };
      FixedCosts c = stated();
      c.a1 = next();
      c.dispatch = {next() / 10, next(), next() / 10, Ns{0}};
      c.combine = {next() / 10, next(), next() / 10, next() / 10};
      const CostTable ports = fixed_costs(plan, c), once = fixed_costs(plan, c, {1, {}, true});
      // Two classes that do the same: every rank is its own.
      Plan split = plan;
      split.classes = {{{{0, 2}}, {0}, 0}, {{{2, 4}}, {0}, 0}};
      const CostTable each = fixed_costs(split, c, {1, {}, true});
      CHECK(once.groups() == 1);
      CHECK(each.groups() == 4);
      const std::int64_t step = run_engine(plan, ports).step();
      CHECK(run_engine(plan, once).step() == step);
      CHECK(run_engine(split, each).step() == step);
    }
  }
}

TEST_CASE("flows: stepping over repeated layers changes nothing") {
  int skipped = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 300; seed < 312; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      const RandomCase c = fakes::random_case(
          schedule, {.layers = 24, .demands = seed % 2 == 0, .alternate = seed % 3 == 0, .flows = true}, seed);
      const EngineResult full = fakes::run_recorded(c, Executor::Auto, false);
      const EngineResult quick = fakes::run_recorded(c, Executor::Auto, true);
      CHECK(full.step_ns == quick.step_ns);
      CHECK(full.times == quick.times);
      if (quick.repeat) skipped += quick.repeat->skipped;
    }
  }
  CHECK(skipped > 500);
  MESSAGE("iterations skipped: " << skipped);
}

TEST_CASE("flows: no port carries more than it can, and all its data passes") {
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 400; seed < 410; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      const RandomCase c = fakes::random_case(schedule, {.layers = 3, .ranks = 4, .flows = true}, seed);
      std::map<std::int32_t, std::int64_t> moved, asked;
      std::map<std::int32_t, std::int64_t> ends;
      bool over = false;
      EngineOptions options;
      options.audit_ports = [&](const PortUsage& usage) {
        over = over || usage.used > usage.rate;
        moved[usage.port] += usage.used * (usage.to - usage.from);
        ++ends[usage.port];
      };
      const EngineResult run = run_engine(c.plan, c.costs, options);
      CHECK_FALSE(over);
      for (const LinearOp& op : run.linear[0].ops) {
        const OpKind kind = c.plan.ops[op.op].kind;
        if (!is_send(kind) && !is_collective(kind)) continue;
        for (const PairFlow& f : c.costs.call_flows(c.costs.layer_class(op.layer), op.ubatch, is_dispatch(kind)))
          for (const std::int32_t port : {f.out, f.in}) asked[port] += f.work;
      }
      // Up to a nanosecond's worth is left over where a flow ends.
      for (const auto& [port, work] : asked) {
        CHECK(moved[port] >= work);
        CHECK(moved[port] <= work + ends[port] * c.costs.flows.ports[static_cast<std::size_t>(port)]);
      }
    }
  }
}

TEST_CASE("flows: never slower than ports that carry one flow after the other") {
  // One call at a time: a dispatch cannot take longer than all of its flows in a row.
  const Plan plan = one_layer(Transport::Ll, 4);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    CostTable costs = fixed_costs(plan, stated(), {1, {{{1}, 1.2, 1}, {{3}, 1.7, 1}}, true});
    std::int64_t serial = 0;
    for (PairFlow& flow : costs.flows.exchanges[1]) {
      flow.work = draw.below(50000) << 20;
      serial += flow.work / (3 << 20) + 1;
    }
    for (const OpTimes& t : times_of(plan, costs, "D.recv")) {
      CHECK(t.arrived <= t.sent + serial);
      CHECK(t.arrived >= t.sent);
    }
  }
}

TEST_CASE("flows: the period is no shorter than the bound at any costs") {
  int checked = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 700; seed < 730; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      const RandomCase c = fakes::random_case(
          schedule, {.layers = 8, .ranks = 4, .alternate = seed % 3 == 0, .host = false, .flows = true}, seed);
      const Period period = steady_period_time(c.plan, c.costs);
      if (!period.exact) continue;
      CHECK(period.period_ns >= period_bound(c.plan, c.costs).bound_ns);
      ++checked;
    }
  }
  CHECK(checked > 150);
}

TEST_CASE("flows: the period is no shorter than the bound when a rank lags or its ports are slow") {
  for (const ScheduleName& schedule : schedule_names()) {
    CAPTURE(schedule.name);
    ScheduleSpec spec = fakes::small_spec(6, schedule.name == kSequentialSchedule ? 1 : 2, schedule.default_transport);
    spec.world = {4, 4};
    spec.shape.moe.routed_experts = 4;
    spec.classes = {{{{0, 4}}, 0}};
    const Plan plan = make_plan(schedule.name, spec);
    // A straggler by less than the slack that hidden wires leave the others.
    for (const double factor : {1.0, 1.003, 1.2}) {
      std::vector<Straggler> slow;
      if (factor > 1) slow = {{{2}, factor, 1}, {{3}, 1, factor}};
      const CostTable costs = fixed_costs(plan, stated(), {1, slow, true});
      CHECK(steady_period_time(plan, costs).period_ns >= period_bound(plan, costs).bound_ns);
    }
  }
}

namespace {

/// A step of random stated times, on random transports and schedules.
struct RandomStep {
  Plan plan;
  FixedCosts costs;
  std::vector<Straggler> slow;

  std::int64_t step(bool flows) const { return run_engine(plan, fixed_costs(plan, costs, {1, slow, flows})).step(); }
};

RandomStep random_step(const ScheduleName& schedule, Draw& draw) {
  constexpr int kRanks = 5;
  RandomStep out;
  ScheduleSpec spec = fakes::small_spec(5, schedule.name == kSequentialSchedule ? 1 : 2, schedule.default_transport);
  spec.world = {kRanks, kRanks};
  spec.shape.moe.routed_experts = kRanks;
  spec.classes = {{{{0, kRanks}}, 0}};
  out.plan = make_plan(schedule.name, spec);
  const auto next = [&](std::int64_t most) { return Ns{draw.one_in(5) ? 0 : draw.below(most)}; };
  out.costs = stated();
  out.costs.a0 = next(50000);
  out.costs.a1 = next(50000);
  out.costs.mlp = next(100000);
  out.costs.dispatch = {next(9000), next(150000), next(9000), Ns{0}};
  out.costs.combine = {next(9000), next(150000), next(9000), next(9000)};
  out.slow = {{{static_cast<int>(draw.below(kRanks))}, 1 + 0.01 * static_cast<double>(draw.below(100)), 1}};
  if (draw.one_in(2)) out.slow[0].wire_factor = 1 + 0.01 * static_cast<double>(draw.below(200));
  return out;
}

}  // namespace

TEST_CASE("flows: a rank that is slower makes no step shorter") {
  // To 0.1 %: shares are rounded, and which rank ends last changes.
  for (const ScheduleName& schedule : schedule_names()) {
    Draw draw(500);
    for (int round = 0; round < 30; ++round) {
      CAPTURE(schedule.name);
      CAPTURE(round);
      RandomStep c = random_step(schedule, draw);
      std::int64_t before = c.step(true);
      for (const double more : {1.02, 1.1, 1.5, 3.0}) {
        RandomStep slower = c;
        slower.slow[0].compute_factor *= more;
        if (c.slow[0].wire_factor > 1) slower.slow[0].wire_factor *= more;
        const std::int64_t step = slower.step(true);
        CHECK(step >= before - before / 1000);
        before = step;
      }
    }
  }
}

TEST_CASE("flows: with equal loads no step is longer than by port loads, where all wait for the last sender first") {
  // To 0.1 %, as above.
  for (const ScheduleName& schedule : schedule_names()) {
    Draw draw(600);
    for (int round = 0; round < 60; ++round) {
      CAPTURE(schedule.name);
      CAPTURE(round);
      const RandomStep c = random_step(schedule, draw);
      const std::int64_t ports = c.step(false);
      CHECK(c.step(true) <= ports + ports / 1000);
    }
  }
}

TEST_CASE("flows: data on its way takes memory bandwidth from ops beside it, as over ports") {
  // Ops that ask for all of the memory, wires for a quarter of it: half of that read, half written.
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(4, 2, Transport::Ll));
  const auto priced = [&](bool flows, bool traffic) {
    CostTable costs = fixed_costs(plan, stated(), {1, {}, flows});
    costs.machine.hbm_bytes_per_s = 1'000'000'000'000;
    for (int u = 0; u < costs.ubatches(); ++u)
      for (OpId op = 0; op < plan.ops.size(); ++op) {
        OpCost& cost = costs.at(0, 0, u, op);
        if (is_compute(plan.ops[op].kind)) cost.demand.hbm_bytes = cost.time.count() * 1000;
        if (is_recv(plan.ops[op].kind) && traffic) cost.wire_traffic.hbm_bytes = cost.wire.count() * 250;
      }
    for (std::vector<PairFlow>& exchange : costs.flows.exchanges)
      for (PairFlow& flow : exchange) flow.hbm = traffic ? 1 << 29 : 0;
    return run_engine(plan, costs).step();
  };
  CHECK(priced(true, false) == priced(false, false));
  CHECK(priced(true, true) == priced(false, true));
  CHECK(priced(true, true) > priced(true, false) * 11 / 10);
}

TEST_CASE("flows: a cost group that is simulated twice is a bug of ours") {
  const Plan plan = one_layer(Transport::Ll, 4);
  CostTable costs = fixed_costs(plan, stated(), {1, {}, true});
  Plan two = plan;
  two.classes = {{{{0, 2}}, {0}, 0}, {{{2, 4}}, {0}, 0}};
  CHECK_THROWS_AS(run_engine(two, costs), InternalError);
}
