// Reference work: a dense product and a copy, timed before and after everything else.
#pragma once

#include "kernels/compute/dense_gemm.h"
#include "runtime/cuda/handles.h"
#include "validate/calibration_result.h"
#include "validate/cuda/chain_timer.h"

namespace dbo::validate {

/// One rank's anchors. Ranks time theirs together, so that power is drawn as in a step.
class AnchorTimer {
 public:
  /// On the current GPU; random operands.
  explicit AnchorTimer(runtime::HostGroup& group);
  ~AnchorTimer();
  AnchorTimer(const AnchorTimer&) = delete;
  AnchorTimer& operator=(const AnchorTimer&) = delete;

  /// Collective; some 20 ms.
  Anchor measure();

 private:
  ChainTimer timer_;
  runtime::DeviceBuffer scratch_, operands_, copies_;
  kernels::DenseContext dense_;
};

}  // namespace dbo::validate
