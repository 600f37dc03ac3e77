#include "tools/steps.h"

#include <fmt/format.h>

#include <map>

#include "sim/batch/decision_json.h"
#include "sim/plan/plan_json.h"
#include "sim/search/predict.h"
#include "tools/summary.h"

namespace dbo {
namespace {

/// Prices steps by simulating them. Steps of a trace repeat: each plan is simulated once.
class Pricer {
 public:
  explicit Pricer(const Config& config) : config_(config) {}

  Ns operator()(std::size_t index, const DecideSettings& settings) {
    decide(config_.workload.steps[index], settings, decision_);
    CostedPlan costed = make_costed_plan(config_, decision_, !decision_.split);
    // Costs follow from config and plan, but for stated ones, which an un-split step multiplies.
    const std::string key = plan_hash(costed.plan) + (decision_.split ? "s" : "u");
    const auto [at, fresh] = times_.try_emplace(key);
    if (fresh) {
      StepOptions options;
      options.details = false;
      at->second = Ns{simulate_plan(costed, options).step_ns};
    }
    return at->second;
  }

 private:
  const Config& config_;
  Decision decision_;
  std::map<std::string, Ns> times_;
};

std::string rate_text(const SequenceReport& report, Ns time, int gpus) {
  const double rate = tokens_per_second(report.tokens(), time);
  return fmt::format("{:.0f} tokens/s, {:.0f} a GPU", rate, rate / gpus);
}

std::string refused_text(const SequenceReport& report) {
  std::string text;
  const auto counts = report.by_reason();
  for (int i = 0; i < kReasons; ++i) {
    const auto reason = static_cast<Reason>(i);
    if (reason == Reason::Split || counts[static_cast<std::size_t>(i)] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", reason_name(reason), counts[static_cast<std::size_t>(i)]);
  }
  return text.empty() ? "none" : text;
}

std::string best_text(const Config& config, const SequenceOutcome& outcome) {
  const ThresholdChoice& best = *outcome.best;
  const bool kept =
      best.decode == config.overlap.decode_token_threshold && best.prefill == config.overlap.prefill_token_threshold;
  if (kept) return "best thresholds: those set";
  return fmt::format("best thresholds: decode {}, prefill {} ({} steps split, {})", best.decode, best.prefill,
                     best.split, rate_text(outcome.report, best.time, config.cluster.gpus()));
}

}  // namespace

SequenceOutcome run_sequence(const Config& config) {
  const DecideSettings settings = decide_settings(config);
  Pricer pricer(config);
  const PriceStep price = [&](std::size_t index, const DecideSettings& with) { return pricer(index, with); };
  SequenceOutcome outcome{report_sequence(config.workload.steps, settings), std::nullopt};
  price_sequence(outcome.report, settings, price);
  outcome.best = best_thresholds(config.workload.steps, settings, price);
  return outcome;
}

Json sequence_json(const Config& config, const SequenceOutcome& outcome) {
  const DecideSettings settings = decide_settings(config);
  Json out = Json::object();
  Json::Array steps;
  for (std::size_t i = 0; i < outcome.report.steps.size(); ++i) {
    Json step = decision_to_json(decide(config.workload.steps[i], settings));
    add_step_json(step, outcome.report.steps[i], i, outcome.report.priced);
    steps.push_back(std::move(step));
  }
  out.set("steps", Json(std::move(steps)));
  out.set("total", sequence_total_json(outcome.report, config.cluster.gpus(), outcome.best));
  return out;
}

std::string sequence_table(const Config& config, const SequenceOutcome& outcome) {
  const SequenceReport& report = outcome.report;
  std::string out = headline(config) + "\n";
  out += "step  tokens    split  reason              graph           padded  time          un-split\n";
  constexpr std::size_t kMost = 60;
  for (std::size_t i = 0; i < report.steps.size() && i < kMost; ++i) {
    const StepReport& s = report.steps[i];
    std::string graph(graph_mode_name(s.graph));
    if (s.graph_size) graph += fmt::format(" {}", *s.graph_size);
    out +=
        fmt::format("{:<4}  {:<8}  {:<5}  {:<18}  {:<14}  {:>6}  {:<12}  {}\n", i, s.tokens, s.split() ? "yes" : "no",
                    reason_name(s.reason), graph, s.padded_tokens ? std::to_string(*s.padded_tokens) : "-",
                    ms_text(s.time.count()), ms_text(s.baseline.count()));
  }
  if (report.steps.size() > kMost)
    out += fmt::format("... and {} more steps (all with --json or --log-steps)\n", report.steps.size() - kMost);
  out += fmt::format("split         {} of {} steps; refused: {}\n", report.split(), report.steps.size(),
                     refused_text(report));
  out += fmt::format("graph hits    {} of {} steps\n", report.graph_hits(), report.steps.size());
  out += fmt::format("throughput    {}\n", rate_text(report, report.time(), config.cluster.gpus()));
  out += fmt::format("without DBO   {}\n", rate_text(report, report.baseline(), config.cluster.gpus()));
  return outcome.best ? out + best_text(config, outcome) + "\n" : out;
}

std::string step_log(const Config& config) {
  const DecideSettings settings = decide_settings(config);
  std::string out;
  Decision decision;
  for (std::size_t i = 0; i < config.workload.steps.size(); ++i) {
    decide(config.workload.steps[i], settings, decision);
    out += step_log_line(i, config.workload.steps[i], decision) + "\n";
  }
  return out;
}

}  // namespace dbo
