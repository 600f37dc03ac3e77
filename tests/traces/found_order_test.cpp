#include "traces/found_order.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/cost/fixed.h"
#include "sim/engine/engine.h"
#include "sim/plan/plan_json.h"
#include "tests/traces/kineto_builder.h"
#include "tests/traces/temp_dir.h"

using namespace dbo;
using dbo::testing::KinetoBuilder;

namespace {

FoundOrder order_of(const KinetoBuilder& builder, OrderSearchOptions options = {}) {
  return find_order(classify(builder.read(), KernelRules()), options);
}

/// Through the files, as `dbo simulate PLAN --costs COSTS` would.
Ns replay(const FoundOrder& order) {
  const dbo::testing::TempDir dir;
  write_file(dir.file("p.json"), plan_text(order.plan));
  write_file(dir.file("c.json"), pretty_json(found_costs(order)));
  const Plan plan = load_plan(dir.file("p.json"));
  return Ns{run_engine(plan, costs_from_file(plan, dir.file("c.json"))).step()};
}

std::string edges_of(const FoundOrder& order) {
  std::string text;
  for (const FoundEdge& edge : order.edges) {
    const char* names[] = {"sync", "call", "timing"};
    text +=
        std::to_string(edge.from) + ">" + std::to_string(edge.to) + " " + names[static_cast<int>(edge.source)] + ";";
  }
  return text;
}

/// Two streams that wait for each other, n times: 0..100 on 7, then 102..250 on 16 beside 102..180 on 7, then 252..298.
KinetoBuilder ping_pong(int n) {
  KinetoBuilder builder;
  for (int i = 0; i < n; ++i) {
    const int t = i * 300;
    builder.kernel("gemm", 7, t, 100, t / 10);
    builder.kernel("deep_ep::intranode::dispatch", 16, t + 102, 148, t / 10 + 2);
    builder.kernel("gemm", 7, t + 102, 78, t / 10 + 4);
    builder.kernel("grouped_gemm", 7, t + 252, 46, t / 10 + 6);  // waits for the dispatch
  }
  return builder;
}

}  // namespace

TEST_CASE("found_order: tight starts after idle time are edges; a replay takes the time of the trace") {
  const FoundOrder order = order_of(ping_pong(20));
  CHECK(edges_of(order).substr(0, 44) == "0>2 timing;2>3 timing;4>6 timing;6>7 timing;");
  CHECK(order.plan.lanes == std::vector<std::string>{"compute", "comm"});
  CHECK(order.node_gap == Ns{2'000});
  CHECK(order.lane_gap == Ns{0});  // nothing beyond the gap of any two kernels
  CHECK(order.span == Ns{(19 * 300 + 298) * 1000});
  // The comm lane's first op has no gap before it, which the trace cannot tell from one.
  CHECK(replay(order) == order.span - Ns{2'000});
  CHECK(order.host_work.empty());
}

TEST_CASE("found_order: the plan holds order only; its durations are the slices'") {
  const FoundOrder order = order_of(ping_pong(2));
  CHECK(plan_text(order.plan).find("1700000000") == std::string::npos);
  REQUIRE(order.launches.size() == 8);
  CHECK(order.launches[2] == Ns{148'000});
  CHECK(pretty_json(found_costs(order)).find("start") == std::string::npos);
}

TEST_CASE("found_order: a recorded event and the stream that waits for it are an edge, tight or not") {
  // Stream 24 waits for an event recorded on 20 behind its first kernel; it starts much later, so timing says nothing.
  KinetoBuilder builder;
  builder.kernel("gemm", 20, 0, 100, 0);
  const int record = builder.correlation();
  builder.sync(24, 20, record, 500);
  builder.kernel("gemm", 20, 102, 10, 2);
  builder.kernel("gemm", 24, 900, 50, 4);
  OrderSearchOptions options;
  options.host = false;
  const FoundOrder order = order_of(builder, options);
  CHECK(edges_of(order) == "0>2 sync;");
}

TEST_CASE("found_order: wait calls of the host are edges where the times allow them") {
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 100, 0);
  builder.call("cudaStreamWaitEvent", 5, 1);
  builder.kernel("deep_ep::intranode::dispatch", 16, 140, 60, 8);  // waits for the gemm, starts late for other reasons
  builder.kernel("gemm", 7, 102, 78, 10);
  builder.call("cudaStreamWaitEvent", 12, 1);
  builder.kernel("gemm", 7, 182, 5, 14);  // began before the dispatch was over: it cannot have waited for it
  CHECK(edges_of(order_of(builder)) == "0>2 call;");
}

TEST_CASE("found_order: a kernel that took over another's SMs waited for it, though it began a little earlier") {
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 1000, 0);
  builder.kernel("gemm", 23, 980, 800, 1);  // blocks of both side by side for 20 us
  builder.kernel("gemm", 7, 1760, 500, 2);
  CHECK(edges_of(order_of(builder)) == "0>1 timing;1>2 timing;");
  KinetoBuilder beside;  // overlapping for half its length is running side by side
  beside.kernel("gemm", 7, 0, 100, 0);
  beside.kernel("gemm", 23, 60, 80, 1);
  CHECK(edges_of(order_of(beside)) == "");
}

TEST_CASE("found_order: where the host was late its work is an op of its own") {
  // Three kernels of 10 us, launched every 200 us: the GPU waits for the host.
  KinetoBuilder builder;
  for (int i = 0; i < 3; ++i) builder.kernel("gemm", 7, i * 200 + 5, 10, i * 200);
  const FoundOrder order = order_of(builder);
  REQUIRE(order.host_work.size() == 2);
  CHECK(order.host_work[0].length == Ns{200'000});
  CHECK(order.plan.lanes.back() == "host");
  CHECK(order.span == Ns{410'000});
  CHECK(replay(order) == order.span);
  OrderSearchOptions options;
  options.host = false;
  CHECK(replay(order_of(builder, options)) == Ns{30'000});
}

TEST_CASE("found_order: a host that waited for a kernel goes on when that kernel ends") {
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 1000, 0);
  builder.call("cudaStreamSynchronize", 2, 1003);
  builder.kernel("gemm", 7, 1030, 10, 1025);
  const FoundOrder order = order_of(builder);
  REQUIRE(order.host_work.size() == 1);
  CHECK(order.host_work[0].after == 0);
  CHECK(order.host_work[0].length == Ns{25'000});
}

TEST_CASE("found_order: edges that follow from others are left out") {
  // 16 waits for 7 twice, the second time for a kernel that was over before the first.
  KinetoBuilder builder;
  builder.kernel("gemm", 7, 0, 100, 0);
  builder.kernel("gemm", 7, 102, 100, 1);
  builder.call("cudaStreamWaitEvent", 2, 1);
  builder.kernel("deep_ep::intranode::dispatch", 16, 204, 50, 3);
  builder.call("cudaStreamWaitEvent", 4, 1);
  builder.kernel("deep_ep::intranode::dispatch", 16, 256, 50, 5);
  CHECK(edges_of(order_of(builder)) == "1>2 call;");
}

TEST_CASE("found_order: a rank without slices is an error") {
  OrderSearchOptions options;
  options.rank = 3;
  CHECK_THROWS_WITH_AS(order_of(ping_pong(1), options), "t.json: rank 3 has no slices to make a plan of", InputError);
}
