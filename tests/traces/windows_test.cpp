#include "traces/windows.h"

#include <doctest/doctest.h>

#include <map>

#include "sim/sched/notation.h"
#include "sim/sched/schedule.h"
#include "tests/fakes/small_plans.h"
#include "tests/traces/trace_builder.h"

using namespace dbo;
using dbo::testing::TraceBuilder;
using fakes::small_spec;

namespace {

/// "name x planned" of each window, in order of first occurrence.
std::vector<std::string> windows_of(const Plan& plan) {
  const PlannedWindows planned = planned_windows(plan, linearise(plan, 0));
  std::vector<int> count(planned.names.size());
  for (const PlannedWindow& window : planned.windows) ++count[window.name];
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < count.size(); ++i) rows.push_back(planned.names[i] + " x" + std::to_string(count[i]));
  return rows;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("windows: the four of the low-latency schedule; the last combine has only the shared expert") {
  CHECK(windows_of(make_plan("vllm-ll", small_spec(3, 2, Transport::Ll))) ==
        Names{"D[0]|A[1] x3", "D[1]|MLP[0] x3", "C[0]|S[0]+MLP[1] x3", "C[1]|S[1]+A[0]' x2", "C[1]|S[1] x1"});
}

TEST_CASE("windows: the high-throughput schedule, whose dispatch is ordered by events") {
  // Compute: A0 A1 w(D0)M0 w(D1)M1 S0 S1 w(copy0)A0' ...; comm: w(A0)D0 w(A1)D1 w(M0)C0 copy0 w(M1)C1 copy1.
  // C0 runs beside M1 S0 S1 (A0' waits for its copy), C1 beside S0 S1 and the next A0 (A1' waits for its copy).
  CHECK(windows_of(make_plan("vllm-ht", small_spec(3, 2, Transport::Nccl))) ==
        Names{"D[0]|A[1] x3", "D[1]|MLP[0] x3", "C[0]|MLP[1]+S[0]+S[1] x3", "C[1]|S[0]+S[1]+A[0]' x2",
              "C[1]|S[0]+S[1] x1"});
}

TEST_CASE("windows: one batch overlaps its combine with its shared expert and nothing else") {
  CHECK(windows_of(make_plan("sequential", small_spec(2, 1, Transport::Ll))) == Names{"C[0]|S[0] x2"});
}

TEST_CASE("windows: attention halves are named apart when only one of them is inside") {
  const Plan plan = make_plan("deepseek-decode", small_spec(4, 2, Transport::Ll));
  const Names rows = windows_of(plan);
  const auto has = [&](std::string_view name) {
    return std::any_of(rows.begin(), rows.end(), [&](const std::string& row) { return row.rfind(name, 0) == 0; });
  };
  CHECK(has("C[0]|A1[1] x"));
  CHECK(has("C[1]|A1[0]' x"));
}

TEST_CASE("windows: leading dense layers, embedding and head do not change the names of the steady ones") {
  ScheduleSpec spec = small_spec(6, 2, Transport::Ll);
  spec.shape.dense_layers = 3;
  spec.embed_and_head = true;
  CHECK(windows_of(make_plan("vllm-ll", spec)) ==
        Names{"D[0]|A[1] x3", "D[1]|MLP[0] x3", "C[0]|S[0]+MLP[1] x3", "C[1]|S[1]+A[0]' x2", "C[1]|S[1] x1"});
}

TEST_CASE("windows: shares are measured on the wire's slice, whatever compute covers it") {
  // compute |A[1] 0..100           |D.recv 100..110, waited 0|MLP 110..150|
  // wire    |-D[0] 20..80-|  hidden 60          |-D[1] 110..170-| hidden 40, exposed 20
  const Plan plan = make_plan("vllm-ll", small_spec(1, 2, Transport::Ll));
  const PlannedWindows planned = planned_windows(plan, linearise(plan, 0));
  TraceBuilder builder;
  builder.op(OpKind::A1, 1, 0, 0, 100);
  builder.op(OpKind::MLP, 0, 0, 110, 150);
  builder.op(OpKind::DWire, 0, 0, 20, 80);
  builder.op(OpKind::DWire, 1, 0, 110, 170);
  const auto shares = window_shares(planned, builder.trace(), 0);
  REQUIRE(shares.size() == 4);
  CHECK(shares[0].name == "D[0]|A[1]");
  CHECK(shares[0].planned == 1);
  CHECK(shares[0].measured == 1);
  CHECK(shares[0].hidden == Ns{60});
  CHECK(shares[0].exposed == Ns{0});
  CHECK(shares[1].hidden == Ns{40});
  CHECK(shares[1].exposed == Ns{20});
  CHECK(shares[2].measured == 0);
}

TEST_CASE("windows: without a wire's slice a transfer lasts from the send's end to the arrival at the receive") {
  const Plan plan = make_plan("vllm-ll", small_spec(1, 2, Transport::Ll));
  const PlannedWindows planned = planned_windows(plan, linearise(plan, 0));
  TraceBuilder builder;
  builder.op(OpKind::DSend, 0, 0, 0, 5);
  builder.op(OpKind::A1, 1, 0, 5, 60);
  builder.at_index(builder.op(OpKind::DRecv, 0, 0, 60, 90)).waited = Ns{20};
  const auto shares = window_shares(planned, builder.trace(), 0);
  CHECK(shares[0].hidden == Ns{55});
  CHECK(shares[0].exposed == Ns{20});
}
