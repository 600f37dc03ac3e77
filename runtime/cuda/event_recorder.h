// The light measured trace: a timing event before and behind each op, inside graphs too.
#pragma once

#include <vector>

#include "runtime/cuda/handles.h"
#include "runtime/cuda/op_observer.h"
#include "runtime/measured_trace.h"

namespace dbo::runtime {

/// One rank's events. Times have the events' resolution, about half a microsecond, and count from the step's begin. An
/// op begins when its lane comes to it: where an eager host is late with the launch, that time is part of the op.
class EventRecorder final : public OpObserver {
 public:
  /// On the current GPU; makes all events now. `ops`: the plan's and one for the step's own first launches.
  explicit EventRecorder(std::size_t ops);

  void before_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override;
  void after_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override;
  void begin_step(cudaStream_t compute, bool capturing) override;

  /// Of the last step that ran, eager or by a graph captured under this recorder. The step must be over.
  std::vector<OpTime> times() const;
  /// The stream an op of the last step was launched on; nullptr when it was not.
  cudaStream_t stream_of(std::uint32_t plan_op) const { return streams_[plan_op]; }

 private:
  static void record(const Event& event, cudaStream_t stream, bool capturing);

  Event base_;
  std::vector<Event> begin_, end_;  ///< by plan_op
  std::vector<cudaStream_t> streams_;
  std::vector<bool> seen_;
};

}  // namespace dbo::runtime
