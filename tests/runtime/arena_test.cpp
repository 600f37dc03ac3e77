#include "runtime/arena.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "tests/runtime/plans.h"

using namespace dbo;
using namespace dbo::runtime;
using test::event;
using test::launch;
using test::simple;

namespace {

/// Ops with the buffers given, one thread with `body` built by the caller.
struct Builder {
  Plan plan = test::two_lane_plan();

  BufferId buffer(const char* name, int slots = 1, SlotBy by = SlotBy::Ubatch) {
    plan.buffers.push_back({name, slots, by});
    return static_cast<BufferId>(plan.buffers.size() - 1);
  }
  void uses(const char* op, std::vector<BufferId> reads, std::vector<BufferId> writes) {
    OpDef& def = plan.ops[*plan.find_op(op)];
    def.reads = std::move(reads);
    def.writes = std::move(writes);
  }
  Linear linear(Program body) {
    body.push_back(simple(Verb::Exit));
    plan.threads = {{0, std::move(body)}};
    test::single_class(plan);
    return linearise(plan, 0);
  }
};

}  // namespace

TEST_CASE("ordering: lane order and event waits order ops, a wait on a later record or on another lane does not") {
  Builder b;
  // compute: A0, record, A1        comm: wait, D, record      compute: wait, MLP
  const Linear linear = b.linear({launch(b.plan, "A0"), event(Verb::Record, 0, 0), launch(b.plan, "A1"),
                                  event(Verb::Wait, 0, 1), launch(b.plan, "D"), event(Verb::Record, 1, 1),
                                  event(Verb::Wait, 1, 0), launch(b.plan, "MLP"), launch(b.plan, "C")});
  const Ordering ordering(b.plan, linear);
  const std::uint32_t a0 = 0, a1 = 1, d = 2, mlp = 3, c = 4;
  CHECK(ordering.before(a0, a1));
  CHECK(ordering.before(a0, d));
  CHECK(!ordering.before(a1, d));  // the record covers A0 alone
  CHECK(!ordering.before(d, a1));
  CHECK(ordering.before(d, mlp));
  CHECK(ordering.before(a1, mlp));
  CHECK(ordering.before(d, c));
  CHECK(!ordering.before(mlp, c));
  CHECK(!ordering.before(a0, a0));
}

TEST_CASE("ordering: a host that waits for an op's end orders all it launches later, waiting for counts does not") {
  for (const bool notify : {false, true}) {
    Builder b;
    const Linear linear = b.linear({launch(b.plan, "D"), test::host_wait(b.plan, "D", notify), launch(b.plan, "MLP")});
    CHECK(Ordering(b.plan, linear).before(0, 1) == !notify);
  }
}

TEST_CASE("arena: slots share bytes where the plan orders the last use of one before the first of the other") {
  Builder b;
  const BufferId x = b.buffer("x"), y = b.buffer("y"), z = b.buffer("z");
  b.uses("A0", {}, {x});
  b.uses("A1", {x}, {y});
  b.uses("MLP", {y}, {z});
  b.uses("S", {z}, {});
  const Linear linear =
      b.linear({launch(b.plan, "A0"), launch(b.plan, "A1"), launch(b.plan, "MLP"), launch(b.plan, "S")});
  const Arena arena(b.plan, linear, {1000, 500, 1000});
  // x and z live one after the other; y overlaps both. Sizes are rounded up to 256.
  CHECK(arena.offset(x, 0) == 0);
  CHECK(arena.offset(z, 2) == 0);
  CHECK(arena.offset(y, 1) == 1024);
  CHECK(arena.slot_offset(y, 0) == 1024);
  CHECK_THROWS_AS(arena.slot_offset(y, 1), InternalError);
  CHECK(arena.bytes() == 1536);
  CHECK(arena.plain_bytes() == 2560);
  REQUIRE(arena.begun_by(2).size() == 1);
  CHECK(arena.begun_by(2)[0]->use.buffer == z);
  CHECK(arena.begun_by(2)[0]->shares);
  CHECK(arena.begun_by(3).empty());
}

TEST_CASE("arena: slots of ops on lanes without a path between them share nothing") {
  Builder b;
  const BufferId x = b.buffer("x"), z = b.buffer("z");
  b.uses("A0", {}, {x});
  b.uses("A1", {x}, {});
  b.uses("D", {}, {z});
  b.uses("C", {z}, {});
  const Linear linear =
      b.linear({launch(b.plan, "A0"), launch(b.plan, "A1"), launch(b.plan, "D"), launch(b.plan, "C")});
  CHECK(Arena(b.plan, linear, {256, 256}).bytes() == 512);
  // The same with a path from A1 to D.
  const Linear ordered = b.linear({launch(b.plan, "A0"), launch(b.plan, "A1"), event(Verb::Record, 0, 0),
                                   event(Verb::Wait, 0, 1), launch(b.plan, "D"), launch(b.plan, "C")});
  CHECK(Arena(b.plan, ordered, {256, 256}).bytes() == 256);
}

TEST_CASE("arena: what comes from outside the step or is wanted after it shares nothing with what would overwrite it") {
  Builder b;
  const BufferId in = b.buffer("in"), tmp = b.buffer("tmp"), out = b.buffer("out");
  b.uses("A0", {in}, {tmp});
  b.uses("A1", {tmp}, {});
  b.uses("MLP", {}, {out});
  const Linear linear = b.linear({launch(b.plan, "A0"), launch(b.plan, "A1"), launch(b.plan, "MLP")});
  const Arena arena(b.plan, linear, {256, 256, 256});
  // `out` may take the place of `tmp`, which is over; nobody may take that of `in`.
  CHECK(arena.bytes() == 512);
  CHECK(arena.offset(out, 2) == arena.offset(tmp, 0));
  CHECK(arena.offset(in, 0) != arena.offset(tmp, 0));
}

TEST_CASE("arena: a slot written again while its former content may be in use is an error that names both ops") {
  Builder b;
  const BufferId x = b.buffer("x");
  b.uses("A0", {}, {x});
  b.uses("D", {x}, {});
  b.uses("A1", {}, {x});
  const Program unordered{launch(b.plan, "A0"), event(Verb::Record, 0, 0), event(Verb::Wait, 0, 1), launch(b.plan, "D"),
                          launch(b.plan, "A1")};
  const Linear linear = b.linear(unordered);
  CHECK_THROWS_WITH_AS(Arena(b.plan, linear, {256}),
                       "F14 unordered reuse: A1 of ubatch 0 writes slot 0 of buffer x while D of ubatch 0 may still "
                       "use it: the plan has no path from one to the other",
                       FindingError);
}

TEST_CASE("arena: a read without a path from its write is an error that names both ops") {
  Builder b;
  const BufferId x = b.buffer("x");
  b.uses("A0", {}, {x});
  b.uses("D", {x}, {});
  const Linear linear = b.linear({launch(b.plan, "A0"), launch(b.plan, "D")});
  CHECK_THROWS_WITH_AS(Arena(b.plan, linear, {256}),
                       "F5 missing wait: D of ubatch 0 reads buffer x, which A0 of ubatch 0 may still write: the plan "
                       "has no path from one to the other",
                       FindingError);
}

TEST_CASE("arena: slots go by ubatch or by call, and an op without a call uses its ubatch's latest") {
  Builder b;
  const BufferId act = b.buffer("act", 2), a2a = b.buffer("a2a", 2, SlotBy::Call);
  b.uses("A0", {}, {act});
  b.uses("D.send", {act}, {a2a});
  b.uses("D.recv", {a2a}, {a2a});
  b.uses("MLP", {a2a}, {act});
  b.plan.threads.clear();
  const Linear linear = b.linear({launch(b.plan, "A0", 0), launch(b.plan, "A0", 1), launch(b.plan, "D.send", 0),
                                  launch(b.plan, "D.recv", 0), launch(b.plan, "D.send", 1), launch(b.plan, "D.recv", 1),
                                  launch(b.plan, "MLP", 0), launch(b.plan, "MLP", 1)});
  const SlotMap map(b.plan, linear);
  CHECK(map.slot(act, 0) == 0);
  CHECK(map.slot(act, 1) == 1);
  CHECK(map.slot(a2a, 2) == 0);
  CHECK(map.slot(a2a, 5) == 1);
  CHECK(map.slot(a2a, 6) == 0);
  CHECK(map.slot(a2a, 7) == 1);
  CHECK(map.slot(act, 7) == 1);
}

TEST_CASE("arena: a buffer of size 0 lies elsewhere and is not checked") {
  Builder b;
  const BufferId x = b.buffer("x"), y = b.buffer("y");
  b.uses("A0", {}, {x, y});
  b.uses("D", {x}, {});
  const Linear linear = b.linear({launch(b.plan, "A0"), launch(b.plan, "D")});
  const Arena arena(b.plan, linear, {0, 256});
  CHECK(arena.bytes() == 256);
  CHECK_THROWS_AS(arena.offset(x, 0), InternalError);
}
