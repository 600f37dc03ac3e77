// Two disjoint sets of SMs of one GPU, by green contexts.
#pragma once

#include <cuda_runtime_api.h>

namespace dbo::bench {

/// Splits the current device's SMs into at least `sms` and the rest, both from one split, so that they cannot overlap.
/// The hardware rounds up to its granularity (8 on sm_90). Streams are used from the primary context.
class GreenSplit {
 public:
  explicit GreenSplit(int sms);
  ~GreenSplit();
  GreenSplit(const GreenSplit&) = delete;
  GreenSplit& operator=(const GreenSplit&) = delete;

  cudaStream_t small() const { return streams_[0]; }
  cudaStream_t rest() const { return streams_[1]; }
  int small_sms() const { return sms_[0]; }
  int rest_sms() const { return sms_[1]; }

 private:
  int device_ = 0;
  void* contexts_[2] = {nullptr, nullptr};  // CUgreenCtx
  cudaStream_t streams_[2] = {nullptr, nullptr};
  int sms_[2] = {0, 0};
};

}  // namespace dbo::bench
