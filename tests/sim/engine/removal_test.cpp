// What taking an op away may do to the others of a fixed order: nothing bad where nothing is shared, and bounded harm
// where ops share.
#include <doctest/doctest.h>

#include "sim/engine/sharing.h"
#include "sim/sched/schedule.h"
#include "tests/sim/engine/lane_plan.h"
#include "tests/sim/engine/random_costs.h"

using namespace dbo;
using fakes::LaneOp;
using fakes::LanePlan;
using fakes::RandomCase;
using fakes::run_recorded;

namespace {

/// Ops of any rank that end later in `without` than in `with`.
int delayed(const EngineResult& with, const EngineResult& without) {
  int later = 0;
  for (std::size_t g = 0; g < with.times.size(); ++g)
    for (std::size_t i = 0; i < with.times[g].size(); ++i) later += without.times[g][i].end > with.times[g][i].end;
  return later;
}

/// Of rank 0 alone, in every layer and ubatch: it starts in its turn, takes no time and asks for nothing.
RandomCase without_op(RandomCase c, OpId gone) {
  for (int l = 0; l < c.costs.layer_classes(); ++l)
    for (int u = 0; u < c.costs.ubatches(); ++u) c.costs.at(0, l, u, gone) = {};
  return c;
}

/// The same costs, with a class of its own for each layer.
RandomCase by_layer(const RandomCase& c) {
  const int layers = c.plan.shape.layers;
  std::vector<int> classes;
  for (int l = 0; l < layers; ++l) classes.push_back(l);
  RandomCase out{c.plan, CostTable(c.plan, c.costs.group_of_rank(), classes)};
  out.costs.machine = c.costs.machine;
  out.costs.host = c.costs.host;
  out.costs.host_blocks = c.costs.host_blocks;
  for (int g = 0; g < c.costs.groups(); ++g)
    for (int l = 0; l < layers; ++l)
      for (int u = 0; u < c.costs.ubatches(); ++u)
        for (OpId op = 0; op < c.plan.ops.size(); ++op)
          out.costs.at(g, l, u, op) = c.costs.at(g, c.costs.layer_class(l), u, op);
  return out;
}

template <class Change>
void change_costs(RandomCase& c, Change change) {
  for (int g = 0; g < c.costs.groups(); ++g)
    for (int l = 0; l < c.costs.layer_classes(); ++l)
      for (int u = 0; u < c.costs.ubatches(); ++u)
        for (OpId op = 0; op < c.plan.ops.size(); ++op) change(c.plan.ops[op], c.costs.at(g, l, u, op));
}

std::vector<OpTimes> times_of(const LanePlan& p) {
  EngineOptions options;
  options.record = {0};
  return run_engine(p.plan, p.costs, options).times[0];
}

/// Ops of up to 50 us on lanes drawn below `lanes`.
std::vector<LaneOp> random_ops(int count, int lanes, fakes::Draw& draw) {
  std::vector<LaneOp> ops;
  for (int i = 0; i < count; ++i)
    ops.push_back({"op " + std::to_string(i),
                   OpKind::Other,
                   static_cast<LaneId>(draw.below(lanes)),
                   1 + static_cast<int>(draw.below(50)),
                   {}});
  return ops;
}

}  // namespace

// Times are then sums and maxima of the ops' own times, and neither falls when a term grows.
TEST_CASE("removal: where nothing is shared, an op that is not there never delays the others") {
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      const RandomCase all = fakes::random_case(schedule, {.alternate = seed % 2 == 1}, seed);
      const EngineResult with = run_recorded(all, Executor::Auto, false);
      for (OpId gone = 0; gone < all.plan.ops.size(); ++gone)
        CHECK(delayed(with, run_recorded(without_op(all, gone), Executor::Auto, false)) == 0);
    }
  }
}

// A share that nobody else touches makes an op's time a constant: the same sums and maxima.
TEST_CASE("removal: nor where ops have fewer SMs than they could use, but SMs of their own") {
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 40; seed < 50; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      RandomCase all = fakes::random_case(schedule, {.demands = true}, seed);
      all.plan.sm = {SmControl::GreenContext, 24, 108, 0};
      all.costs.machine = {};
      all.costs.machine.sms = 132;
      change_costs(all, [](const OpDef& op, OpCost& cost) {
        // The lanes' ops that are neither on the compute nor on the comm lane take none.
        cost.demand.sms = op.lane == kComputeLane ? 132 : op.lane == kCommLane ? 24 : 0;
        if (op.lane == kComputeLane && op.sms != SmPool::Compute) cost.demand.sms = 100;
        cost.beside = {};
      });
      const EngineResult with = run_recorded(all, Executor::Contended, false);
      std::int64_t slowed = 0;
      for (const OpTimes& t : with.times[0]) slowed += t.lost[static_cast<std::size_t>(SlowCause::Sms)];
      CHECK(slowed > 0);
      for (OpId gone = 0; gone < all.plan.ops.size(); ++gone)
        CHECK(delayed(with, run_recorded(without_op(all, gone), Executor::Contended, false)) == 0);
    }
  }
}

namespace {

/// From when on taking `gone` away from rank 0 may change anything: its first op of this layer class and ubatch could
/// start, or a receive's wire. A call that was moving data then counts from when it began to: by how much the slowest
/// rank falls behind is told to the others as a whole, so that they may end by it before it has.
std::int64_t first_effect(const RandomCase& c, const EngineResult& run, const LinearOp& gone) {
  std::int64_t cut = INT64_MAX;
  for (std::size_t i = 0; i < run.times[0].size(); ++i) {
    const LinearOp& op = run.linear[0].ops[i];
    const OpTimes& t = run.times[0][i];
    if (op.op != gone.op || op.ubatch != gone.ubatch) continue;
    if (c.costs.layer_class(op.layer) != c.costs.layer_class(gone.layer)) continue;
    cut = std::min({cut, t.ready, is_recv(c.plan.ops[op.op].kind) ? t.sent : t.ready});
  }
  std::int64_t first = cut;
  for (std::size_t i = 0; i < run.times[0].size(); ++i) {
    const OpTimes& t = run.times[0][i];
    if (is_collective(c.plan.ops[run.linear[0].ops[i].op].kind) && t.start < cut && t.moved > cut)
      first = std::min(first, t.sent);
  }
  return first;
}

}  // namespace

// Speeds follow from what runs and waits at an instant: nothing looks ahead.
TEST_CASE("removal: whatever is shared, all that ended before the op could start ended when it did") {
  std::int64_t before = 0, after = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 100; seed < 120; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      const RandomCase all = by_layer(fakes::random_case(
          schedule, {.layers = 4, .demands = true, .alternate = seed % 2 == 1, .loaded = seed % 3 == 0}, seed));
      const EngineResult with = run_recorded(all, Executor::Auto, false);
      fakes::Draw draw(seed);
      for (int trial = 0; trial < 20; ++trial) {
        const auto index = static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(with.times[0].size())));
        const LinearOp& op = with.linear[0].ops[index];
        RandomCase rest = all;
        rest.costs.at(0, rest.costs.layer_class(op.layer), op.ubatch, op.op) = {};
        const EngineResult without = run_recorded(rest, Executor::Auto, false);
        const std::int64_t cut = first_effect(all, with, op);
        int moved = 0;
        for (std::size_t g = 0; g < with.times.size(); ++g)
          for (std::size_t i = 0; i < with.times[g].size(); ++i) {
            const std::int64_t end = with.times[g][i].end;
            (end <= cut ? before : after) += 1;
            moved += end <= cut && without.times[g][i].end != end;
          }
        CHECK(moved == 0);
      }
    }
  }
  CHECK(before > 10000);
  CHECK(after > 10000);
}

// No op that leaves ever slows another that runs on (share_out), so with starts that do not move all get on faster.
TEST_CASE("removal: an op that is not there delays nobody whose start is fixed") {
  // One op a lane, each started by the host, SMs for all.
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    fakes::Draw draw(seed);
    std::vector<LaneOp> ops = {{"X", OpKind::Other, 0, 1 + static_cast<int>(draw.below(50)), {}},
                               {"D", OpKind::D, 1, 1 + static_cast<int>(draw.below(50)), {}},
                               {"Y", OpKind::Other, 2, 1 + static_cast<int>(draw.below(50)), {}}};
    for (LaneOp& op : ops) {
      op.demand.sms = 44;
      op.demand.hbm_bytes = op.us * 1000 * draw.below(1000);
      op.demand.link_bytes = op.us * 1000 * draw.below(100);
      op.beside_us = op.us + static_cast<int>(draw.below(20));
    }
    LanePlan all = fakes::lane_plan(ops, fakes::small_machine());
    all.costs.host.launch = Ns{draw.below(20000)};
    const std::vector<OpTimes> with = times_of(all);
    for (std::size_t gone = 0; gone < ops.size(); ++gone) {
      LanePlan rest = all;
      rest.costs.at(0, 0, 0, static_cast<OpId>(gone)) = {};
      const std::vector<OpTimes> without = times_of(rest);
      for (std::size_t i = 0; i < ops.size(); ++i) CHECK(without[i].end <= with[i].end);
    }
  }
}

// Until the first op of the tail could start nothing changes, and from then on the other lane is alone.
TEST_CASE("removal: of two lanes, the tail of one slows the other, if anything") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    fakes::Draw draw(seed);
    std::vector<LaneOp> ops = random_ops(10, 2, draw);
    for (LaneOp& op : ops) {
      op.demand.sms = 20 + static_cast<int>(draw.below(113));
      op.demand.hbm_bytes = op.us * 1000 * draw.below(1000);
      op.demand.block = Ns{draw.below(20000)};
    }
    const LanePlan all = fakes::lane_plan(ops, fakes::small_machine());
    const std::vector<OpTimes> with = times_of(all);
    for (const LaneId lane : {kComputeLane, kCommLane}) {
      LanePlan rest = all;
      for (std::size_t gone = ops.size(); gone-- > 0;) {
        if (ops[gone].lane != lane) continue;
        rest.costs.at(0, 0, 0, static_cast<OpId>(gone)) = {};
        const std::vector<OpTimes> without = times_of(rest);
        for (std::size_t i = 0; i < ops.size(); ++i)
          CHECK((i >= gone && ops[i].lane == lane) == (rest.costs.at(0, 0, 0, static_cast<OpId>(i)).time == Ns{}));
        for (std::size_t i = 0; i < ops.size(); ++i)
          if (ops[i].lane != lane || i < gone) CHECK(without[i].end <= with[i].end);
      }
    }
  }
}

TEST_CASE("removal: but an op that is gone can delay others, and the step") {
  // X needs no memory, R and Q all of it, each for 10 us; after R another 10 us without.
  //   with X      compute X--- Q---        without    compute Q-------        From 0 on Q has half of the memory, as
  //               comm    R--- Z---                   comm    R------- Z---   fair shares have it: R ends at 20,
  //               not 10.
  // R was alone because X kept Q from starting. Only a sharing that gave Q nothing before 10 would know that.
  LanePlan p = fakes::lane_plan({{"X", OpKind::Other, kComputeLane, 10, {}},
                                 {"Q", OpKind::Other, kComputeLane, 10, {}},
                                 {"R", OpKind::Other, kCommLane, 10, {}},
                                 {"Z", OpKind::Other, kCommLane, 10, {}}},
                                fakes::small_machine());
  for (const char* name : {"Q", "R"}) p.cost(name).demand.hbm_bytes = 10'000'000;
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[2].end == 10000);
  CHECK(t[1].end == 20000);
  CHECK(t[3].end == 20000);
  p.cost("X") = {};
  t = times_of(p);
  CHECK(t[2].end == 20000);
  CHECK(t[1].end == 20000);
  CHECK(t[3].end == 30000);
}

namespace {

/// Time that the machine's memory takes for all that the ops of every rank move, in ns.
std::int64_t traffic_time(const RandomCase& c, const Linear& linear) {
  std::int64_t sum = 0;
  const std::int64_t bytes_per_us = c.costs.machine.hbm_bytes_per_s / 1'000'000;
  const auto add = [&](std::int64_t bytes, Ns time) { sum += std::min(bytes * 1000 / bytes_per_us, time.count()) + 1; };
  for (int g = 0; g < c.costs.groups(); ++g)
    for (const LinearOp& op : linear.ops) {
      const OpCost& cost = c.costs.at(g, c.costs.layer_class(op.layer), op.ubatch, op.op);
      add(cost.demand.hbm_bytes, cost.time);
      add(cost.wire_traffic.hbm_bytes, cost.wire);
    }
  return sum;
}

}  // namespace

// Follow the op that ends last back through whatever it waited for: a chain without gaps. Where it is slowed, memory is
// given out in full, which lasts no longer than all there is to move; at full speed it is no longer than the longest
// chain. So a step is at most their sum, with an op or without it.
TEST_CASE("removal: the step without an op is at most the longest chain and the time of all memory traffic") {
  double most = 0;
  int runs = 0, sharing = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    for (std::uint64_t seed = 200; seed < 220; ++seed) {
      CAPTURE(schedule.name);
      CAPTURE(seed);
      RandomCase all = fakes::random_case(schedule, {.layers = 3, .demands = true}, seed);
      all.costs.machine = {};
      all.costs.machine.hbm_bytes_per_s = 500'000'000'000;
      change_costs(all, [](const OpDef&, OpCost& cost) {
        cost.beside = {};
        cost.demand.link_bytes = cost.demand.nic_bytes = 0;
        cost.wire_traffic.link_bytes = cost.wire_traffic.nic_bytes = 0;
      });
      const std::int64_t with = run_recorded(all, Executor::Contended, false).step();
      for (OpId gone = 0; gone < all.plan.ops.size(); ++gone) {
        const RandomCase rest = without_op(all, gone);
        RandomCase alone = rest;
        alone.costs.machine = {};
        const EngineResult run = run_recorded(rest, Executor::Contended, false);
        const std::int64_t chain = run_recorded(alone, Executor::Contended, false).step();
        ++runs;
        sharing += run.step() > chain;
        const std::int64_t rounding = 2 * static_cast<std::int64_t>(run.linear[0].ops.size());  // ends are rounded up
        CHECK(run.step() >= chain);
        CHECK(run.step() <= chain + traffic_time(rest, run.linear[0]) + rounding);
        most = std::max(most, static_cast<double>(run.step()) / static_cast<double>(with));
      }
    }
  }
  CHECK(sharing > runs / 2);
  MESSAGE("a step grew by up to " << (most - 1) * 100 << " %");
  CHECK(most < 1.05);  // of such cases; by hand above it is half as long again
}

// Memory is never idle then, and all there is to do is the sum of the ops' times: whatever the order.
TEST_CASE("removal: where every op asks for all of the memory, the step is shorter by exactly the op") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    fakes::Draw draw(seed);
    std::vector<LaneOp> ops = random_ops(9, 3, draw);
    std::int64_t sum = 0;
    for (LaneOp& op : ops) {
      op.demand.hbm_bytes = op.us * 1'000'000;
      sum += op.us * 1000;
    }
    const LanePlan all = fakes::lane_plan(ops, fakes::small_machine());
    for (std::size_t gone = 0; gone <= ops.size(); ++gone) {
      LanePlan rest = all;
      if (gone < ops.size()) rest.costs.at(0, 0, 0, static_cast<OpId>(gone)) = {};
      const std::int64_t work = sum - (gone < ops.size() ? ops[gone].us * 1000 : 0);
      const std::int64_t step = run_engine(rest.plan, rest.costs).step();
      CHECK(step >= work);
      CHECK(step <= work + static_cast<std::int64_t>(ops.size()));  // ends are rounded up
    }
  }
}
