// Sees every op as it is enqueued: how measured traces learn which kernels belong to which op. Two real kinds: CUPTI
// activity (full) and events (light).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dbo::runtime {

class OpObserver {
 public:
  OpObserver() = default;
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  virtual ~OpObserver() = default;

  /// Around the launches of an op, on the thread that makes them. `capturing`: the stream is in a capture. The step's
  /// own first launches come as the op behind the plan's last.
  virtual void before_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) = 0;
  virtual void after_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) = 0;
  /// On the rank's main thread, before everything else of a step.
  virtual void begin_step(cudaStream_t compute, bool capturing) = 0;
};

}  // namespace dbo::runtime
