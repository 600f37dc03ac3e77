// Real traces, which are not part of the repository: DBO_SAMPLE_TRACES names a folder that holds them. Without it the
// test is skipped.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "sim/base/files.h"
#include "sim/cost/fixed.h"
#include "sim/engine/engine.h"
#include "sim/plan/plan_json.h"
#include "tests/traces/temp_dir.h"
#include "traces/found_order.h"
#include "traces/inspect.h"

using namespace dbo;

namespace {

std::string folder() {
  const char* path = std::getenv("DBO_SAMPLE_TRACES");
  return path == nullptr ? std::string() : std::string(path);
}

Ns replay(const FoundOrder& order) {
  const dbo::testing::TempDir dir;
  write_file(dir.file("p.json"), plan_text(order.plan));
  write_file(dir.file("c.json"), pretty_json(found_costs(order)));
  const Plan plan = load_plan(dir.file("p.json"));
  return Ns{run_engine(plan, costs_from_file(plan, dir.file("c.json"))).step()};
}

}  // namespace

TEST_CASE("sample_traces: a training step with two-batch overlap on 64 H800") {
  const std::string path = folder() + "/deepseek-train.json.gz";
  if (!std::filesystem::exists(path)) return;
  const Inspection it = inspect_trace(path);
  CHECK(it.classified.raw.events == 14240);
  CHECK(it.classified.info.size() == 983);
  CHECK(it.unknown == 0);
  REQUIRE(it.classified.streams.size() == 3);
  // Stream 7 computes, 23 runs weight-gradient GEMMs, 27 communicates.
  CHECK(it.classified.streams[0].name == "stream 7");
  CHECK(it.classified.streams[0].lane == "compute");
  CHECK(it.classified.streams[1].lane == "compute 2");
  CHECK(it.classified.streams[2].lane == "comm");
  CHECK(it.classified.layers == 4);
  REQUIRE(it.ranks.size() == 1);
  const RankMetrics& m = it.ranks[0];
  CHECK(m.temporal.span == Ns{129'012'000});
  // 114,521 us on stream 27 less 1,081 us of casts that run there.
  CHECK(m.overlap.comm == Ns{113'440'000});
  CHECK(*m.overlap.comm_percent() == doctest::Approx(96.31).epsilon(0.0001));
  // By direction: dispatches of the forward pass and the backward combine, which runs a dispatch kernel, are four each.
  for (const char* op : {"D, dispatch(F)", "D, combine(B)", "C, combine(F)", "C, dispatch(B)", "MLP, mlp(F)"}) {
    const auto at = std::find_if(it.op_stats.begin(), it.op_stats.end(), [&](const auto& s) { return s.name == op; });
    REQUIRE_MESSAGE(at != it.op_stats.end(), op);
    CHECK_MESSAGE(at->count == 4, op);
  }

  const FoundOrder order = find_order(it.classified);
  const double error =
      static_cast<double>((replay(order) - order.span).count()) / static_cast<double>(order.span.count());
  CHECK_MESSAGE(std::abs(error) < 0.01, "the replay is off by " << error * 100 << " %");
  OrderSearchOptions no_host;
  no_host.host = false;
  CHECK(replay(find_order(it.classified, no_host)) > order.span - order.span / 100);
}

TEST_CASE("sample_traces: three streams with recorded events") {
  const std::string path = folder() + "/pytorch-two-streams.json.gz";
  if (!std::filesystem::exists(path)) return;
  const Inspection it = inspect_trace(path);
  CHECK(it.classified.info.size() == 6);
  CHECK(it.classified.streams.size() == 3);
  CHECK(it.ranks[0].overlap.compute == Ns{369'000});
  CHECK_FALSE(it.ranks[0].overlap.comm_percent());
  const FoundOrder order = find_order(it.classified);
  CHECK(std::count_if(order.edges.begin(), order.edges.end(),
                      [](const FoundEdge& edge) { return edge.source == FoundEdge::Source::Sync; }) == 1);
  const Ns off = replay(order) - order.span;
  CHECK(std::abs(static_cast<double>(off.count())) < 0.01 * static_cast<double>(order.span.count()));
}

int main(int argc, char** argv) {
  if (folder().empty()) {
    std::puts("skipped: DBO_SAMPLE_TRACES names no folder with real traces");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
