// Why a step takes as long as it does, in plain words with numbers of what-if runs.
#pragma once

#include <string>
#include <vector>

#include "sim/config/config.h"
#include "sim/search/predict.h"
#include "sim/search/split_parts.h"

namespace dbo {

/// The step again with one thing changed.
struct WhatIf {
  std::string what;      ///< "192 tokens a rank", "communication took no time"
  bool setting = false;  ///< something a user can choose; otherwise a limit
  bool runs = true;      ///< false: the GPU's memory does not hold it
  std::int64_t step_ns = 0;
  double throughput = 0;  ///< tokens a second and GPU
};

struct Why {
  std::vector<std::string> sentences;
  std::vector<SplitPart> parts;  ///< of the difference to the un-split step; empty when the step is not split
  std::vector<WhatIf> what_ifs;  ///< limits first, then settings, the best throughput first
};

/// Simulates the what-ifs: communication, compute and host for free; splitting or not; other batches, SM counts,
/// transports and schedules of the config's kind. `prediction` is of the config's first step, with details.
Why explain(const Config& config, const Prediction& prediction);

}  // namespace dbo
