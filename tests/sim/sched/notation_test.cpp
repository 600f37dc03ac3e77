#include "sim/sched/notation.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/plan/linearise.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::small_spec;

namespace {

std::string row_text(const std::vector<NotedOp>& row) {
  std::string text;
  for (const NotedOp& op : row) text += (text.empty() ? "" : " ") + noted_name(op);
  return text;
}

std::string error_of(const Notation& notation, int ubatches, Transport transport) {
  try {
    make_plan(notation, small_spec(3, ubatches, transport));
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}

const char* const kSerialOrder = "A0_0 A1_0 D_0 MLP_0 C_0 S_0";

}  // namespace

TEST_CASE("notation: words may use digits or subscripts, primes, and any separator of the field") {
  CHECK(row_text(parse_row("A0_0–A1₁ | M_1, D.send_0'-C.copy₁₂′′")) == "A0₀ A1₁ MLP₁ D.send₀′ C.copy₁₂′′");
  CHECK(parse_row("").empty());
  CHECK_THROWS_WITH_AS(parse_row("A0"), "\"A0\" names no ubatch; write for example A0_0", InputError);
  CHECK_THROWS_WITH_AS(parse_row("A2_0"),
                       "unknown op \"A2\" in \"A2_0\" (known: A0, A1, D, D.send, D.recv, MLP, S, C, C.send, C.recv, "
                       "C.copy; did you mean "
                       "\"A0\"?)",
                       InputError);
}

TEST_CASE("notation: built-in schedules print as the field writes them") {
  // vLLM's design note with the ubatch numbers swapped: windows A | M | S M | S A'.
  const Notation ll = notation_of(make_plan("vllm-ll", small_spec(4, 2, Transport::Ll)));
  CHECK(ll.order ==
        "D.send₀ A0₁ A1₁ D.recv₀ D.send₁ MLP₀ D.recv₁ C.send₀ S₀ MLP₁ C.recv₀ C.send₁ S₁ A0₀′ A1₀′ C.recv₁");
  CHECK(ll.compute == "A0₁ A1₁ | MLP₀ | S₀ MLP₁ | S₁ A0₀′ A1₀′");
  CHECK(ll.comm == "D₀ | D₁ | C₀ | C₁");
  const Notation ht = notation_of(make_plan("vllm-ht", small_spec(4, 2, Transport::Ht)));
  CHECK(ht.compute == "A0₀ A1₀ A0₁ A1₁ MLP₀ MLP₁ S₀ S₁");
  CHECK(ht.comm == "D₀ D₁ C₀ C.copy₀ C₁ C.copy₁");
  const Notation deepseek = notation_of(make_plan("deepseek-prefill", small_spec(4, 2, Transport::LsaHt)));
  // ATTN1 SHARED0 ATTN0 MLP1 MLP0 SHARED1 beside COMBINE0 DISPATCH1 DISPATCH0 COMBINE1, begun at ATTN0.
  CHECK(deepseek.compute == "A0₀ A1₀ MLP₁ MLP₀ S₁ A0₁′ A1₁′ S₀");
  CHECK(deepseek.comm == "D₁ D₀ C₁ C₀");
}

TEST_CASE("notation: the printed notation of a built-in schedule makes a plan with the same period") {
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 4);
    const auto ubatches = static_cast<int>(plan.loads[0].ubatches.size());
    const Plan again = make_plan(notation_of(plan), small_spec(4, ubatches, plan.transport));
    CHECK_MESSAGE(row_text(steady_period(again)) == row_text(steady_period(plan)), std::string(schedule.name));
    CHECK(linearise(again, 0).problems.empty());
    CHECK(linearise(again, 0).ops.size() == linearise(plan, 0).ops.size());
  }
}

TEST_CASE("notation: without primes the layers are inferred from what each op needs") {
  // vLLM's own text: ubatch 1 leads, its attention for the next layer is written at the end.
  const Notation doc = {"A0₀–A1₀ | M₁ | S₁–M₀ | S₀–A0₁–A1₁", "D₁ | D₀ | C₁ | C₀",
                        "D.send_1 A0_0 A1_0 D.recv_1 D.send_0 MLP_1 D.recv_0 C.send_1 S_1 MLP_0 C.recv_1 C.send_0 S_0 "
                        "A0_1 A1_1 C.recv_0"};
  CHECK(is_low_latency(doc));
  CHECK(ubatches_of(doc) == 2);
  const Plan plan = make_plan(doc, small_spec(4, 2, Transport::Ll));
  CHECK(row_text(steady_period(plan)) ==
        "D.send₁ A0₀ A1₀ D.recv₁ D.send₀ MLP₁ D.recv₀ C.send₁ S₁ MLP₀ C.recv₁ C.send₀ S₀ A0₁′ A1₁′ C.recv₀");
  CHECK(linearise(plan, 0).problems.empty());
}

TEST_CASE("notation: waits stand just before the consumer of a data edge that crosses lanes, and nowhere else") {
  const Plan plan = make_plan(Notation{"", "", kSerialOrder}, small_spec(3, 1, Transport::LsaHt));
  const Program& moe = plan.blocks[0].body;
  std::string text;
  for (const Instruction& i : moe) {
    if (i.verb == Verb::Launch) text += plan.ops[i.op.op].name + " ";
    if (i.verb == Verb::Wait) text += "wait:" + plan.events[i.event] + "@" + plan.lanes[i.lane] + " ";
    if (i.verb == Verb::Record) text += "record:" + plan.events[i.event] + "@" + plan.lanes[i.lane] + " ";
  }
  CHECK(text ==
        "wait:C_0@compute A0 A1 record:A1_0@compute wait:A1_0@comm D record:D_0@comm wait:D_0@compute MLP "
        "record:MLP_0@compute "
        "wait:MLP_0@comm C record:C_0@comm S ");
}

TEST_CASE("notation: what is missing, twice, out of order or on two lanes is said") {
  CHECK(error_of({"", "", kSerialOrder}, 1, Transport::Ht) == "no error");
  CHECK(error_of({"", "", "A0_0 A1_0 D_0 MLP_0 C_0"}, 1, Transport::Ht) ==
        "order has S₀ not at all; a period has each op of each ubatch once");
  CHECK(error_of({"", "", "A0_0 A0_0 A1_0 D_0 MLP_0 C_0 S_0"}, 1, Transport::Ht) ==
        "order has A0₀ more than once; a period has each op of each ubatch once");
  CHECK(error_of({"", "", "A0_0' A1_0 D_0 MLP_0 C_0 S_0"}, 1, Transport::Ht) == "A0₀′ comes before C₀, which it needs");
  CHECK(error_of({"", "", "A0_0 A1_0 D_0 D.send_0 MLP_0 C_0 S_0"}, 1, Transport::Ht).find("D.recv₀ not at all") !=
        std::string::npos);
  CHECK(error_of({"A1_0 A0_0 S_0 MLP_0", "", kSerialOrder}, 1, Transport::Ht) ==
        "compute lists its ops in another order than order does");
  CHECK(error_of({"A0_0 A1_0 MLP_0 C_0 S_0", "D_0 C_0", kSerialOrder}, 1, Transport::Ht) ==
        "C is on compute and on comm; an op has one lane");
  CHECK(error_of({"", "", "A0_1 A1_1 D_1 MLP_1 C_1 S_1"}, 2, Transport::Ht) ==
        "order has A0₀ not at all; a period has each op of each ubatch once");
}
