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
}

}  // namespace dbo
