// One setting of a sweep simulated: what its step takes, and whether it can run at all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/search/predict.h"
#include "sim/search/tune_grid.h"

namespace dbo {

enum class TuneStatus : std::uint8_t {
  Ok,
  NoMemory,  ///< the step needs more than the GPU has
  NotSplit,  ///< the server would not split this batch; `why` is its reason
  Unsound    ///< the plan has a deadlock or race; `why` is the finding
};

std::string_view status_name(TuneStatus status);  ///< "ok", "no-memory", "not-split", "unsound"

struct TuneResult {
  TuneStatus status = TuneStatus::Ok;
  std::int64_t step_ns = 0;       ///< 0 unless Ok or NoMemory
  std::int64_t memory_bytes = 0;  ///< 0 when the model has no dimensions
  std::string why;

  friend bool operator==(const TuneResult&, const TuneResult&) = default;
};

/// Costs other than they were worked out: factors on everything that computes and everything that communicates.
struct CostScale {
  double compute = 1, communication = 1;

  bool is_one() const { return compute == 1 && communication == 1; }
};

/// Costs that are off. What takes no time asks for nothing either.
CostTable scaled_costs(const CostTable& costs, const Plan& plan, const CostScale& scale);

/// Simulates settings one after the other, keeping what neighbours share: the batch, costs, and the proof that a
/// schedule is sound. For one thread; the config must outlive it.
class TuneEvaluator {
 public:
  explicit TuneEvaluator(const Config& config);

  TuneResult evaluate(const TunePoint& point, const CostScale& scale = {});

  /// The config that a point stands for, its batch included.
  Config config_of(const TunePoint& point) const;
  /// Tokens of the whole step of a point.
  std::int64_t step_tokens(const TunePoint& point);

 private:
  struct KeptCosts {
    std::vector<OpDef> ops;
    std::vector<Load> loads;
    Execution execution;
    std::string schedule;  ///< whose clock computation is priced at; empty: it depends on none
    ClockedCosts costs;
  };

  Config settings_of(const TunePoint& point) const;
  UniformWorkload workload_of(const TunePoint& point) const;
  const StepBatch& batch_of(const TunePoint& point);
  const CostTable& costs_of(const Config& config, const TunePoint& point, const Plan& plan);
  const std::string& finding_of(const TunePoint& point, const Plan& plan);

  const Config& base_;
  Config light_;  ///< without the batch, which is large
  TunePoint batch_point_;
  StepBatch batch_;
  bool has_batch_ = false;
  Decision decision_;
  CostSources sources_;  ///< its loads are those of `batch_point_`
  TunePoint costs_point_;
  std::vector<KeptCosts> costs_;
  std::map<std::string, std::string> findings_;  ///< by schedule, ubatches and transport; empty: sound
};

}  // namespace dbo
