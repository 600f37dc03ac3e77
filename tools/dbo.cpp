// dbo: the program without any GPU dependency.
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/gpu_forward.h"

namespace dbo {
namespace {

ProgramSpec make_program() {
  ProgramSpec program;
  program.name = "dbo";
  program.what =
      "Says whether Dual Batch Overlap pays for a model, batch and machine, shows the timeline, and proves it on GPUs.";

  static SimulateOptions simulate;
  program.commands.push_back(
      {"simulate",
       "decide, plan and simulate a step, beside the un-split step",
       "dbo simulate examples/deepseek-v3-decode-2x8-h200.json --out out",
       {{"CONFIG", "config, or plan with --costs", &simulate.input, true, {}, {}},
        {"--out,-o", "folder for summary, plans, traces and picture", &simulate.out, false, {}, {}},
        {"--costs", "durations of a plan's ops (JSON)", &simulate.costs, false, {}, {}},
        {"--ranks", "ranks to trace, or all (default: one of each kind)", &simulate.ranks, false, {}, {}},
        {"--layers", "layers to trace, as 3 or 3-5 (default: all)", &simulate.layers, false, {}, {}},
        {"--json", "print summary.json instead of the table", &simulate.json, false, {}, {}},
        {"--log-steps", "print a log line a step (on stderr with --json)", &simulate.log_steps, false, {}, {}},
        {"--why", "say what the time goes into and what would help, from what-if runs", &simulate.why, false, {}, {}},
        {"--jobs,-j", "threads for a sequence of steps (default: all cores)", &simulate.jobs, false, {}, {}}},
       [] { return run_simulate(simulate); }});

  static DecideOptions decide;
  program.commands.push_back(
      {"decide",
       "only decide: votes, veto, split, slices, padding, graph, SMs",
       "dbo decide examples/deepseek-v3-decode-2x8-h200.json",
       {{"CONFIG", "config", &decide.config, true, {}, {}},
        {"--json",
         "print the decision (of a sequence: every step's, and the total) as JSON",
         &decide.json,
         false,
         {},
         {}},
        {"--log-steps", "print a log line a step (on stderr with --json)", &decide.log_steps, false, {}, {}}},
       [] { return run_decide(decide); }});

  static PlanOptions plan;
  program.commands.push_back(
      {"plan",
       "print a plan: notation, JSON, or the graph of one layer",
       "dbo plan examples/teaching.json --notation",
       {{"CONFIG", "config or plan", &plan.config, true, {}, {}},
        {"--notation", "lanes and issue order of one steady period (default)", &plan.notation, false, {}, {}},
        {"--json", "the whole plan", &plan.json, false, {}, {"--notation"}},
        {"--dot", "Graphviz text of one steady layer", &plan.dot, false, {}, {"--notation", "--json"}}},
       [] { return run_plan(plan); }});

  add_trace_commands(program);
  add_search_commands(program);

  program.forwarded = {{"replay", "run a plan on GPUs (dbo-gpu)"},
                       {"bench", "measure kernels and host costs (dbo-gpu)"},
                       {"calibrate", "measure this machine, write a profile (dbo-gpu)"},
                       {"validate", "predict, replay on GPUs, compare (dbo-gpu)"}};
  program.forward = forward_to_gpu;

  static std::string list_what;
  static bool list_json = false;
  program.commands.push_back({"list",
                              "print presets and tables",
                              "dbo list transports",
                              {{"WHAT",
                                "models, gpus, fabrics, schedules or transports",
                                &list_what,
                                true,
                                {"models", "gpus", "fabrics", "schedules", "transports"},
                                {}},
                               {"--json", "as JSON", &list_json, false, {}, {}}},
                              [] { return run_list(list_what, list_json); }});
  return program;
}

}  // namespace
}  // namespace dbo

int main(int argc, char** argv) {
  const dbo::ProgramSpec program = dbo::make_program();
  return dbo::run_program(program, argc, argv);
}
