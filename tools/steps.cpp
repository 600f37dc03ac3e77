#include "tools/steps.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

#include "sim/batch/decision_json.h"
#include "sim/plan/plan_json.h"
#include "sim/search/predict.h"
#include "tools/jobs.h"
#include "tools/summary.h"

namespace dbo {
namespace {

/// Prices steps by simulating them. Steps of a trace repeat: each plan is simulated once.
class Pricer {
 public:
  explicit Pricer(const Config& config) : config_(config) {}

  /// Simulates on `jobs` threads what will be asked for: each step as it is decided, split whenever it can be, and
  /// un-split. What is missed is simulated when it is asked for, so times do not depend on this.
  void prepare(const DecideSettings& settings, std::size_t jobs) {
    DecideSettings eager = settings;
    eager.decode_token_threshold = eager.prefill_token_threshold = settings.ubatches;
    const DecideSettings ways[] = {settings, eager, without_dbo(settings)};
    run_jobs(config_.workload.steps.size(), jobs, [&](std::size_t index) {
      Decision decision;
      for (const DecideSettings& way : ways) {
        decide(config_.workload.steps[index], way, decision);
        step_time(decision, Missing::Claim);
      }
    });
  }

  Ns operator()(std::size_t index, const DecideSettings& settings) {
    decide(config_.workload.steps[index], settings, decision_);
    return step_time(decision_, Missing::Simulate);
  }

 private:
  enum class Missing : std::uint8_t { Simulate, Claim };

  Ns step_time(const Decision& decision, Missing missing) {
    Plan plan = make_step_plan(config_, decision, !decision.split);
    // Costs follow from config and plan, but for stated ones, which an un-split step multiplies.
    const std::string key = plan_hash(plan) + (decision.split ? "s" : "u");
    {
      const std::lock_guard lock(mutex_);
      const auto [at, fresh] = times_.try_emplace(key);
      // Another thread has claimed it; once all are done every time is there.
      if (!fresh && (missing == Missing::Claim || at->second)) return at->second.value_or(Ns{});
    }
    StepOptions options;
    options.details = false;
    CostTable costs = step_costs(config_, plan, decision.split);
    const Ns time{simulate_plan({std::move(plan), std::move(costs)}, options).step_ns};
    const std::lock_guard lock(mutex_);
    times_[key] = time;
    return time;
  }

  const Config& config_;
  Decision decision_;
  std::mutex mutex_;
  std::map<std::string, std::optional<Ns>> times_;
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

SequenceOutcome run_sequence(const Config& config, std::size_t jobs) {
  const DecideSettings settings = decide_settings(config);
  Pricer pricer(config);
  pricer.prepare(settings, jobs);
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
