#include "traces/overlap.h"

#include <doctest/doctest.h>

#include "tests/traces/trace_builder.h"

using namespace dbo;
using dbo::testing::TraceBuilder;

TEST_CASE("overlap: set arithmetic on half-open intervals") {
  const Intervals a = unite({{10, 20}, {0, 5}, {5, 7}, {18, 30}, {40, 40}});
  CHECK(a == Intervals{{0, 7}, {10, 30}});
  CHECK(total(a) == 27);
  const Intervals b = unite({{3, 12}, {25, 35}});
  CHECK(intersect(a, b) == Intervals{{3, 7}, {10, 12}, {25, 30}});
  CHECK(subtract(a, b) == Intervals{{0, 3}, {12, 25}});
  CHECK(subtract(b, a) == Intervals{{7, 10}, {30, 35}});
  CHECK(covered(a, {5, 11}) == 3);
  CHECK(covered(a, {7, 10}) == 0);
  CHECK(covered({}, {0, 9}) == 0);
}

TEST_CASE("overlap: a hidden communication is not exposed, whatever else runs") {
  // compute |---A1 0..100---|
  // comm      |-D 10..90-|          one compute op, one comm op inside it: nothing is exposed
  TraceBuilder builder;
  builder.op(OpKind::A1, 0, 0, 0, 100);
  builder.op(OpKind::D, 1, 0, 10, 90);
  CHECK(exposed_communication(builder.trace(), 0) == Ns{0});
  builder.op(OpKind::C, 1, 0, 100, 130);
  CHECK(exposed_communication(builder.trace(), 0) == Ns{30});
}

TEST_CASE("overlap: exposed communication counts wires and the waiting part of receives, not sends and unpacking") {
  // compute |A1 0..60|send 60..65|MLP 65..100|recv 100..140, waited 25|
  // wire                         |--65...125--|
  // Wire 65..125 and wait 100..125 leave 100..125 uncovered.
  TraceBuilder builder;
  builder.op(OpKind::A1, 0, 0, 0, 60);
  builder.op(OpKind::DSend, 0, 0, 60, 65);
  builder.op(OpKind::MLP, 1, 0, 65, 100);
  builder.at_index(builder.op(OpKind::DRecv, 0, 0, 100, 140)).waited = Ns{25};
  builder.op(OpKind::DWire, 0, 0, 65, 125);
  CHECK(communication_intervals(builder.trace(), 0) == Intervals{{65, 125}});
  CHECK(exposed_communication(builder.trace(), 0) == Ns{25});
  CHECK(exposed_communication(builder.trace(), 1) == Ns{0});
}

TEST_CASE("overlap: an op of no known kind is what its lane is for") {
  // compute   |OTHER 0..40|            |OTHER 80..90|
  // comm            |OTHER 30..100|
  // compute 2              |OTHER 60..70|
  // host      |OTHER 0..200|           left exposed: 40..60, 70..80, 90..100
  TraceBuilder builder;
  builder.trace().lanes = {"compute", "comm", "compute 2", "host"};
  builder.foreign("gemm", 0, 40);
  builder.foreign("gemm", 80, 90);
  builder.foreign("all_to_all", 30, 100, 0, 1);
  builder.foreign("copy_kernel", 60, 70, 0, 2);
  builder.foreign("host work", 0, 200, 0, 3);
  CHECK(exposed_communication(builder.trace(), 0) == Ns{40});
}
