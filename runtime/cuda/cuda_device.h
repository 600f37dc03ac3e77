// A GPU as the target of a plan's programs: lanes are streams, events are CUDA events, and a step can be captured into
// a graph while the host threads take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/cuda/handles.h"
#include "runtime/cuda/hang_guard.h"
#include "runtime/cuda/launch_table.h"
#include "runtime/cuda/op_observer.h"
#include "runtime/cuda/sm_partition.h"
#include "runtime/device.h"
#include "runtime/step.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::runtime {

/// The streams of one rank: a lane each, in green contexts when the plan's SM budget says so.
class LaneStreams {
 public:
  /// On the current GPU. `partition` may be empty; it must outlive the streams. The comm lane has high priority.
  LaneStreams(const Plan& plan, const SmPartition* partition);
  cudaStream_t get(LaneId lane) const { return streams_[lane].get(); }
  std::size_t count() const { return streams_.size(); }

 private:
  std::vector<Stream> streams_;
};

struct CudaDeviceOptions {
  int gpu = 0;
  int rank = 0;
  /// Progress of ops whose kernels do not write it, by a stream memory operation after each op: about a microsecond of
  /// the lane's time, so off when time is measured.
  bool write_progress = true;
  Ns host_wait_deadline{10'000'000'000};
};

class CudaDevice final : public Device {
 public:
  /// `progress` has a word per lane. All arguments must outlive the device; the calling thread has the GPU selected.
  CudaDevice(const Plan& plan, const Linear& linear, const LaneStreams& lanes, const LaunchTable& table,
             const HostWords& progress, HangGuard& guard, CudaDeviceOptions options);

  void bind_thread() override;
  void begin_step() override;
  void launch(std::uint32_t plan_op) override;
  void record(int thread, EventId event, LaneId lane) override;
  void wait(int thread, EventId event, LaneId lane) override;
  void host_wait(std::uint32_t plan_op, bool notify) override;
  void end_step() override;
  void abandon_step() noexcept override;
  void stop() noexcept override { stopped_ = true; }

  /// Nullptr: none. Stays until changed; must not change inside a step.
  void observe(OpObserver* observer) { observer_ = observer; }

  /// Runs one step of `runner` (which enqueues on this device) into a graph instead of onto the GPU. Throws InputError
  /// when an op blocks the host: such a step cannot be captured.
  Graph capture(StepRunner& runner);
  /// Launches a captured step on `compute`; one launch, no events.
  void launch_graph(const GraphExec& graph);

  /// Returns once the last step is over. A GPU that makes no progress ends the process through the hang guard; an error
  /// of the GPU throws CudaError. Throws Stopped when the device is stopped meanwhile.
  void wait_step();
  bool step_done() const;

  std::uint32_t steps() const { return steps_; }  ///< begun so far, captures not counted: what kernels call the step
  cudaStream_t compute() const { return lanes_.get(kComputeLane); }
  const CudaDeviceOptions& options() const { return options_; }
  /// For the hang guard: where the lanes stand, by their progress words.
  std::string report() const;
  std::uint64_t progress_sum() const;

 private:
  void fork();
  void join();
  cudaEvent_t event_of(int thread, EventId event);
  void wait_counts(std::uint32_t plan_op);
  void wait_end(std::uint32_t plan_op);

  const Plan& plan_;
  const Linear& linear_;
  const LaneStreams& lanes_;
  const LaunchTable& table_;
  const HostWords& progress_;
  HangGuard& guard_;
  CudaDeviceOptions options_;
  OpObserver* observer_ = nullptr;

  std::vector<std::uint32_t> ordinal_;         ///< by op: what its lane has done once it is over
  std::vector<std::vector<Event>> events_;     ///< by thread, event
  std::vector<std::vector<bool>> recorded_;    ///< in this step; a stale record of the step before is none
  std::vector<std::optional<Event>> op_ends_;  ///< by op: recorded behind ops whose end the host waits for
  std::vector<Event> joins_;                   ///< by lane, then side stream
  Event fork_, end_;
  bool capturing_ = false;
  bool in_step_ = false;
  Graph captured_;
  std::uint32_t steps_ = 0;
  std::atomic<bool> stopped_{false};
};

}  // namespace dbo::runtime
