// The search for the best thresholds of a sequence of steps.
#include <algorithm>
#include <map>
#include <tuple>

#include "sim/batch/sequence.h"
#include "sim/batch/vote.h"

namespace dbo {
namespace {

class Search {
 public:
  Search(const std::vector<StepBatch>& steps, const DecideSettings& settings, const PriceStep& price)
      : settings_(settings), price_(price), prices_(steps.size()) {
    summaries_.reserve(steps.size());
    for (const StepBatch& step : steps) summaries_.push_back(summarise(step, settings));
  }

  ThresholdChoice run() {
    ThresholdChoice best = try_thresholds(settings_.decode_token_threshold, settings_.prefill_token_threshold);
    const std::vector<std::int64_t> decode = candidates(true), prefill = candidates(false);
    for (bool better = true; better;) {
      better = false;
      for (const std::int64_t value : decode) better = improve(best, try_thresholds(value, best.prefill)) || better;
      for (const std::int64_t value : prefill) better = improve(best, try_thresholds(best.decode, value)) || better;
    }
    return best;
  }

 private:
  static bool improve(ThresholdChoice& best, const ThresholdChoice& other) {
    if (other.time >= best.time) return false;
    best = other;
    return true;
  }

  /// Every value at which some decision changes: a rank's tokens pass up to their count, and a graph size has a
  /// ubatched graph from the decode threshold on. The largest candidate splits nothing.
  std::vector<std::int64_t> candidates(bool decode) const {
    std::vector<std::int64_t> values;
    const auto add = [&](std::int64_t value) {
      values.push_back(std::max<std::int64_t>(value, settings_.ubatches));
      values.push_back(std::max<std::int64_t>(value + 1, settings_.ubatches));
    };
    for (const StepSummary& step : summaries_)
      for (const RankSummary& rank : step.ranks)
        if (settings_.coordination == Coordination::Mrv2 ? step.uniform == decode : rank.uniform == decode)
          add(rank.tokens);
    if (decode && settings_.graph_sizes)
      for (const std::int64_t size : *settings_.graph_sizes) add(size);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return thinned(values);
  }

  /// A long trace has nearly every count: an even choice of them is as good.
  static std::vector<std::int64_t> thinned(const std::vector<std::int64_t>& values) {
    constexpr std::size_t kMost = 256;
    if (values.size() <= kMost) return values;
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < kMost; ++i) out.push_back(values[i * (values.size() - 1) / (kMost - 1)]);
    return out;
  }

  ThresholdChoice try_thresholds(std::int64_t decode, std::int64_t prefill) {
    DecideSettings settings = settings_;
    settings.decode_token_threshold = decode;
    settings.prefill_token_threshold = prefill;
    ThresholdChoice choice{.decode = decode, .prefill = prefill, .time = Ns{}, .split = 0};
    for (std::size_t i = 0; i < summaries_.size(); ++i) {
      const Verdict verdict = judge(summaries_[i], settings);
      choice.split += verdict.split() ? 1 : 0;
      choice.time += price_of(i, verdict, settings);
    }
    return choice;
  }

  /// Steps that run the same way take the same time, whatever the thresholds.
  Ns price_of(std::size_t index, const Verdict& verdict, const DecideSettings& settings) {
    const Way way{verdict.split(), verdict.graph.mode, verdict.graph.size, verdict.graph.padded.value_or(-1)};
    const auto [at, fresh] = prices_[index].try_emplace(way);
    if (fresh) at->second = price_(index, settings);
    return at->second;
  }

  using Way = std::tuple<bool, GraphMode, std::int64_t, std::int64_t>;

  const DecideSettings& settings_;
  const PriceStep& price_;
  std::vector<StepSummary> summaries_;
  std::vector<std::map<Way, Ns>> prices_;
};

}  // namespace

std::optional<ThresholdChoice> best_thresholds(const std::vector<StepBatch>& steps, const DecideSettings& settings,
                                               const PriceStep& price) {
  if (settings.coordination == Coordination::Sglang || !settings.can_split()) return std::nullopt;
  return Search(steps, settings, price).run();
}

}  // namespace dbo
