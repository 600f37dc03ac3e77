#include "runtime/measured_trace.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "tests/runtime/plans.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;
using test::event;
using test::launch;

namespace {

// compute: A0 A1, then MLP behind D; comm: D behind A1
Plan small_plan(int ranks) {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back(
      {0,
       {launch(plan, "A0"), launch(plan, "A1"), event(Verb::Record, 0, 0), event(Verb::Wait, 0, 1), launch(plan, "D"),
        event(Verb::Record, 1, 1), event(Verb::Wait, 1, 0), launch(plan, "MLP"), test::simple(Verb::Exit)}});
  test::single_class(plan, ranks);
  return plan;
}

// compute |--A0 1000..1100--| |--A1 1103..1200--|                    |--MLP 1320..1400--|
// comm                                          |--D 1208..1310--|
RankTimes hand_times(int rank, std::int64_t clock) {
  RankTimes times;
  times.rank = rank;
  times.clock_ns = clock;
  times.residual_ns = 40;
  times.ops = {{true, 1000 + clock, 0, 1100 + clock, 8},
               {true, 1103 + clock, 0, 1200 + clock, 8},
               {true, 1208 + clock, 1250 + clock, 1310 + clock, 4},
               {true, 1320 + clock, 0, 1400 + clock, 8}};
  return times;
}

}  // namespace

TEST_CASE("measured trace: times count from the first rank's first op, other clocks are shifted onto its own") {
  const Plan plan = small_plan(2);
  const Linear linear = linearise(plan, 0);
  const Trace trace = measured_trace(plan, {&linear, &linear}, {hand_times(0, 0), hand_times(1, 5'000)});
  REQUIRE(trace.ops.size() == 8);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    // By lane: A0 A1 MLP, then D.
    const TraceOp* ops = &trace.ops[rank * 4];
    CHECK(ops[0].rank == static_cast<int>(rank));
    CHECK(ops[0].start == at(0));
    CHECK(ops[0].end == at(100));
    CHECK(ops[1].start == at(103));
    CHECK(ops[2].kind == OpKind::MLP);
    CHECK(ops[2].start == at(320));
    CHECK(ops[3].kind == OpKind::D);
    CHECK(ops[3].start == at(208));
    CHECK(ops[3].plan_op == 2);
    CHECK(ops[3].sms == 4);
  }
  CHECK(!trace.plan_hash().empty());
  CHECK(trace.metadata.find("clock_residual_ns")->as_int() == 40);
  CHECK(check_order(plan, trace).empty());
}

TEST_CASE("measured trace: a receive tells how long it waited, an op that did not run has no slice") {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back(
      {0, {launch(plan, "D.send"), launch(plan, "D.recv"), launch(plan, "A0"), test::simple(Verb::Exit)}});
  test::single_class(plan);
  const Linear linear = linearise(plan, 0);
  RankTimes times;
  times.ops = {{true, 10, 0, 20, 1}, {true, 22, 50, 60, 1}, {}};
  const Trace trace = measured_trace(plan, {&linear}, {times});
  REQUIRE(trace.ops.size() == 2);
  CHECK(trace.ops[0].waited == Ns{0});
  CHECK(trace.ops[1].waited == Ns{28});
  CHECK(step_time(times) == Ns{50});
}

TEST_CASE("measured trace: gaps are told apart by what the op came behind last") {
  const Plan plan = small_plan(1);
  const LaneGaps gaps = lane_gaps(plan, linearise(plan, 0), hand_times(0, 0));
  // A1 3 ns behind A0; MLP 10 ns behind D; D itself is a comm kernel, which waits for peers.
  CHECK(gaps.same_lane == std::vector<Ns>{Ns{3}});
  CHECK(gaps.cross_lane == std::vector<Ns>{Ns{10}});
}

TEST_CASE("measured trace: times survive the way through text, and other text is refused") {
  const RankTimes times = hand_times(3, -77);
  const RankTimes back = decode_times(encode_times(times));
  CHECK(back.rank == 3);
  CHECK(back.clock_ns == -77);
  CHECK(back.residual_ns == 40);
  REQUIRE(back.ops.size() == 4);
  CHECK(back.ops[2].ready_ns == 1250 - 77);
  CHECK(back.ops[3].sms == 8);
  CHECK(back.ops[3].ran);
  CHECK_THROWS_AS(decode_times("3 0 0 2 1 5"), InternalError);
  CHECK_THROWS_AS(decode_times("no times"), InternalError);
}

TEST_CASE("measured trace: the median and the tenths of a spread") {
  const Spread s = spread_of({Ns{5}, Ns{1}, Ns{3}, Ns{2}, Ns{4}, Ns{9}, Ns{8}, Ns{7}, Ns{6}, Ns{10}, Ns{11}});
  CHECK(s.median == Ns{6});
  CHECK(s.p10 == Ns{2});
  CHECK(s.p90 == Ns{10});
  CHECK(s.count == 11);
  CHECK(spread_of({}).count == 0);
}
