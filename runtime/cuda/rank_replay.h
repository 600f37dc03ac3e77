// One rank's replay of a plan on a GPU: set-up in the order that cannot dead-lock, steps eager
// and by graph, and what was measured.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cupti_tracer.h"
#include "runtime/cuda/event_recorder.h"
#include "runtime/cuda/graph_cache.h"
#include "runtime/cuda/hang_guard.h"
#include "runtime/cuda/peer_memory.h"
#include "runtime/cuda/stand_in_table.h"
#include "runtime/host_group.h"
#include "runtime/measured_trace.h"
#include "runtime/step.h"

namespace dbo::runtime {

/// Light: a timing event before and behind each op. Full: CUPTI. Stamps are there in every mode, where launches stamp
/// themselves.
enum class TraceMode : std::uint8_t { Stamps, Light, Full };

class RankReplay;

struct ReplayOptions {
  int gpu = 0;
  Ns spin = kDefaultSpin;
  /// How long an op, or the host, waits for its peers.
  Ns deadline{5'000'000'000};
  /// As of CudaDeviceOptions: off where time is measured of kernels that do not write their progress themselves.
  bool write_progress = true;
  /// What a plan's threads enqueue on in place of the GPU, made from it; it passes on what it does not change. May be
  /// empty.
  std::function<std::unique_ptr<Device>(Device& gpu, const RankReplay& replay)> wrap;
  /// Changes launches before the first step. May be empty.
  std::function<void(LaunchTable& table)> edit;
  /// The order as the GPU is to be given it, when it is not the plan's own: ops on other lanes. May be empty.
  std::function<Linear(const Linear& planned)> given;
  /// What else has to be ended when the hang guard ends the process (communicators); at most a few seconds.
  std::function<void()> abort;
};

/// What a source of launches is made from: this rank's place among the others. All references live as long as the rank.
struct RankSetup {
  HostGroup& group;
  const Placement& placement;
  const Plan& plan;
  int plan_rank;
  const Linear& linear;
  const HostWords& progress;  ///< a word per lane
  const kernels::TimerProbe& timer;
  int gpu;
  int comm_sms, compute_sms;  ///< of green contexts; 0: none were made
  Ns deadline;
};
/// Makes the launches of a rank; collective over the group.
using SourceMaker = std::function<std::unique_ptr<OpSource>(const RankSetup&)>;

/// Stand-ins that last what `work` says, by plan_op.
SourceMaker stand_in_source(std::vector<StandInWork> work);

/// Everything of one rank. Construction, and every function that says so, is collective over the group.
class RankReplay {
 public:
  /// `plan_rank` is the rank of the plan this one plays; the group's ranks play consecutive ones. Ends at a host
  /// barrier after one warm step, so that no kernel waits for a peer that still loads.
  RankReplay(HostGroup& group, const Plan& plan, int plan_rank, const SourceMaker& make_source, HangGuard& guard,
             ReplayOptions options);
  ~RankReplay();
  RankReplay(const RankReplay&) = delete;
  RankReplay& operator=(const RankReplay&) = delete;

  /// Collective: one eager step, awaited.
  void run_eager();
  /// Collective: captures a step under the current trace mode, uploads it, runs it once.
  void capture(const GraphKey& key);
  /// Collective: one replay of the captured step, eager when the cache has no such graph; awaited. Returns whether a
  /// graph ran.
  bool run_graph(const GraphKey& key);

  /// From the next step or capture on. `tracer` for Full only.
  void set_trace(TraceMode mode, CuptiTracer* tracer = nullptr);
  /// In place of a trace mode's own observer, until `set_trace`.
  void observe(OpObserver& observer) { device_->observe(&observer); }

  /// Of the last step.
  RankTimes stamp_times() const;
  RankTimes light_times() const;
  /// Collective. Times of CUPTI, shifted onto the GPU's own clock by the stamps of the same step. `sms`: at most; an
  /// op's largest grid, or all SMs its lane may use when that is less.
  RankTimes full_times(CuptiTracer& tracer) const;
  /// From the first launch on `compute` to the end of the step, by events; only of steps run by `run_eager` and
  /// `run_graph`.
  Ns event_time() const;
  /// Host time of the last `run_eager` from first to last launch, or of the graph's launch.
  Ns host_time() const { return host_time_; }
  /// Host time of one launch on an idle GPU, measured at set-up.
  Ns launch_cost() const { return launch_cost_; }
  void check_arrivals() const { source_->check_arrivals(); }
  /// Whether `stamp_times` has anything: the launches stamp themselves.
  bool has_stamps() const { return has_stamps_; }
  const OpSource& source() const { return *source_; }

  int plan_rank() const { return plan_rank_; }
  const Linear& linear() const { return linear_; }
  cudaStream_t lane(LaneId lane) const { return lanes_->get(lane); }
  const kernels::TimerProbe& timer() const { return timer_; }
  /// As of the last step.
  const std::vector<ClockOffset>& clocks() const { return clocks_; }
  int comm_sms() const { return partition_.comm_sms(); }  ///< granted by a green context; 0: none was made
  int compute_sms() const { return partition_.compute_sms(); }
  void stop(std::exception_ptr error) noexcept { runner_->stop(std::move(error)); }

 private:
  void measure_launch();
  void align_clocks();
  RankTimes with_clock(std::vector<OpTime> ops) const;
  int lane_sms(LaneId lane) const;
  std::vector<OpTime> on_gpu_clock(std::vector<OpTime> times) const;

  HostGroup& group_;
  HangGuard& guard_;
  const Plan& plan_;
  int plan_rank_;
  Linear linear_, given_;
  int gpu_sms_ = 0;
  Placement placement_;
  std::unique_ptr<ClockAligner> aligner_;  ///< null: one rank
  std::vector<ClockOffset> clocks_;
  std::chrono::steady_clock::time_point aligned_;
  SmPartition partition_;
  std::unique_ptr<LaneStreams> lanes_;
  HostWords progress_;
  kernels::TimerProbe timer_{};
  std::unique_ptr<OpSource> source_;
  bool has_stamps_ = false;
  LaunchTable table_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Device> wrapped_;
  std::unique_ptr<EventRecorder> light_;
  std::unique_ptr<StepRunner> runner_;
  GraphCache graphs_;
  Event step_begin_, step_end_;
  Ns host_time_{}, launch_cost_{};
  std::shared_ptr<void> watch_;
};

}  // namespace dbo::runtime
