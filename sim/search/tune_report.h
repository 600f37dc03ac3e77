// What a finished sweep says: the best setting and how sure that is, where splitting starts to pay, and what to tell a
// server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/search/tune_grid.h"
#include "sim/search/tune_point.h"

namespace dbo {

enum class TuneObjective : std::uint8_t { TokensPerSecond, StepTime };

struct TuneGoal {
  TuneObjective objective = TuneObjective::TokensPerSecond;
  std::int64_t max_step_ns = INT64_MAX;
};

/// One batch with and without splitting, in the same setting or in the best ones of the sweep.
struct Gain {
  std::int64_t tokens = 0;                    ///< a data-parallel rank
  std::int64_t split_ns = 0, unsplit_ns = 0;  ///< 0: does not fit, or is not split

  bool both() const { return split_ns > 0 && unsplit_ns > 0; }
  double ratio() const { return both() ? static_cast<double>(unsplit_ns) / static_cast<double>(split_ns) : 0; }
};

/// From how many tokens a rank on a setting pays, in one phase.
struct Crossover {
  Phase phase = Phase::Decode;
  std::optional<std::int64_t> tokens;  ///< absent: never within what fits
  bool always = false;                 ///< pays from the smallest batch that can be split
  std::vector<Gain> gains;             ///< of the batches looked at
  TunePoint setting{};                 ///< what the server runs in this phase, but for the batch

  std::int64_t largest() const { return gains.empty() ? 0 : gains.back().tokens; }
};

/// The gain of a setting over the un-split step, and what it is when costs are off by `spread`.
struct Sureness {
  double spread = 0;
  double gain = 1, least = 1, most = 1;
  std::optional<double>
      skewed;  ///< the gain with experts as unevenly loaded as served ones; only where a config's are even

  /// Whether splitting is better (or worse) for every such error, and with skewed experts.
  bool sure() const {
    const double low = std::min(least, skewed.value_or(least)), high = std::max(most, skewed.value_or(most));
    return low > 1 || high < 1;
  }
};

/// Splitting or not on one server, at one batch.
struct Advice {
  std::string server;  ///< "vLLM", "SGLang"
  bool on = false;
  std::string reason;                ///< in words, with numbers
  std::optional<TunePoint> setting;  ///< the best split one the server has; absent: it has none here
  std::optional<TunePoint> unsplit;  ///< the best un-split one with any of its transports
  Sureness sureness;
  std::vector<Crossover> crossovers;  ///< decode, prefill
};

struct TuneReport {
  std::vector<double> throughput;  ///< tokens a second and GPU, by point; 0 where it cannot run
  std::optional<std::size_t> best, best_split, best_unsplit;    ///< of all points
  std::optional<std::size_t> own_best, own_split, own_unsplit;  ///< of the config's own batch
  std::optional<std::int64_t> own_tokens;                       ///< absent when the config's own batch was not tried
  bool own_fits = false;                                        ///< some setting has the memory for it
  std::vector<std::size_t> pareto;                              ///< throughput against step time, fastest step first
  std::vector<Gain> gains;        ///< by batch: the best split setting against the best un-split one
  std::vector<LeftOut> left_out;  ///< of the grid, and points that cannot run, by reason
  std::vector<Advice> advice;
};

/// `results` [grid.points]. Simulates what the words need besides: batches between those of the grid where the sign of
/// the gain changes, the other phase, and costs that are off.
TuneReport make_tune_report(const Config& config, const TuneGrid& grid, const std::vector<TuneResult>& results,
                            const TuneGoal& goal);

/// The draw of experts of kSkewAlpha that SGLang's decode on 72 GPUs is compared by: a zipf exponent that gives, with
/// its redundant experts, the balancedness it published (0.81).
inline constexpr double kSkewAlpha = 0.69;
inline constexpr std::uint64_t kSkewSeed = 2;

/// The relative spread that costs of the config's source have: of a profile its median between quartiles; of the
/// analytical model what published steps were met within; none for stated ones.
double cost_spread(const Config& config);

}  // namespace dbo
