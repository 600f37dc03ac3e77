// dbo simulate: a config, or a plan with costs, to a predicted step.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/cost/cost_range.h"
#include "sim/cost/fixed.h"
#include "sim/plan/plan_json.h"
#include "sim/search/predict.h"
#include "sim/search/why.h"
#include "tools/commands.h"
#include "tools/jobs.h"
#include "tools/steps.h"
#include "tools/summary.h"
#include "traces/chrome_writer.h"
#include "traces/timeline_svg.h"

namespace dbo {
namespace {

constexpr const char* kJobsOfSequences = "--jobs is for a sequence of steps, and this is one step: leave it out";

std::vector<int> ranks_to_trace(const SimulateOptions& options, int ranks) {
  const std::vector<std::string>& words = options.ranks;
  if (!words.empty() && options.out.empty())
    throw InputError("--ranks says which ranks to trace: name a folder for the traces with --out");
  if (words.size() > 1 && std::count(words.begin(), words.end(), "all") > 0)
    throw InputError("--ranks: \"all\" is every rank: name no other");
  std::vector<int> out;
  for (const std::string& word : words) {
    if (word == "all") {
      for (int r = 0; r < ranks; ++r) out.push_back(r);
      continue;
    }
    int rank = -1;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), rank);
    if (result.ec != std::errc() || result.ptr != word.data() + word.size() || rank < 0 || rank >= ranks)
      throw InputError(fmt::format("--ranks: must be \"all\" or ranks from 0 to {}, is \"{}\"", ranks - 1, word));
    if (std::find(out.begin(), out.end(), rank) != out.end())
      throw InputError(fmt::format("--ranks: {} is named twice", rank));
    out.push_back(rank);
  }
  return out;
}

/// Layers named one by one or as FIRST-LAST.
std::vector<int> layers_to_trace(const SimulateOptions& options, int layers) {
  if (!options.layers.empty() && options.out.empty())
    throw InputError("--layers says which layers to trace: name a folder for the traces with --out");
  std::vector<int> out;
  for (const std::string& word : options.layers) {
    const std::size_t dash = word.find('-');
    const auto number = [&](std::string_view text) {
      int value = -1;
      const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
      return result.ec == std::errc() && result.ptr == text.data() + text.size() ? value : -1;
    };
    const int first = number(std::string_view(word).substr(0, dash));
    const int last = dash == std::string::npos ? first : number(std::string_view(word).substr(dash + 1));
    if (first < 0 || last < first || last >= layers)
      throw InputError(fmt::format("--layers: must be layers from 0 to {}, as 3 or 3-5, is \"{}\"", layers - 1, word));
    for (int layer = first; layer <= last; ++layer) out.push_back(layer);
  }
  return out;
}

void write_trace(FileSet& files, const std::string& path, Trace& trace, const Json& config) {
  trace.metadata.set("config", config);
  write_chrome_trace(files, path, trace);
}

void write_outputs(const std::string& folder, const Config& config, Prediction& p, const Json& summary) {
  make_folder(folder);
  const Json resolved = config_to_json(config);
  FileSet files;
  files.write(folder + "/summary.json", pretty_json(summary));
  files.write(folder + "/plan.json", plan_text(p.split.plan));
  files.write(folder + "/baseline.plan.json", plan_text(p.baseline.plan));
  write_trace(files, folder + "/predicted.trace.json", p.result.trace, resolved);
  write_trace(files, folder + "/baseline.trace.json", p.baseline_result.trace, resolved);
  files.write(folder + "/timeline.svg",
              timeline_svg(p.result.trace, {.title = headline(config), .subtitle = verdict(p)}));
  files.commit();
}

Json why_json(const Why& why) {
  Json out = Json::object();
  Json& text = out.set("text", Json::array());
  for (const std::string& sentence : why.sentences) text.push(sentence);
  Json& parts = out.set("difference_to_unsplit", Json::array());
  for (const SplitPart& p : why.parts)
    parts.push(Json(Json::Object{
        {"what", p.what}, {"ns", p.ns}, {"split_without_ns", p.split_ns}, {"unsplit_without_ns", p.unsplit_ns}}));
  Json& what_ifs = out.set("what_ifs", Json::array());
  for (const WhatIf& w : why.what_ifs)
    what_ifs.push(Json(Json::Object{{"what", w.what},
                                    {"setting", w.setting},
                                    {"fits", w.runs},
                                    {"step_ns", w.step_ns},
                                    {"tokens_per_s_per_gpu", w.throughput}}));
  return out;
}

/// Sentences beside the table's labels, in lines that a terminal shows whole.
std::string why_text(const Why& why) {
  constexpr std::size_t kIndent = 14, kWidth = 119;
  std::string text;
  for (const std::string& sentence : why.sentences) {
    std::string line = text.empty() ? "why           " : std::string(kIndent, ' ');
    for (std::size_t begin = 0; begin < sentence.size();) {
      const std::size_t end = std::min(sentence.find(' ', begin), sentence.size());
      if (line.size() + end - begin > kWidth && line.size() > kIndent) {
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        line.assign(kIndent + 2, ' ');
      }
      line += sentence.substr(begin, end - begin) + " ";
      begin = end + 1;
    }
    text += line.substr(0, line.size() - 1) + "\n";
  }
  return text;
}

/// Every step, and the total; of files the summary alone, as each step has a plan of its own.
int simulate_sequence(const SimulateOptions& options, const Config& config) {
  const SequenceOutcome outcome = run_sequence(config, thread_count(options.jobs.value_or(0)));
  const std::string summary = pretty_json(sequence_json(config, outcome));
  if (!options.out.empty()) {
    make_folder(options.out);
    write_file(options.out + "/summary.json", summary);
  }
  fmt::print("{}", options.json ? summary : sequence_table(config, outcome));
  return 0;
}

int simulate_config(const SimulateOptions& options, const Config& config) {
  if (!options.costs.empty()) throw InputError("--costs goes with a plan; a config has its costs under \"costs\"");
  StepOptions step_options;
  step_options.trace = !options.out.empty();
  step_options.trace_ranks = ranks_to_trace(options, config.cluster.gpus());
  step_options.trace_layers = layers_to_trace(options, config.model.layers);
  const bool sequence = config.workload.sequence;
  if (sequence && options.why) throw InputError("--why explains one step; the workload is a sequence of them");
  if (sequence && !(options.ranks.empty() && options.layers.empty()))
    throw InputError(std::string(options.ranks.empty() ? "--layers" : "--ranks") +
                     " traces one step; the workload is a sequence of them, of which the summary alone is written");
  if (!sequence && options.jobs) throw InputError(kJobsOfSequences);
  if (options.log_steps) fmt::print(options.json ? stderr : stdout, "{}", step_log(config));
  print_profile_warnings(config);
  print_sm_warnings(config);
  if (sequence) return simulate_sequence(options, config);
  Prediction p = predict(config, config.workload.steps.front(), step_options);
  print_warnings(p.warnings);
  Why why;
  if (options.why) why = explain(config, p);
  Json summary;
  if (options.json || !options.out.empty()) {  // it has every rank's slices, which the table has not
    summary = summary_json(config, p);
    if (options.why) summary.set("why", why_json(why));
  }
  if (!options.out.empty()) write_outputs(options.out, config, p, summary);
  if (options.json) {
    fmt::print("{}", pretty_json(summary));
    return 0;
  }
  fmt::print("{}{}", summary_table(config, p), why_text(why));
  if (!options.out.empty())
    fmt::print("trace         {}/predicted.trace.json (open in ui.perfetto.dev), picture {}/timeline.svg\n",
               options.out, options.out);
  return 0;
}

int simulate_plan_file(const SimulateOptions& options, const JsonRef& document) {
  if (options.why) throw InputError("--why needs a config: a plan alone has no settings to vary");
  if (options.log_steps) throw InputError("--log-steps needs a config: a plan alone has nothing to decide");
  if (options.jobs) throw InputError(kJobsOfSequences);
  if (options.costs.empty()) throw InputError("a plan has no durations: give them with --costs FILE");
  Plan plan = plan_from_json(document);
  print_warnings(warnings_or_throw(check_plan(plan)));
  CostTable costs = costs_from_file(plan, options.costs);
  if (const std::string beyond = beyond_range(plan, costs); !beyond.empty())
    throw InputError(options.costs, "", "has costs that are more than can be simulated: " + beyond);
  CostedPlan costed{std::move(plan), std::move(costs)};
  StepOptions step_options;
  step_options.trace = !options.out.empty();
  step_options.trace_ranks = ranks_to_trace(options, costed.plan.world.ranks);
  step_options.trace_layers = layers_to_trace(options, costed.plan.shape.layers);
  StepResult result = simulate_plan(costed, step_options);
  const Json summary = summary_json(costed, result);
  if (!options.out.empty()) {
    make_folder(options.out);
    FileSet files;
    files.write(options.out + "/summary.json", pretty_json(summary));
    files.write(options.out + "/plan.json", plan_text(costed.plan));
    write_chrome_trace(files, options.out + "/predicted.trace.json", result.trace);
    files.write(options.out + "/timeline.svg",
                timeline_svg(result.trace, {.title = "plan " + plan_hash(costed.plan),
                                            .subtitle = "step " + ms_text(result.step_ns)}));
    files.commit();
  }
  fmt::print("{}", options.json ? pretty_json(summary) : summary_table(costed, result));
  return 0;
}

}  // namespace

int run_simulate(const SimulateOptions& options) {
  check_folder(options.out);
  thread_count(options.jobs.value_or(0));  // refuses what is no number of threads, be there one step or many
  const auto document = load_json(options.input, {.comments = true});
  if (looks_like_plan(document->root)) return simulate_plan_file(options, JsonRef(document));
  return simulate_config(options, config_from_json(JsonRef(document)));
}

}  // namespace dbo
