// Defects that users of profilers and viewers reported, as inputs: each whole kind, not only the case of the report.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "tests/traces/kineto_builder.h"
#include "tests/traces/simulated.h"
#include "tests/traces/trace_builder.h"
#include "traces/chrome_check.h"
#include "traces/chrome_writer.h"
#include "traces/inspect.h"
#include "traces/windows.h"

using namespace dbo;
using dbo::testing::compare_input;
using dbo::testing::KinetoBuilder;
using dbo::testing::simulated;
using dbo::testing::TraceBuilder;
using dbo::testing::worked_costs;

namespace {

std::size_t slices_in(const std::string& text) {
  std::size_t n = 0;
  for (std::size_t at = text.find("\"ph\":\"X\""); at != std::string::npos; at = text.find("\"ph\":\"X\"", at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("bug reports: overlapping slices on a row are neither dropped nor partly drawn") {
  // google/perfetto 4280: 0..10 and 5..15; 6277: ends that were rounded apart from starts, 1 ns into the next.
  for (const std::int64_t overlap : {5, 1}) {
    TraceBuilder builder;
    for (int i = 0; i < 500; ++i) builder.foreign("fusion", i * 10, i * 10 + 10 + overlap);
    const std::string text = chrome_trace_text(builder.trace());
    CHECK(findings_text(check_chrome_trace(text)) == "");
    CHECK(slices_in(text) == 500);
  }
  // Kernels of two ubatches on one stream, and of programmatic dependent launch: each within the one before.
  TraceBuilder nested;
  for (int i = 0; i < 100; ++i) {
    nested.foreign("outer", i * 100, i * 100 + 90);
    nested.foreign("inner", i * 100 + 80, i * 100 + 85);
  }
  const std::string text = chrome_trace_text(nested.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(slices_in(text) == 200);
}

TEST_CASE("bug reports: displayTimeUnit says how to draw times, not what they are") {
  // google/perfetto 274, 879, 983.
  for (const char* unit : {"\"displayTimeUnit\":\"ns\",", "\"displayTimeUnit\":\"ms\",", ""}) {
    const RawTrace trace = read_raw_trace_text(
        std::string("{") + unit +
            R"("traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":3},{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":9.5,"dur":1}]})",
        "t");
    CHECK(trace.slices[0].dur_ns == 3000);
    CHECK(trace.slices[1].start_ns == 4500);
  }
}

TEST_CASE("bug reports: kernels without length, without a GPU part, with shared ids") {
  // pytorch/kineto 136: kernels of no length; they are counted, keep their place and break no row.
  KinetoBuilder zero;
  for (int i = 0; i < 10; ++i) zero.kernel("gemm", 7, i * 10, i % 2 == 0 ? 5 : 0);
  const Inspection it = inspect_raw(zero.read());
  CHECK(it.classified.info.size() == 10);
  CHECK(it.ranks[0].overlap.compute == Ns{25'000});
  CHECK(findings_text(check_chrome_trace(chrome_trace_text(it.ops))) == "");
  // 996: every kernel fell out of the profiler's window.
  KinetoBuilder empty;
  empty.call("cudaLaunchKernel", 5, 2);
  CHECK_THROWS_WITH_AS(inspect_raw(empty.read()), "t.json: no GPU slice in 1 events: was the GPU traced at all?",
                       InputError);
  // 520: one correlation for two kernels with different external ids (graphs share one over thousands).
  const RawTrace shared = read_raw_trace_text(
      R"([{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1,"dur":1,"args":{"External id":1,"correlation":9,"stream":7}},)"
      R"({"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":3,"dur":1,"args":{"External id":2,"correlation":9,"stream":7}},)"
      R"({"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":1,"tid":1,"ts":0,"dur":1,"args":{"correlation":9}}])",
      "t");
  const ClassifiedTrace classified = classify(shared, KernelRules());
  CHECK(classified.info[0].call == 0);
  CHECK(classified.info[1].call == 0);
}

TEST_CASE("bug reports: names that broke other writers' JSON come out as JSON") {
  // pytorch 130622: a control character; 146900: a quote; and what else a template can hold.
  TraceBuilder builder;
  const char* names[] = {
      "a\x01"
      "b",
      "say \"hi\"",
      "back\\slash",
      "line\nbreak",
      "tab\t",
      "\xC3\xA9",
      "\xFF\xFE bytes",
      "</script>"};
  int t = 0;
  for (const char* name : names) builder.foreign(name, t, t + 5), t += 10;
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(slices_in(text) == std::size(names));
}

TEST_CASE("bug reports: a slice with an absurd time costs itself, wherever it stands") {
  for (const char* stray : {"0", "-5", "9999999999999", "3.9e15"}) {
    KinetoBuilder builder;
    for (int i = 0; i < 5; ++i) builder.kernel("gemm", 7, i * 10, 5);
    std::string text = builder.text();
    text.insert(text.find('[') + 1, std::string(R"({"ph":"X","cat":"kernel","name":"s","pid":0,"tid":7,"ts":)") +
                                        stray + R"(,"dur":1,"args":{"stream":7}},)");
    const RawTrace trace = read_raw_trace_text(text, "t");
    CHECK(trace.slices.size() == 5);
    CHECK(trace.skipped.at("slice far away in time from the others").count == 1);
    CHECK(trace.slices[1].start_ns == 10'000);
  }
}

TEST_CASE("bug reports: a dispatch that waits for all compute enqueued so far hides nothing but one combine") {
  // vllm 38451: the event is recorded after the yield, so it covers the other ubatch's newest compute.
  const Plan plan = make_plan("vllm-ht", fakes::small_spec(6, 2, Transport::Nccl));
  Plan late = plan;
  for (Block& block : late.blocks)
    for (std::size_t i = 0; i + 1 < block.body.size(); ++i)
      if (block.body[i].verb == Verb::Record && block.body[i].lane == kComputeLane &&
          block.body[i + 1].verb == Verb::Yield)
        std::swap(block.body[i], block.body[i + 1]);
  const PlannedWindows planned = planned_windows(plan, linearise(plan, 0));
  const auto shares = window_shares(planned, simulated(late, worked_costs(false)), 0);
  const auto hidden = [&](std::string_view name) {
    for (const WindowShare& share : shares)
      if (share.name == name) return share.hidden;
    return Ns{-1};
  };
  CHECK(hidden("D[0]|A[1]") == Ns{0});
  CHECK(hidden("D[1]|MLP[0]") == Ns{0});
  CHECK(hidden("C[0]|MLP[1]+S[0]+S[1]") == Ns{6 * 40'000});  // the two shared experts, 20 us each
  CHECK(hidden("C[1]|S[0]+S[1]+A[0]'") == Ns{5 * 70'000});   // all of it, in every layer with a next one
}
