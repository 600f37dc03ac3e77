#include "traces/own_trace.h"

#include <doctest/doctest.h>

#include "tests/traces/trace_builder.h"
#include "traces/chrome_writer.h"
#include "traces/trace_reader.h"

using namespace dbo;
using dbo::testing::TraceBuilder;

TEST_CASE("own_trace: what the writer wrote is read back") {
  TraceBuilder builder;
  const auto send = builder.op(OpKind::DSend, 1, 2, 100, 110, 1);
  const auto recv = builder.op(OpKind::DRecv, 1, 2, 105, 300, 3);
  const auto other = builder.foreign("void f<\"x\">()", 7, 8, 1, 1);
  TraceOp& op = builder.at_index(recv);
  op.waited = Ns{42};
  op.plan_op = 9;
  op.bytes = 77;
  op.sms = 20;
  builder.at_index(other).plan_op = 3;
  builder.flow(send, recv, TraceFlow::Kind::Data);
  builder.flow(other, recv);
  builder.trace().counters.push_back({"SMs in use", 3, {{at(5), 132}, {at(6), 0}}});
  builder.trace().metadata.set("plan_hash", "abc");

  const Trace back = own_trace(read_raw_trace_text(chrome_trace_text(builder.trace()), "t"));
  REQUIRE(back.ops.size() == 3);
  CHECK(back.plan_hash() == "abc");
  // By rank, lane, start: rank 1 compute, rank 1 comm, rank 3.
  CHECK(back.ops[0].kind == OpKind::DSend);
  CHECK(back.lanes[back.ops[0].lane] == "compute");
  CHECK(back.ops[1].kind == OpKind::Other);
  CHECK(back.names[back.ops[1].name] == "void f<\"x\">()");
  CHECK(back.ops[1].plan_op == 3);
  const TraceOp& got = back.ops[2];
  CHECK(got.rank == 3);
  CHECK(got.layer == 2);
  CHECK(got.ubatch == 1);
  CHECK(got.start == at(105));
  CHECK(got.end == at(300));
  CHECK(got.waited == Ns{42});
  CHECK(got.plan_op == 9);
  CHECK(got.tokens == 64);
  CHECK(got.bytes == 77);
  CHECK(got.sms == 20);
  REQUIRE(back.flows.size() == 2);
  CHECK(back.flows[0].kind == TraceFlow::Kind::Data);
  CHECK(back.flows[0].from == 0);
  CHECK(back.flows[0].to == 2);
  CHECK(back.flows[1].from == 1);
  REQUIRE(back.counters.size() == 1);
  CHECK(back.counters[0].rank == 3);
  CHECK(back.counters[0].points == builder.trace().counters[0].points);
}

TEST_CASE("own_trace: writing what was read gives the same bytes") {
  TraceBuilder builder;
  for (int rank = 0; rank < 2; ++rank)
    for (int i = 0; i < 50; ++i) {
      const auto from = builder.op(OpKind::A1, i % 2, i, i * 100, i * 100 + 60, rank);
      const auto to = builder.op(OpKind::D, i % 2, i, i * 100 + 70, i * 100 + 130, rank);
      builder.flow(from, to);
    }
  builder.trace().metadata.set("plan_hash", "abc");
  const std::string text = chrome_trace_text(own_trace(read_raw_trace_text(chrome_trace_text(builder.trace()), "t")));
  CHECK(chrome_trace_text(own_trace(read_raw_trace_text(text, "t"))) == text);
}
