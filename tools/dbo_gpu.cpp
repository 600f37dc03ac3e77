// dbo-gpu: the commands that need GPUs. `dbo` starts it.
#include "tools/dbo_gpu.h"

#include "runtime/cuda/process.h"
#include "tools/cli.h"

namespace dbo {
namespace {

ProgramSpec make_program() {
  ProgramSpec program;
  program.name = "dbo-gpu";
  program.what = "Replays plans on GPUs and measures them.";

  static ReplayCommand replay;
  program.commands.push_back(
      {"replay",
       "run a plan with real kernels or stand-ins of given durations, check its order, print what was measured",
       "dbo-gpu replay plan.json --costs costs.json --gpus 2 --graph --out out",
       {{"PLAN", "plan (JSON)", &replay.plan, true, {}, {}},
        {"--costs",
         "durations of the plan's ops (JSON): stand-in kernels; without it, real ones",
         &replay.costs,
         false,
         {},
         {}},
        {"--out,-o", "folder for measured.trace.json and replay.json", &replay.out, false, {}, {}},
        {"--eager", "launch op by op (default: what the plan says)", &replay.eager, false, {}, {}},
        {"--graph", "replay a captured graph", &replay.graph, false, {}, {}},
        {"--iters", "measured steps (default 20)", &replay.iterations, false, {}, {}},
        {"--warmup", "steps before them (default 3)", &replay.warmup, false, {}, {}},
        {"--gpus",
         "GPUs, one rank each (default 1); ignored under mpirun, srun or torchrun",
         &replay.gpus,
         false,
         {},
         {}},
        {"--trace",
         "where times come from (default: stamps of stand-ins, light of real kernels)",
         &replay.trace,
         false,
         {"stamps", "light", "full"},
         {}},
        {"--deadline", "seconds without progress that count as a hang (default 20)", &replay.deadline_s, false, {}, {}},
        {"--tolerance",
         "stand-ins: exit 1 when a step misses the predicted one by more than this many percent",
         &replay.tolerance,
         false,
         {},
         {}},
        {"--send-bytes",
         "stand-ins: bytes a send or comm kernel moves to the next rank while it lasts (default 0)",
         &replay.send_bytes,
         false,
         {},
         {}},
        {"--work-bytes",
         "stand-ins: bytes every other op moves in its GPU's memory while it lasts (default 0)",
         &replay.work_bytes,
         false,
         {},
         {}},
        {"--poison",
         "real kernels: fill buffers with NaN before they are written anew",
         &replay.poison,
         false,
         {},
         {"--costs"}},
        {"--fabric",
         "real kernels, fewer GPUs than ranks: wires last what the cost model says for this fabric",
         &replay.fabric,
         false,
         {},
         {"--costs"}}},
       [] { return run_replay(replay); }});

  static GpuBenchCommand bench;
  program.commands.push_back(
      {"bench",
       "measure host and gap costs, or a kind of kernel",
       "dbo-gpu bench host --out host.json",
       {{"WHAT",
         "host, gemm, attention, a2a or overlap",
         &bench.what,
         true,
         {"host", "gemm", "attention", "a2a", "overlap"},
         {}},
        {"--out,-o", "file for the figures (host: JSON, others: CSV)", &bench.out, false, {}, {}},
        {"--quick", "fewer points and repeats", &bench.quick, false, {}, {}},
        {"--device", "GPU (default 0)", &bench.device, false, {}, {}}},
       [] { return run_gpu_bench(bench); }});

  static CalibrateCommand calibrate;
  program.commands.push_back(
      {"calibrate",
       "measure this machine for a model: ops, transports, SM splits, host and gap costs",
       "dbo-gpu calibrate -o h200.profile.json --for a.json --for b.json",
       {{"--out,-o", "profile to write (what is done so far lies in OUT.partial)", &calibrate.out, false, {}, {}},
        {"--for", "config to calibrate for (repeat it)", &calibrate.configs, false, {}, {}},
        {"--suite", "the same for a suite's configs of --model", &calibrate.suite, false, {}, {"--for"}},
        {"--model", "model preset (default deepseek-v3)", &calibrate.model, false, {}, {"--for"}},
        {"--ranks", "else: sizes of the expert group (default 2,16)", &calibrate.ranks, false, {}, {"--for"}},
        {"--transports", "default lsa-ll,lsa-ht,copy-engine", &calibrate.transports, false, {}, {"--for"}},
        {"--comm-sms", "SM splits (default 8,16,24)", &calibrate.comm_sms, false, {}, {"--for"}},
        {"--phase", "default both", &calibrate.phase, false, {"decode", "prefill", "both"}, {"--for"}},
        {"--points", "list of points instead", &calibrate.points, false, {}, {"--for"}},
        {"--list", "print the list of points and stop", &calibrate.list, false, {}, {}},
        {"--compare", "compare this earlier profile with OUT and stop", &calibrate.compare, false, {}, {"--list"}},
        {"--quick", "coarse grid, few repeats: about a minute", &calibrate.quick, false, {}, {}},
        {"--fresh", "start over", &calibrate.fresh, false, {}, {}},
        {"--windows", "exchange through NCCL windows", &calibrate.windows, false, {}, {}},
        {"--gpus", "GPUs (default: all)", &calibrate.gpus, false, {}, {}},
        {"--limit", "seconds after which nothing more is begun (default 230)", &calibrate.limit_s, false, {}, {}}},
       [] { return run_calibrate(calibrate); }});

  static ValidateCommand validate;
  program.commands.push_back(
      {"validate",
       "predict a step, replay the same plan split and un-split, say how wrong the prediction was and why",
       "dbo-gpu validate config.json --profile h200.profile.json --out out",
       {{"CONFIG", "config", &validate.config, false, {}, {}},
        {"--suite",
         "a list of configs instead (a file, or default, held-out, ep8); goes on where it stopped",
         &validate.suite,
         false,
         {},
         {}},
        {"--profile",
         "what `calibrate` measured (repeat it for several models; default: the config's own)",
         &validate.profiles,
         false,
         {},
         {}},
        {"--out,-o", "folder for traces, plans, report.html and the outcome or tables", &validate.out, false, {}, {}},
        {"--eager", "only launched op by op (default: both ways)", &validate.eager, false, {}, {}},
        {"--graph", "only as a captured graph", &validate.graph, false, {}, {}},
        {"--emulate",
         "play ranks that are not there, or refuse (default: the config's word)",
         &validate.emulate,
         false,
         {"auto", "off"},
         {}},
        {"--iters", "measured steps of each plan and way (default 20)", &validate.iterations, false, {}, {}},
        {"--warmup", "steps before them (default 3)", &validate.warmup, false, {}, {}},
        {"--gpus",
         "GPUs (default: all, at most the config's ranks); ignored under mpirun, srun or torchrun",
         &validate.gpus,
         false,
         {},
         {}},
        {"--inject",
         "plant a fault and see that it is named: F3, F4, F5, F7, F8, F12, F14, F16 or F17",
         &validate.inject,
         false,
         {},
         {}},
        {"--windows", "exchange through NCCL windows", &validate.windows, false, {}, {}},
        {"--json", "print the outcome as JSON", &validate.json, false, {}, {}},
        {"--list", "print the names of the suite's configs and stop", &validate.list, false, {}, {}},
        {"--limit", "suite: seconds after which no config is begun (default 480)", &validate.limit_s, false, {}, {}},
        {"--deadline",
         "seconds without progress that count as a hang (default 20)",
         &validate.deadline_s,
         false,
         {},
         {}}},
       [] { return run_validate(validate); }});

  program.commands.push_back({"info", "print GPUs, versions, links, SM partitions and timers", "dbo-gpu info", {}, [] {
                                return run_gpu_info();
                              }});
  return program;
}

}  // namespace
}  // namespace dbo

int main(int argc, char** argv) {
  // Before anything can start CUDA or NCCL.
  dbo::runtime::prepare_process();
  return dbo::run_program(dbo::make_program(), argc, argv);
}
