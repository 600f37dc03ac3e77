// The router: scores of the gate to experts and weights. Plain C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compute/limits.h"
#include "sim/base/model_shape.h"

namespace dbo::kernels {

/// Grouped top-k. With a bias (DeepSeek-V3's correction) experts are chosen by score + bias, a group by the sum of its
/// two best; without, a group by its best. Weights are the unbiased scores, divided by their sum where the model does
/// so, times the scaling. Equal scores go to the lower expert.
struct RouterArgs {
  const float* logits = nullptr;              ///< [tokens][experts]
  const float* bias = nullptr;                ///< [experts] or null
  const std::int32_t* plan_expert = nullptr;  ///< [tokens][top_k] experts that replace the chosen ones; null: keep
                                              ///< them. The weights stay those of the chosen.
  std::int32_t* expert = nullptr;             ///< [tokens][top_k]
  float* weight = nullptr;                    ///< [tokens][top_k]
  int tokens = 0;
  int experts = 0;  ///< at most kMaxExperts
  int top_k = 0;    ///< at most kMaxTopK
  int groups = 1;   ///< divides experts; what groups it can choose among: router_lanes_per_group (limits.h)
  int group_top_k = 1;
  Scoring scoring = Scoring::Softmax;
  bool normalise = true;
  float scaling = 1.0f;
};
[[nodiscard]] cudaError_t launch_router(const RouterArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
