#include "traces/metrics.h"

#include <doctest/doctest.h>

#include "tests/traces/kineto_builder.h"
#include "tests/traces/trace_builder.h"

using namespace dbo;
using dbo::testing::KinetoBuilder;
using dbo::testing::TraceBuilder;

namespace {

RankMetrics only_rank(const KinetoBuilder& builder) {
  const auto all = measure(measured_slices(classify(builder.read(), KernelRules())));
  REQUIRE(all.size() == 1);
  return all[0];
}

}  // namespace

TEST_CASE("metrics: overlap, breakdown and exposure worked by hand") {
  // us       0    10   20   30   40   50   60   70   80
  // compute  |gemm 0..30|       |gemm 45..60|
  // comm          |disp 20......50|           |comb 70..80|     memcpy 62..66 on a third stream
  // C = 30 + 10 = 40, P = 30 + 15 = 45, both = 10 + 5 = 15; busy = [0,60) + [62,66) + [70,80) = 74, span 80.
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 30);
  builder.kernel("deep_ep::intranode::dispatch", 16, 20, 30);
  builder.kernel("gemm", 7, 45, 15);
  builder.kernel("Memcpy DtoD", 9, 62, 4);
  builder.kernel("deep_ep::intranode::combine", 16, 70, 10);
  const RankMetrics m = only_rank(builder);
  CHECK(m.overlap.comm == Ns{40'000});
  CHECK(m.overlap.compute == Ns{45'000});
  CHECK(m.overlap.both == Ns{15'000});
  CHECK(*m.overlap.comm_percent() == doctest::Approx(37.5));
  CHECK(*m.overlap.compute_percent() == doctest::Approx(100.0 / 3));
  CHECK(m.overlap.exposed() == Ns{25'000});
  CHECK(m.temporal.span == Ns{80'000});
  CHECK(m.temporal.idle == Ns{6'000});
  CHECK(m.temporal.compute == Ns{45'000});
  CHECK(m.temporal.rest == Ns{29'000});
}

TEST_CASE("metrics: NCCL kernels under any name are communication, and without any there is no percentage") {
  for (const char* name :
       {"ncclKernel_AllReduce_RING_LL", "ncclDevKernel_AllToAll(dispatch ub0 L3)", "deep_ep::x::y"}) {
    KinetoBuilder builder;
    builder.kernel("gemm", 7, 0, 10);
    builder.kernel(name, 16, 0, 10);
    CHECK(*only_rank(builder).overlap.comm_percent() == doctest::Approx(100.0));
  }
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 10);
  CHECK_FALSE(only_rank(builder).overlap.comm_percent());
}

TEST_CASE("metrics: collectives on the compute stream overlap nothing") {
  KinetoBuilder builder;
  for (int i = 0; i < 4; ++i) {
    builder.kernel("gemm", 7, i * 100, 50);
    builder.kernel("deep_ep::intranode::dispatch", 7, i * 100 + 50, 50);
  }
  const RankMetrics m = only_rank(builder);
  CHECK(*m.overlap.comm_percent() == doctest::Approx(0.0));
  CHECK(m.overlap.exposed() == Ns{200'000});
}

TEST_CASE("metrics: idle time before a kernel is the host's when it was launched late, else the kernel's or other") {
  // gemm ends 10; the next is launched at 12 and starts at 15 (host), one launched long before starts 20 us late
  // (other).
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 10, 0);
  builder.kernel("gemm", 7, 15, 10, 12);
  builder.kernel("gemm", 7, 45, 5, 3);
  const RankMetrics m = only_rank(builder);
  REQUIRE(m.idle.size() == 1);
  CHECK(m.idle[0].host_wait == Ns{5'000});
  CHECK(m.idle[0].kernel_wait == Ns{0});
  CHECK(m.idle[0].other == Ns{20'000});
  // Below HTA's 30 ns two kernels follow each other at once.
  TraceBuilder own;
  own.op(OpKind::A0, 0, 0, 0, 100);
  own.op(OpKind::A1, 0, 0, 129, 200);
  own.op(OpKind::MLP, 0, 0, 230, 300);
  const auto all = measure(measured_slices(own.trace()));
  CHECK(all[0].idle[0].kernel_wait == Ns{29});
  CHECK(all[0].idle[0].other == Ns{30});
}

TEST_CASE("metrics: bubbles are the gaps of a lane inside the rank's span") {
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 10, 10);
  builder.kernel("gemm", 7, 50, 10);
  builder.kernel("deep_ep::intranode::dispatch", 16, 0, 100);
  const RankMetrics m = only_rank(builder);
  REQUIRE(m.bubbles.size() == 2);
  CHECK(m.bubbles[0].busy == Ns{20'000});
  CHECK(m.bubbles[0].count == 3);            // 0..10, 20..50, 60..100
  CHECK(m.bubbles[0].above_threshold == 2);  // longer than 20 us
  CHECK(m.bubbles[0].idle_above_threshold == Ns{70'000});
  CHECK(m.bubbles[0].longest == Ns{40'000});
  CHECK(m.bubbles[1].count == 0);
}

TEST_CASE("metrics: kernels that overlap on a stream count once") {
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 20);
  builder.kernel("gemm", 7, 10, 20);
  builder.kernel("gemm", 7, 12, 2);
  const RankMetrics m = only_rank(builder);
  CHECK(m.overlap.compute == Ns{30'000});
  CHECK(m.temporal.idle == Ns{0});
}

TEST_CASE("metrics: low-latency transfers are hidden but for the time their receives waited") {
  // D0 under way 10..60 (the receive reached its head at 40 and waited 20), C0 under way 70..100, not waited for.
  TraceBuilder builder;
  builder.op(OpKind::DSend, 0, 0, 0, 10);
  builder.op(OpKind::A1, 1, 0, 10, 40);
  builder.at_index(builder.op(OpKind::DRecv, 0, 0, 40, 65)).waited = Ns{20};
  builder.op(OpKind::CSend, 0, 0, 65, 70);
  builder.op(OpKind::CRecv, 0, 0, 100, 105);
  const auto flight = in_flight(builder.trace(), 0, false);
  REQUIRE(flight);
  CHECK(flight->transfers == 2);
  CHECK(flight->under_way == Ns{80});
  CHECK(flight->waited == Ns{20});
  CHECK(*flight->hidden_percent() == doctest::Approx(75.0));
  TraceBuilder kernels;
  kernels.op(OpKind::D, 0, 0, 0, 10);
  CHECK_FALSE(in_flight(kernels.trace(), 0, false));
}

TEST_CASE("metrics: statistics are nearest-rank") {
  const OpStatistics s = statistics_of("x", {5, 1, 4, 2, 3});
  CHECK(s.count == 5);
  CHECK(s.total == Ns{15});
  CHECK(s.mean == Ns{3});
  CHECK(s.median == Ns{3});
  CHECK(s.p10 == Ns{1});
  CHECK(s.p90 == Ns{5});
  CHECK(statistics_of("y", {7}).p90 == Ns{7});
}
