// The commands that check and search.
#include "tools/cli.h"
#include "tools/commands.h"

namespace dbo {

void add_search_commands(ProgramSpec& program) {
  static std::string check_input;
  static bool check_json = false;
  program.commands.push_back({"check",
                              "prove a config's or plan's order free of deadlocks and races, or name the failure",
                              "dbo check examples/deepseek-v3-decode-2x8-h200.json",
                              {{"CONFIG", "config or plan", &check_input, true, {}, {}},
                               {"--json", "findings as JSON", &check_json, false, {}, {}}},
                              [] { return run_check(check_input, check_json); }});

  static OptimiseCommand optimise;
  program.commands.push_back(
      {"optimise",
       "find the order with the smallest steady period, and what no order can beat",
       "dbo optimise examples/teaching.json --out faster",
       {{"CONFIG", "config", &optimise.config, true, {}, {}},
        {"--out,-o", "folder for a config with the order found, and its plan", &optimise.out, false, {}, {}},
        {"--in-flight", "low-latency calls that may be un-received (default 1)", &optimise.in_flight, false, {}, {}},
        {"--time-limit", "seconds the search may take (default 10)", &optimise.time_limit_s, false, {}, {}},
        {"--json", "print JSON", &optimise.json, false, {}, {}}},
       [] { return run_optimise(optimise); }});

  static TuneCommand tune;
  program.commands.push_back(
      {"tune",
       "sweep settings and batches: the best, where splitting pays, and a server's flags",
       "dbo tune examples/deepseek-v3-decode-2x8-h200.json --max-step-ms 100 --out sweep",
       {{"CONFIG", "config; its batch is the one advised on", &tune.config, false, {}, {}},
        {"--batch", "tokens a rank, as 64,128 or 16:512:16 (default: usual ones)", &tune.batch, false, {}, {}},
        {"--context", "context tokens (default: the config's)", &tune.context, false, {}, {}},
        {"--ep", "GPUs, whole nodes (default: the config's)", &tune.expert_parallel, false, {}, {}},
        {"--transport", "names (default: those of the config's kind)", &tune.transports, false, {}, {}},
        {"--schedule", "names (default: all)", &tune.schedules, false, {}, {}},
        {"--ubatches", "numbers of ubatches (default 2)", &tune.ubatches, false, {}, {}},
        {"--comm-sms", "SMs for communication (default: 8 to 32)", &tune.comm_sms, false, {}, {}},
        {"--sm-control", "names (default: limit, none)", &tune.sm_controls, false, {}, {}},
        {"--objective", "what is best", &tune.objective, false, {"tokens_per_s_per_gpu", "step_ms"}, {}},
        {"--max-step-ms", "longest step allowed", &tune.max_step_ms, false, {}, {}},
        {"--out,-o", "folder for results; a killed run goes on there", &tune.out, false, {}, {}},
        {"--jobs,-j", "threads (default: all cores)", &tune.jobs, false, {}, {}},
        {"--shard", "do part INDEX/COUNT of the sweep, INDEX from 0", &tune.shard, false, {}, {}},
        {"--merge", "report on the shards in these folders", &tune.merge, false, {}, {"--shard"}},
        {"--json", "print JSON", &tune.json, false, {}, {}}},
       [] { return run_tune(tune); }});

  static FromServeCommand serve;
  program.commands.push_back(
      {"from-serve",
       "make a config from a serving command of vLLM or SGLang",
       "dbo from-serve \"vllm serve deepseek-ai/DeepSeek-V3 -dp 16 -ep --enable-dbo "
       "--all2all-backend deepep_low_latency\"",
       {{"COMMAND", "the whole command, quoted", &serve.command, true, {}, {}},
        {"--model", "preset or config.json (default: from the name)", &serve.model, false, {}, {}},
        {"--gpu", "GPU preset (default: h200-sxm)", &serve.gpu, false, {}, {}},
        {"--gpus-per-node", "(default: 8, or what the command says)", &serve.gpus_per_node, false, {}, {}},
        {"--phase", "of the batches (default: the all-to-all's)", &serve.phase, false, {"decode", "prefill"}, {}},
        {"--tokens", "tokens a rank (default: a full batch)", &serve.tokens, false, {}, {}},
        {"--context", "context tokens (default: 4096)", &serve.context, false, {}, {}},
        {"--out,-o", "file for the config, - for stdout (default: stdout)", &serve.out, false, {}, {}},
        {"--json", "config and report as JSON", &serve.json, false, {}, {}}},
       [] { return run_from_serve(serve); }});
}

}  // namespace dbo
