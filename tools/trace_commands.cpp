// The commands that read traces.
#include "tools/cli.h"
#include "tools/commands.h"

namespace dbo {

void add_trace_commands(ProgramSpec& program) {
  static InspectCommand inspect;
  program.commands.push_back(
      {"inspect",
       "read a Chrome or Kineto trace: kernels, overlap, bubbles, the order it shows",
       "dbo inspect trace.json.gz --plan-out plan.json --profile-out costs.json",
       {{"TRACE", "trace, plain or .gz", &inspect.trace, true, {}, {}},
        {"--json", "print everything as JSON", &inspect.json, false, {}, {}},
        {"--rules", "file of kernel rules, in front of the built-in ones", &inspect.rules, false, {}, {}},
        {"--plan-out", "write the order found as a plan (all files: - for stdout)", &inspect.plan_out, false, {}, {}},
        {"--profile-out",
         "write costs: of the plan's launches, or (alone) by kind of op",
         &inspect.profile_out,
         false,
         {},
         {}},
        {"--rank", "rank of the plan (default: the first)", &inspect.rank, false, {}, {}},
        {"--step", "forward pass of the plan (default: all)", &inspect.step, false, {}, {}},
        {"--no-host", "leave the host's work out of the plan", &inspect.no_host, false, {}, {}},
        {"--svg", "write a picture", &inspect.svg, false, {}, {}},
        {"--chrome-out", "write the ops found as a trace of ours", &inspect.chrome_out, false, {}, {}},
        {"--kineto-out", "write one rank in the dialect of PyTorch's profiler", &inspect.kineto_out, false, {}, {}},
        {"--comm-names",
         "how communication is called there (default nccl, which other tools look for)",
         &inspect.comm_names,
         false,
         {"nccl", "plain"},
         {}},
        {"--layers", "of written traces: FIRST-LAST", &inspect.layers, false, {}, {}},
        {"--max-ranks", "of written traces: the first N", &inspect.max_ranks, false, {}, {}},
        {"--max-slices", "of written traces: the first N by start", &inspect.max_slices, false, {}, {}}},
       [] { return run_inspect(inspect); }});

  static RepriceCommand reprice;
  program.commands.push_back(
      {"reprice",
       "predict anew what `validate` measured before, with other profiles or a newer cost model; needs no GPU",
       "dbo reprice measured --suite default --profile v3.profile.json --profile v2l.profile.json --out again",
       {{"MEASURED", "folder of an earlier validate --out; nothing is written there", &reprice.measured, true, {}, {}},
        {"--config", "the config it was of", &reprice.config, false, {}, {}},
        {"--suite",
         "the suite it was of (a file, or default or ep8), whose tables are printed",
         &reprice.suite,
         false,
         {},
         {"--config"}},
        {"--profile",
         "what `calibrate` measured (repeat it for several models; default: the config's own)",
         &reprice.profiles,
         false,
         {},
         {}},
        {"--out,-o", "folder for traces, plans, reports and the outcome or tables", &reprice.out, false, {}, {}},
        {"--json", "print the outcome, or the suite's tables, as JSON", &reprice.json, false, {}, {}}},
       [] { return run_reprice(reprice); }});

  static CompareCommand compare;
  program.commands.push_back(
      {"compare",
       "a predicted trace against a measured one: order, windows, durations, step",
       "dbo compare out/predicted.trace.json measured.trace.json",
       {{"PRED", "predicted trace", &compare.files.predicted, true, {}, {}},
        {"MEAS", "measured trace: ours, or a profiler's", &compare.files.measured, true, {}, {}},
        {"--plan", "the plan (default: plan.json beside PRED)", &compare.files.plan, false, {}, {}},
        {"--baseline",
         "un-split, predicted (default: baseline.trace.json beside PRED)",
         &compare.files.predicted_baseline,
         false,
         {},
         {}},
        {"--measured-baseline", "un-split, measured", &compare.files.measured_baseline, false, {}, {"--baseline"}},
        {"--report", "write a report (one HTML file, - for stdout)", &compare.report, false, {}, {}},
        {"--json", "print everything as JSON", &compare.json, false, {}, {}},
        {"--any-plan", "compare traces of different plans", &compare.any_plan, false, {}, {}},
        {"--step-tolerance", "of the step's time, in % (default 10)", &compare.step_percent, false, {}, {}},
        {"--op-tolerance", "of the median of each kind of op, in % (default 25)", &compare.op_percent, false, {}, {}},
        {"--window-tolerance",
         "of each window's hidden share, in % of the transfer (default 15)",
         &compare.window_percent,
         false,
         {},
         {}},
        {"--slack-us", "of order: how coarse timestamps are (default 1)", &compare.slack_us, false, {}, {}},
        {"--rules", "file of kernel rules for a profiler's trace", &compare.files.rules, false, {}, {}}},
       [] { return run_compare(compare); }});
}

}  // namespace dbo
