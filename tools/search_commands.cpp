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
}

}  // namespace dbo
