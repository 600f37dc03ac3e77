// Where the difference between a split step and the un-split one goes: what-if runs of both that take one thing away
// after another, so that the parts add up to the difference exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/config/config.h"
#include "sim/search/predict.h"

namespace dbo {

struct SplitPart {
  std::string what;     ///< "waiting for communication"
  std::int64_t ns = 0;  ///< what the split step takes longer (below 0: shorter) because of it
  /// Both steps once this is taken away too, as simulated.
  std::int64_t split_ns = 0, unsplit_ns = 0;
};

/// Of a step that is split; empty for one that is not. In this order: ops that share SMs, memory and ports slow each
/// other; communication that is waited for; the host and the gaps between kernels; SMs set aside for communication;
/// weights that every ubatch reads again; and then, by sort of op, kernels for part of the batch against those for all
/// of it, whose fixed times and last waves are more in number, until nothing is left of either step. Parts that change
/// neither step are left out. The sum is the split step less the un-split one.
std::vector<SplitPart> split_parts(const Config& config, const Prediction& prediction);

}  // namespace dbo
