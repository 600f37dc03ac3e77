// A sequence of steps: what was split and what was refused, in total, and which thresholds would have been best.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/batch/decide.h"

namespace dbo {

/// One step of a sequence.
struct StepReport {
  Reason reason = Reason::Disabled;
  GraphMode graph = GraphMode::None;
  std::optional<std::int64_t> graph_size;
  std::optional<std::int64_t> padded_tokens;
  std::int64_t tokens = 0;  ///< real, of all data-parallel ranks
  Ns time{}, baseline{};    ///< zero until priced

  bool split() const { return reason == Reason::Split; }
};

struct SequenceReport {
  std::vector<StepReport> steps;
  bool priced = false;

  std::int64_t split() const;
  std::array<std::int64_t, kReasons> by_reason() const;  ///< steps, by Reason
  std::int64_t graph_hits() const;                       ///< steps that replay a full graph
  std::int64_t tokens() const;
  Ns time() const;
  Ns baseline() const;
};

/// Decides every step; no times yet.
SequenceReport report_sequence(const std::vector<StepBatch>& steps, const DecideSettings& settings);

/// Tokens per second; 0 when no time passes.
double tokens_per_second(std::int64_t tokens, Ns time);

/// The time of step `index` under these settings, thresholds included.
using PriceStep = std::function<Ns(std::size_t index, const DecideSettings& settings)>;

/// Fills in times: with DBO as set, and of the same server with DBO off.
void price_sequence(SequenceReport& report, const DecideSettings& settings, const PriceStep& price);

struct ThresholdChoice {
  std::int64_t decode = 0, prefill = 0;
  Ns time{};  ///< of the whole sequence with them
  std::int64_t split = 0;
};

/// The thresholds that make the sequence shortest: every value at which a decision changes is tried for one threshold
/// with the other kept, in turn until neither helps, from those set. On a tie the ones set stay, else the lower one
/// wins. `price` is asked once for each way a step can run, not once for each threshold. SGLang reads none: null.
std::optional<ThresholdChoice> best_thresholds(const std::vector<StepBatch>& steps, const DecideSettings& settings,
                                               const PriceStep& price);

/// One debug-style line a step, to be found by grep in a log: `dbo step=3 split=1 reason=split ...`.
std::string step_log_line(std::size_t index, const StepBatch& step, const Decision& decision);

/// What a sequence adds to the JSON of a step's decision: step, tokens and, when priced, step_ns and baseline_step_ns.
void add_step_json(Json& decision, const StepReport& step, std::size_t index, bool priced);

/// Steps, split, refused by reason, graph hits and tokens; when priced, times and tokens per second, of all `gpus` and
/// of each, with DBO and without; `best_thresholds` where given.
Json sequence_total_json(const SequenceReport& report, int gpus, const std::optional<ThresholdChoice>& best);

}  // namespace dbo
