#include "validate/reprice.h"

#include <algorithm>
#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "traces/own_trace.h"
#include "traces/trace_reader.h"
#include "validate/judge.h"

namespace dbo::validate {
namespace {

namespace fs = std::filesystem;

// Of the GPUs that were measured before measured.json said it (H200s).
constexpr double kOldHighestMhz = 1980;

std::string outcome_path(const std::string& folder) {
  return folder + "/outcome.json";
}

Trace read_trace(const std::string& folder, const PredictedPlan& predicted, bool graph, bool split) {
  const std::string path = find_measured_trace(folder, graph, split);
  if (path.empty()) return {};
  const RawTrace raw = read_raw_trace(path);
  if (!raw.own()) throw InputError(path, "", "holds no op slices (args.op): not a trace of ours");
  Trace trace = own_trace(raw);
  if (trace.plan_hash() != plan_hash(predicted.plan))
    throw InputError(path, "",
                     "is of plan " + trace.plan_hash() + ", the config's is now " + plan_hash(predicted.plan) +
                         ": what was measured says nothing of it; replay it anew");
  return trace;
}

/// A step of which only median, spread and clock are known.
MeasuredPlan known_step(const Figure& step, double mhz) {
  MeasuredPlan plan;
  plan.steps_us = {step.median_us};
  plan.clocks_mhz = {mhz};
  return plan;
}

/// What an outcome says of its replay, where nothing else does.
MeasuredCase known_from(const Outcome& was, const ValidationCase& validated) {
  MeasuredCase measured;
  measured.whole = false;
  for (const std::string& note : was.notes)
    if (std::find(validated.notes.begin(), validated.notes.end(), note) == validated.notes.end())
      measured.how.push_back(note);
  measured.device = was.device;
  measured.versions = was.versions;
  measured.highest_mhz = kOldHighestMhz;
  for (const WayOutcome& way : was.ways) {
    MeasuredWay replayed{way.graph, known_step(way.split, way.split_mhz), known_step(way.unsplit, way.unsplit_mhz)};
    replayed.split.tracing_us = way.tracing_us;
    measured.ways.push_back(std::move(replayed));
  }
  return measured;
}

/// Where only the outcome is left of a replay, what it says and a median does not.
void keep_known(const Outcome& was, const MeasuredCase& measured, Outcome& outcome) {
  for (std::size_t w = 0; w < was.ways.size(); ++w) {
    const WayOutcome& old = was.ways[w];
    WayOutcome& way = outcome.ways[w];
    way.split = old.split;
    way.unsplit = old.unsplit;
    way.order_findings = old.order_findings;
    way.named = old.named;
    if (measured.ways[w].split.trace.ops.empty()) way.largest_cause = "not known: its trace was not kept";
  }
  outcome.notes.emplace_back(
      "measured before runs kept everything: op kinds and windows are of the traces that are there, findings the run's "
      "own");
}

/// Whether `path` is `folder` or within it, however they are written.
bool lies_in(const std::string& path, const std::string& folder) {
  const auto whole = [](const std::string& name) { return (fs::weakly_canonical(fs::absolute(name)) / "").string(); };
  return whole(path).starts_with(whole(folder));
}

void check_out(const std::string& out, const std::string& folder) {
  if (!out.empty() && lies_in(out, folder))
    throw InputError(out, "",
                     "is within " + folder + ", whose measurements are never written over: choose another folder");
}

Outcome load_outcome(const std::string& folder) {
  return outcome_from_json(JsonRef(load_json(outcome_path(folder))));
}

}  // namespace

Outcome reprice_config(const Config& config, const std::string& name, const std::string& folder,
                       const RepriceOptions& options) {
  check_out(options.out, folder);
  const Outcome was = load_outcome(folder);
  if (was.ways.empty()) return was;
  CaseOrigin origin{config, options.profiles.empty() ? std::string() : pick_profile(options.profiles, config), {}};
  // It was replayed with played peers, whatever the config says now.
  if (was.emulated) origin.config.emulate = Emulate::Auto;
  origin.options.gpus = was.gpus;
  origin.options.name = name;
  const auto ran = [&](bool graph) {
    return std::any_of(was.ways.begin(), was.ways.end(), [&](const WayOutcome& way) { return way.graph == graph; });
  };
  origin.options.graph = ran(true);
  origin.options.eager = ran(false);
  const ValidationCase validated = make_case(origin.config, origin.profile_path, origin.options);
  if (validated.ways.size() != was.ways.size())
    throw InputError(outcome_path(folder), "/ways", "are not those that the config has now: replay it anew");
  const std::string path = folder + "/measured.json";
  MeasuredCase measured =
      fs::exists(path) ? measured_from_json(JsonRef(load_json(path)), validated) : known_from(was, validated);
  for (std::size_t w = 0; w < measured.ways.size(); ++w) {
    const PredictedWay& way = validated.ways[w];
    measured.ways[w].split.trace = read_trace(folder, way.split, way.graph, true);
    measured.ways[w].unsplit.trace = read_trace(folder, way.unsplit, way.graph, false);
  }
  measured.numerics = was.numerics;
  measured.injected = was.injected;
  if (was.anchor_before) measured.before = *was.anchor_before;
  if (was.anchor_after) measured.after = *was.anchor_after;
  JudgedCase judged = judge_case(origin, validated, measured);
  judged.outcome.notes.push_back("measured by " + was.versions + "; priced again by " + options.program);
  if (!measured.whole) keep_known(was, measured, judged.outcome);
  judged.outcome.seconds = was.seconds;
  if (!options.out.empty()) {
    write_case_files(options.out, options.brief, validated, measured, judged);
    write_outcome(options.out, judged.outcome);
  }
  return judged.outcome;
}

RepricedSuite reprice_suite(const Suite& suite, const std::string& folder, const RepriceOptions& options) {
  check_out(options.out, folder);
  check_suite(suite, options.profiles);
  RepricedSuite out;
  for (const SuiteEntry& entry : suite.entries) {
    const std::string from = folder + "/" + entry.name;
    if (!fs::exists(outcome_path(from))) {
      out.lacking.push_back(entry.name);
      continue;
    }
    RepriceOptions one = options;
    if (!options.out.empty()) one.out = options.out + "/" + entry.name;
    one.brief = true;
    out.outcomes.push_back(reprice_config(entry.config, entry.name, from, one));
  }
  if (out.outcomes.empty()) throw InputError(folder, "", "holds no outcome of a config of " + suite.file);
  if (!options.out.empty()) write_suite_tables(options.out, out.outcomes);
  return out;
}

}  // namespace dbo::validate
