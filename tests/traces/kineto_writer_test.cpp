#include "traces/kineto_writer.h"

#include <doctest/doctest.h>

#include "tests/traces/simulated.h"
#include "tests/traces/trace_builder.h"
#include "traces/inspect.h"
#include "traces/kineto_check.h"
#include "traces/own_trace.h"
#include "traces/trace_reader.h"

using namespace dbo;
using dbo::testing::simulated;
using dbo::testing::TraceBuilder;
using dbo::testing::worked_costs;

namespace {

/// The trace as a profiler's, without what makes it ours.
RawTrace as_foreign(std::string text) {
  for (std::size_t at = text.find("\"op\": "); at != std::string::npos; at = text.find("\"op\": ", at))
    text.replace(at, 6, "\"po\": ");
  return read_raw_trace_text(text, "k.json");
}

}  // namespace

TEST_CASE("kineto_writer: what it writes is what tools for PyTorch's traces need") {
  for (const char* schedule : {"vllm-ll", "vllm-ht", "sequential", "deepseek-decode"}) {
    const bool high = std::string_view(schedule) == "vllm-ht";
    const Plan plan = make_plan(schedule, fakes::small_spec(3, std::string_view(schedule) == "sequential" ? 1 : 2,
                                                            high ? Transport::Nccl : Transport::LsaLl));
    for (const bool nccl : {true, false}) {
      KinetoOptions options;
      options.nccl_names = nccl;
      options.world_size = 2;
      const std::string text = kineto_trace_text(simulated(plan, worked_costs(!high)), options);
      CHECK(findings_text(check_kineto_trace(text)) == "");
    }
  }
  CHECK(findings_text(check_kineto_trace(kineto_trace_text(Trace{}))) == "");
}

TEST_CASE("kineto_writer: overlap of the exported file, told by kernel names alone, equals our own") {
  const Plan plan = make_plan("vllm-ht", fakes::small_spec(4, 2, Transport::Nccl));
  const Trace trace = simulated(plan, worked_costs(false));
  const auto own = measure(measured_slices(trace));
  const Inspection foreign = inspect_raw(as_foreign(kineto_trace_text(trace)));
  REQUIRE(foreign.ranks.size() == 1);
  CHECK(*foreign.ranks[0].overlap.comm_percent() == doctest::Approx(*own[0].overlap.comm_percent()));
  CHECK(foreign.ranks[0].overlap.comm == own[0].overlap.comm);
  CHECK(foreign.ranks[0].temporal.span == own[0].temporal.span);
  CHECK(foreign.unknown == 0);
  // Under names of our own a tool that looks for NCCL's would find no communication; our rules still do.
  KinetoOptions options;
  options.nccl_names = false;
  const std::string text = kineto_trace_text(trace, options);
  CHECK(text.find("nccl") == text.find("nccl\", \"rank\""));
}

TEST_CASE("kineto_writer: our own reader gets the ops back") {
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(2, 2, Transport::LsaLl));
  const Trace trace = simulated(plan, worked_costs(true));
  const RawTrace raw = read_raw_trace_text(kineto_trace_text(trace), "k.json");
  REQUIRE(raw.own());
  const Trace back = own_trace(raw);
  std::size_t kernels = 0;
  for (const TraceOp& op : trace.ops) kernels += op.rank == 0 && !is_wire(op.kind) ? 1U : 0U;
  CHECK(back.ops.size() == kernels);
  CHECK(back.plan_hash() == plan_hash(plan));
}

TEST_CASE("kineto_writer: event waits are synchronisations that name the stream and the recorded event") {
  TraceBuilder builder;
  const auto a = builder.op(OpKind::A1, 0, 0, 0, 100'000);
  const auto d = builder.op(OpKind::D, 0, 0, 100'000, 160'000);
  builder.flow(a, d);
  const std::string text = kineto_trace_text(builder.trace());
  CHECK(findings_text(check_kineto_trace(text)) == "");
  const RawTrace raw = as_foreign(text);
  REQUIRE(raw.syncs.size() == 1);
  CHECK(raw.syncs[0].stream == 16);
  CHECK(raw.syncs[0].other_stream == 7);
  CHECK(raw.syncs[0].record_correlation == 2);  // calls: launch A1, record, wait, launch D
}

TEST_CASE("kineto_check: broken files are found out") {
  TraceBuilder builder;
  builder.op(OpKind::A1, 0, 0, 0, 100'000);
  builder.op(OpKind::D, 0, 0, 100'000, 160'000);
  const std::string good = kineto_trace_text(builder.trace());
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return findings_text(check_kineto_trace(text));
  };
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"\"rank\": 0", "\"rank\":0"}, "needs \"rank\": N with a blank"},
      {{"\"schemaVersion\"", "\"schemaversion\""}, "no schemaVersion"},
      {{"ProfilerStep#0", "Step"}, "exactly one ProfilerStep"},
      {{"\"cat\": \"kernel\"", "\"cat\": \"kernels\""}, "is none that such tools know"},
      {{"\"device\": 0, \"context\"", "\"device\": 1, \"context\""}, "args.device must be the pid"},
      {{"\"stream\": 7", "\"straem\": 7"}, "without args.stream"},
      {{", \"bp\": \"e\"", ""}, "needs \"bp\": \"e\""},
      {{"\"process_labels\"", "\"process_label\""}, "has no process_labels"},
      {{"\"cat\": \"ac2g\"", "\"cat\": \"flow\""}, "are called ac2g"},
  };
  for (const auto& [change, what] : cases)
    CHECK_MESSAGE(broken(change.first, change.second).find(what) != std::string::npos, what);
}
