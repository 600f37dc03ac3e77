#include "sim/batch/sequence.h"

#include <algorithm>

#include "sim/batch/vote.h"

namespace dbo {
namespace {

template <class Value>
Value sum(const std::vector<StepReport>& steps, Value StepReport::*member) {
  Value total{};
  for (const StepReport& step : steps) total += step.*member;
  return total;
}

}  // namespace

std::int64_t SequenceReport::split() const {
  return by_reason()[static_cast<std::size_t>(Reason::Split)];
}

std::array<std::int64_t, kReasons> SequenceReport::by_reason() const {
  std::array<std::int64_t, kReasons> counts{};
  for (const StepReport& step : steps) ++counts[static_cast<std::size_t>(step.reason)];
  return counts;
}

std::int64_t SequenceReport::graph_hits() const {
  return std::count_if(steps.begin(), steps.end(),
                       [](const StepReport& step) { return step.graph == GraphMode::Full; });
}

std::int64_t SequenceReport::tokens() const {
  return sum(steps, &StepReport::tokens);
}
Ns SequenceReport::time() const {
  return sum(steps, &StepReport::time);
}
Ns SequenceReport::baseline() const {
  return sum(steps, &StepReport::baseline);
}

SequenceReport report_sequence(const std::vector<StepBatch>& steps, const DecideSettings& settings) {
  SequenceReport report;
  report.steps.reserve(steps.size());
  for (const StepBatch& step : steps) {
    const StepSummary summary = summarise(step, settings);
    const Verdict verdict = judge(summary, settings);
    StepReport& out = report.steps.emplace_back();
    out.reason = verdict.reason;
    out.graph = verdict.graph.mode;
    if (out.graph != GraphMode::None) out.graph_size = verdict.graph.size;
    out.padded_tokens = verdict.graph.padded;
    for (const RankSummary& rank : summary.ranks) out.tokens += rank.tokens;
  }
  return report;
}

double tokens_per_second(std::int64_t tokens, Ns time) {
  return time.count() > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(time.count()) : 0.0;
}

void price_sequence(SequenceReport& report, const DecideSettings& settings, const PriceStep& price) {
  const DecideSettings off = without_dbo(settings);
  for (std::size_t i = 0; i < report.steps.size(); ++i) {
    report.steps[i].time = price(i, settings);
    report.steps[i].baseline = price(i, off);
  }
  report.priced = true;
}

std::string step_log_line(std::size_t index, const StepBatch& step, const Decision& decision) {
  std::int64_t total = 0, least = step.ranks.empty() ? 0 : step.ranks.front().tokens(), most = 0;
  for (const RankBatch& rank : step.ranks) {
    const std::int64_t tokens = rank.tokens();
    total += tokens;
    least = std::min(least, tokens);
    most = std::max(most, tokens);
  }
  const auto in_favour = std::count(decision.votes.begin(), decision.votes.end(), std::int8_t{1});
  std::string graph(graph_mode_name(decision.graph.mode));
  if (decision.graph.size) graph += ":" + std::to_string(*decision.graph.size);
  const std::string padded = decision.padded_tokens ? std::to_string(*decision.padded_tokens) : "none";
  return "dbo step=" + std::to_string(index) + " split=" + (decision.split ? "1" : "0") +
         " reason=" + std::string(reason_name(decision.reason)) + " ubatches=" + std::to_string(decision.ubatches) +
         " votes=" + std::to_string(in_favour) + "/" + std::to_string(decision.votes.size()) +
         " tokens=" + std::to_string(total) + " min=" + std::to_string(least) + " max=" + std::to_string(most) +
         " padded=" + padded + " graph=" + graph + " comm_sms=" + std::to_string(decision.sms.comm) +
         " compute_sms=" + std::to_string(decision.sms.compute) + " text=\"" + decision.reason_text + "\"";
}

void add_step_json(Json& decision, const StepReport& step, std::size_t index, bool priced) {
  decision.set("step", static_cast<std::int64_t>(index));
  decision.set("tokens", step.tokens);
  if (!priced) return;
  decision.set("step_ns", step.time.count());
  decision.set("baseline_step_ns", step.baseline.count());
}

Json sequence_total_json(const SequenceReport& report, int gpus, const std::optional<ThresholdChoice>& best) {
  Json total = Json::object();
  total.set("steps", static_cast<std::int64_t>(report.steps.size()));
  total.set("split", report.split());
  Json& refused = total.set("refused", Json::object());
  const auto counts = report.by_reason();
  for (int i = 0; i < kReasons; ++i) {
    const auto reason = static_cast<Reason>(i);
    const std::int64_t count = counts[static_cast<std::size_t>(i)];
    if (reason != Reason::Split && count > 0) refused.set(reason_name(reason), count);
  }
  total.set("graph_hits", report.graph_hits());
  total.set("tokens", report.tokens());
  if (report.priced) {
    const double with = tokens_per_second(report.tokens(), report.time());
    const double without = tokens_per_second(report.tokens(), report.baseline());
    total.set("time_ns", report.time().count());
    total.set("baseline_time_ns", report.baseline().count());
    total.set("tokens_per_s", with);
    total.set("tokens_per_s_per_gpu", with / gpus);
    total.set("baseline_tokens_per_s", without);
    total.set("baseline_tokens_per_s_per_gpu", without / gpus);
  }
  if (best) {
    Json& choice = total.set("best_thresholds", Json::object());
    const double rate = tokens_per_second(report.tokens(), best->time);
    choice.set("decode_token_threshold", best->decode);
    choice.set("prefill_token_threshold", best->prefill);
    choice.set("split", best->split);
    choice.set("tokens_per_s", rate);
    choice.set("tokens_per_s_per_gpu", rate / gpus);
  }
  return total;
}

}  // namespace dbo
