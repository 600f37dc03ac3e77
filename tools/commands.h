// The commands of `dbo`: their options, and what each returns as exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan/plan_check.h"
#include "traces/compare.h"

namespace dbo {

/// "error: F5 (missing wait): ...": a finding as one line, without its end.
std::string finding_line(const PlanFinding& finding);

struct Config;
struct ProgramSpec;
/// check, and what searches: the commands of search_commands.cpp.
void add_search_commands(ProgramSpec& program);
/// Adds inspect and compare.
void add_trace_commands(ProgramSpec& program);

/// A file that an option names; an empty path is an option not given.
struct NamedFile {
  const char* option;
  std::string path;
};

/// Whether one of the output files is standard output ("-"): then a command's text goes to stderr. Throws InputError
/// when two of them are, or one beside --json, when two are the same file, and when one is an input.
bool check_outputs(bool json, const std::vector<NamedFile>& outputs, const std::vector<std::string>& inputs);
/// Throws InputError when the folder of --out is "-".
void check_folder(const std::string& out);

/// On stderr, a line each.
void print_warnings(const std::vector<PlanFinding>& warnings);
/// What of the config's profile is not used.
void print_profile_warnings(const Config& config);
/// What of the SMs that its overlap asks for is not used.
void print_sm_warnings(const Config& config);

struct OptimiseCommand {
  std::string config;
  std::string out;  ///< folder; empty: no files
  std::int64_t in_flight = 1;
  double time_limit_s = 10;
  bool json = false;
};
int run_optimise(const OptimiseCommand& command);

struct TuneCommand {
  std::string config;
  std::string out;    ///< folder; empty: no files, nothing kept
  std::string shard;  ///< "INDEX/COUNT"
  std::vector<std::string> merge;
  std::optional<std::string> batch, context, expert_parallel, transports, schedules, ubatches, sm_controls,
      comm_sms;                          ///< lists
  std::optional<std::string> objective;  ///< default: tokens_per_s_per_gpu
  std::optional<double> max_step_ms;
  std::optional<std::int64_t> jobs;  ///< without, or 0: all cores
  bool json = false;
};
int run_tune(const TuneCommand& command);

struct FromServeCommand {
  std::string command;                                         ///< the words of a shell
  std::string model, gpu, phase, out;                          ///< empty: assumed, or to stdout
  std::optional<std::int64_t> gpus_per_node, tokens, context;  ///< without: assumed
  bool json = false;
};
int run_from_serve(const FromServeCommand& command);

int run_check(const std::string& path, bool json);

int run_list(const std::string& what, bool json);

struct DecideOptions {
  std::string config;
  bool json = false, log_steps = false;
};
int run_decide(const DecideOptions& options);

struct PlanOptions {
  std::string config;
  bool notation = false, dot = false, json = false;
};
int run_plan(const PlanOptions& options);

struct SimulateOptions {
  std::string input;  ///< config or plan
  std::string costs;  ///< file; plans only
  std::string out;    ///< folder; empty: no files
  bool json = false;
  bool log_steps = false;
  bool why = false;                  ///< explain the step with what-if runs
  std::optional<std::int64_t> jobs;  ///< threads for a sequence of steps; without, or 0: all cores
  std::vector<std::string> ranks;    ///< "all" or rank numbers to trace
  std::vector<std::string> layers;   ///< numbers, or FIRST-LAST, of layers to trace; none: all
};
int run_simulate(const SimulateOptions& options);

struct InspectCommand {
  std::string trace;
  bool json = false;
  std::vector<std::string> rules;  ///< files of kernel rules
  std::string plan_out, profile_out, svg, chrome_out, kineto_out;
  std::optional<std::string> comm_names;              ///< default: nccl
  std::string layers;                                 ///< of written traces; empty: all
  std::optional<std::int64_t> max_ranks, max_slices;  ///< of written traces; without, or 0: all
  std::optional<std::int64_t> rank, step;             ///< of the plan; without: the first rank, all steps
  bool no_host = false;
};
int run_inspect(const InspectCommand& options);

struct RepriceCommand {
  std::string measured;       ///< folder of an earlier `validate`
  std::string config, suite;  ///< one of them
  std::vector<std::string> profiles;
  std::string out;
  bool json = false;
};
int run_reprice(const RepriceCommand& command);

struct CompareCommand {
  CompareFiles files;
  std::string report;  ///< HTML file to write; empty: none
  bool json = false, any_plan = false;
  double step_percent = 10, op_percent = 25, window_percent = 15, slack_us = 1;
};
int run_compare(const CompareCommand& command);

}  // namespace dbo
