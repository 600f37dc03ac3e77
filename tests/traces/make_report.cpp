// Writes what the browser tests look at: report.html of a small comparison with known numbers, a large report, and a
// trace for speedscope. Usage: make_report FOLDER
#include <cstdio>

#include "sim/base/files.h"
#include "tests/traces/simulated.h"
#include "traces/chrome_writer.h"
#include "traces/report_html.h"

using namespace dbo;
using dbo::testing::compare_input;
using dbo::testing::worked_costs;

namespace {

void write_report(const std::string& path, int layers) {
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(layers, 2, Transport::LsaLl));
  CompareInput input = compare_input(plan, worked_costs(true));
  input.measured_file = "measured </script><b>&\"x\".json";  // a name that must not break the page
  for (TraceOp& op : input.measured.ops)
    if (op.kind == OpKind::MLP) op.end += (op.end - op.start) / 2;
  ReportOptions options;
  options.title = "Low latency, worked example";
  options.assumptions = {"Durations are stated, not worked out."};
  options.bubbles = {{"wire", Ns{50'000}}};
  write_file(path, report_html(input, compare_traces(input), options));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::puts("usage: make_report FOLDER");
    return 2;
  }
  const std::string folder = argv[1];
  write_report(folder + "/report.html", 6);
  write_report(folder + "/large.html", 400);
  const Plan plan = make_plan("vllm-ht", fakes::small_spec(3, 2, Transport::Nccl));
  Trace trace = dbo::testing::simulated(plan, worked_costs(false));
  write_chrome_trace(folder + "/trace.json", trace);
  return 0;
}
