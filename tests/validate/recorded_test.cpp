// What a validation on two GPUs left behind, read and judged without one.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "sim/plan/plan_json.h"
#include "traces/compare.h"
#include "traces/report_html.h"
#include "validate/fault.h"
#include "validate/starvation.h"

using namespace dbo;

namespace {

std::string file(const std::string& name) {
  return std::string(DBO_TEST_DATA) + "/recorded-h200-v3-ep64/" + name;
}

CompareInput recorded() {
  CompareFiles files;
  files.plan = file("graph.plan.json");
  files.predicted = file("graph.predicted.trace.json.gz");
  files.measured = file("graph.measured.trace.json.gz");
  files.measured_baseline = file("graph.unsplit.measured.trace.json.gz");
  return load_compare_input(files);
}

CompareOptions event_slack() {
  CompareOptions options;
  options.lane_slack = Ns{3'000};
  return options;
}

}  // namespace

TEST_CASE("recorded: a replay on GPUs kept the planned order, gained, and is within its prediction's tolerance") {
  const CompareInput input = recorded();
  REQUIRE(input.plan);
  CHECK(input.plan->transport == Transport::LsaLl);
  CHECK(input.measured.metadata.find("device")->as_string() == "NVIDIA H200");
  const Comparison c = compare_traces(input, event_slack());
  CHECK(c.same_plan);
  CHECK(c.order.empty());
  CHECK(c.findings.empty());
  CHECK_FALSE(c.divergence);
  // Rank 0 alone: every op of the plan once.
  CHECK(c.ranks == std::vector<std::int32_t>{0});
  CHECK(c.only_measured == 0);
  REQUIRE(c.baseline_step);
  CHECK(c.measured_step < *c.baseline_step);
  // The traced step: events around 1000 ops add some 5 % to what was predicted 3 % short.
  CHECK(std::abs(c.step_error()) < 0.10);
  for (const WindowRow& row : c.windows) {
    CAPTURE(row.name);
    REQUIRE(row.share());
    CHECK(std::abs(*row.share() - *row.predicted_share()) < 0.10);
  }
}

TEST_CASE("recorded: the report of a replay shows both traces, the windows and what is responsible") {
  const CompareInput input = recorded();
  ReportOptions options;
  options.title = "deepseek-v3, EP64";
  options.assumptions = {"wires take the time the cost model gives cx7-400g"};
  const std::string html = report_html(input, compare_traces(input, event_slack()), options);
  for (const char* const part : {"<!DOCTYPE html>", "deepseek-v3, EP64", "D[1]|MLP[0]", "C[0]|S[0]+MLP[1]",
                                 "wires take the time the cost model gives cx7-400g", "</html>"}) {
    CAPTURE(part);
    CHECK(html.find(part) != std::string::npos);
  }
  // The same bytes whenever it is made.
  CHECK(html == report_html(input, compare_traces(input, event_slack()), options));
}

TEST_CASE("recorded: a measured step that is tampered with is found under the fault's name") {
  CompareInput input = recorded();
  const Linear linear = linearise(*input.plan, 0);
  const auto codes = [&] {
    std::string names;
    for (const NamedFinding& finding : compare_traces(input, event_slack()).findings) names += finding.code + " ";
    return names;
  };
  // The hook of a middle layer never ran.
  const auto lost = validate::plan_fault("F7", *input.plan, linear, Ns{}).dropped_ops.at(0);
  const std::vector<TraceOp> all = input.measured.ops;
  input.measured.flows.clear();  // they name ops by their place
  // As replays say now: every op has its events, however short it is.
  input.measured.metadata.set("op_starts", "lanes");
  CHECK(codes() == "");
  std::erase_if(input.measured.ops, [&](const TraceOp& op) { return op.plan_op == lost; });
  REQUIRE(input.measured.ops.size() + 1 == all.size());
  CHECK(codes() == "F7 ");
  // The shared expert of a middle layer on the other lane.
  input.measured.ops = all;
  const auto moved = validate::plan_fault("F4", *input.plan, linear, Ns{}).moved_op;
  REQUIRE(moved);
  if (input.measured.lanes.size() < 2) input.measured.lanes.emplace_back("comm");  // a trace has the lanes it uses
  for (TraceOp& op : input.measured.ops)
    if (op.plan_op == *moved) op.lane = kCommLane;
  CHECK(codes() == "F4 ");
}
