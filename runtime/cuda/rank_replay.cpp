#include "runtime/cuda/rank_replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/cuda/check.h"
#include "runtime/cuda/process.h"
#include "sim/base/error.h"
#include "sim/plan/plan_json.h"

namespace dbo::runtime {
namespace {

Ns since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<Ns>(std::chrono::steady_clock::now() - begin);
}

}  // namespace

SourceMaker stand_in_source(std::vector<StandInWork> work) {
  return [work = std::move(work)](const RankSetup& setup) {
    return std::make_unique<StandInTable>(setup.group, setup.placement, setup.plan, setup.linear, work, setup.progress,
                                          setup.timer, StandInOptions{setup.deadline});
  };
}

RankReplay::RankReplay(HostGroup& group, const Plan& plan, int plan_rank, const SourceMaker& make_source,
                       HangGuard& guard, ReplayOptions options)
    : group_(group), guard_(guard), plan_(plan), plan_rank_(plan_rank) {
  const int plan_class = plan.class_of(plan_rank);
  linear_ = linearise(plan, plan_class);
  given_ = options.given ? options.given(linear_) : linear_;
  start_gpu(options.gpu);
  DBO_CUDA_CHECK(cudaDeviceGetAttribute(&gpu_sms_, cudaDevAttrMultiProcessorCount, options.gpu));
  const Versions v = versions();
  check_agreement(group, {{"plan hash", plan_hash(plan)},
                          {"CUDA driver version", version_text(v.driver)},
                          {"CUDA runtime version", version_text(v.runtime)},
                          {"NCCL version", nccl_version_text(v.nccl)}});
  placement_ = exchange_placement(group, options.gpu);
  clocks_.resize(static_cast<std::size_t>(group.size()));
  if (group.size() > 1) aligner_ = std::make_unique<ClockAligner>(group, placement_);
  if (plan.sm.control == SmControl::GreenContext && plan.sm.comm > 0) {
    partition_ = SmPartition::create(options.gpu, plan.sm.comm);
  }
  lanes_ = std::make_unique<LaneStreams>(plan, partition_.comm_sms() > 0 ? &partition_ : nullptr);
  progress_ = HostWords(plan.lanes.size());
  timer_ = probe_timer();
  source_ = make_source(RankSetup{group, placement_, plan, plan_rank, linear_, progress_, timer_, options.gpu,
                                  partition_.comm_sms(), partition_.compute_sms(), options.deadline});
  table_ = source_->table();
  if (options.edit) options.edit(table_);
  CudaDeviceOptions device_options;
  device_options.gpu = options.gpu;
  device_options.rank = plan_rank;
  device_options.host_wait_deadline = options.deadline;
  device_options.write_progress = options.write_progress;
  device_ = std::make_unique<CudaDevice>(plan, given_, *lanes_, table_, progress_, guard, device_options);
  if (options.wrap) wrapped_ = options.wrap(*device_, *this);
  light_ = std::make_unique<EventRecorder>(linear_.ops.size() + 1);
  runner_ = std::make_unique<StepRunner>(plan, plan_class, linear_, wrapped_ ? *wrapped_ : *device_,
                                         StepOptions{.spin = options.spin, .refuse_unsound = true});
  step_begin_ = Event::create(true);
  step_end_ = Event::create(true);
  watch_ = guard.watch({.progress = [this] { return device_->progress_sum(); },
                        .report = [this] { return device_->report(); },
                        .abort = options.abort});
  run_eager();
  has_stamps_ = !source_->times().empty();
  measure_launch();
  group_.barrier();
}

void RankReplay::measure_launch() {
  // So few that the queue never fills.
  constexpr int kLaunches = 64;
  std::vector<Ns> costs;
  for (int i = 0; i < kLaunches; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    DBO_CUDA_CHECK(kernels::launch_nothing(device_->compute()));
    costs.push_back(since(begin));
  }
  DBO_CUDA_CHECK(cudaStreamSynchronize(device_->compute()));
  launch_cost_ = spread_of(costs).median;
}

RankReplay::~RankReplay() {
  // The guard must not look at what is about to go.
  watch_.reset();
}

void RankReplay::align_clocks() {
  // GPUs' clocks drift apart. Aligned once, wires that are given by stamps, and traces of several ranks, were off by
  // more than 100 us after some seconds.
  constexpr std::chrono::milliseconds kStale{50};
  if (!aligner_) return;
  const bool stale = std::chrono::steady_clock::now() - aligned_ > kStale;
  if (group_.gather(stale ? "1" : "0").front() != "1") return;
  const HangGuard::Section section(guard_);
  clocks_ = aligner_->measure();
  source_->set_clocks(clocks_, device_->compute());
  aligned_ = std::chrono::steady_clock::now();
}

void RankReplay::run_eager() {
  align_clocks();
  group_.barrier();
  const HangGuard::Section section(guard_);  // a launch may block, too
  DBO_CUDA_CHECK(cudaEventRecord(step_begin_.get(), device_->compute()));
  const auto begin = std::chrono::steady_clock::now();
  runner_->run();
  host_time_ = since(begin);
  DBO_CUDA_CHECK(cudaEventRecord(step_end_.get(), device_->compute()));
  device_->wait_step();
  DBO_CUDA_CHECK(cudaEventSynchronize(step_end_.get()));
}

void RankReplay::capture(const GraphKey& key) {
  group_.barrier();
  const Graph graph = device_->capture(*runner_);
  graphs_.put(key, GraphExec::create(graph, device_->compute()));
  DBO_CUDA_CHECK(cudaStreamSynchronize(device_->compute()));
  run_graph(key);
}

bool RankReplay::run_graph(const GraphKey& key) {
  const GraphExec* graph = graphs_.find(key);
  if (graph == nullptr) {
    run_eager();
    return false;
  }
  align_clocks();
  group_.barrier();
  const HangGuard::Section section(guard_);
  DBO_CUDA_CHECK(cudaEventRecord(step_begin_.get(), device_->compute()));
  const auto begin = std::chrono::steady_clock::now();
  device_->launch_graph(*graph);
  host_time_ = since(begin);
  DBO_CUDA_CHECK(cudaEventRecord(step_end_.get(), device_->compute()));
  device_->wait_step();
  DBO_CUDA_CHECK(cudaEventSynchronize(step_end_.get()));
  return true;
}

void RankReplay::set_trace(TraceMode mode, CuptiTracer* tracer) {
  source_->watch_entries(mode == TraceMode::Light);
  switch (mode) {
    case TraceMode::Stamps:
      device_->observe(nullptr);
      break;
    case TraceMode::Light:
      device_->observe(light_.get());
      break;
    case TraceMode::Full:
      DBO_CHECK(tracer != nullptr, "a full trace needs CUPTI's session");
      device_->observe(&tracer->observer(group_.rank(), linear_.ops.size() + 1));
      break;
  }
}

RankTimes RankReplay::with_clock(std::vector<OpTime> ops) const {
  RankTimes times;
  times.rank = plan_rank_;
  times.ops = std::move(ops);
  // Ours minus the first rank's is the opposite of what that rank's clock is ahead of ours.
  times.clock_ns = -clocks_[0].offset_ns;
  times.residual_ns = clocks_[0].residual_ns;
  return times;
}

RankTimes RankReplay::stamp_times() const {
  return with_clock(source_->times());
}

std::vector<OpTime> RankReplay::on_gpu_clock(std::vector<OpTime> times) const {
  // Where launches stamp themselves, by the median distance to the stamps; else by the step's first launch, whose time
  // the GPU wrote down.
  const std::vector<OpTime> stamps = source_->times();
  std::vector<Ns> distance;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    if (times[i].ran && stamps[i].ran) distance.push_back(Ns{stamps[i].end_ns - times[i].end_ns});
  }
  if (distance.empty() && times.back().ran) distance.push_back(Ns{source_->step_begin_ns() - times.back().begin_ns});
  const std::int64_t shift = spread_of(distance).median.count();
  times.pop_back();
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i].begin_ns += shift;
    times[i].end_ns += shift;
    if (i < stamps.size()) times[i].ready_ns = stamps[i].ready_ns;
  }
  return times;
}

RankTimes RankReplay::light_times() const {
  std::vector<OpTime> times = on_gpu_clock(light_->times());
  const std::vector<std::int64_t> entries = source_->entries();
  for (std::uint32_t op = 0; op < times.size(); ++op) {
    if (!times[op].ran) continue;
    for (std::size_t lane = 0; lane < lanes_->count(); ++lane) {
      if (lanes_->get(static_cast<LaneId>(lane)) == light_->stream_of(op)) times[op].lane = static_cast<int>(lane);
    }
    if (op < entries.size()) times[op].entered_ns = entries[op];
  }
  return with_clock(std::move(times));
}

int RankReplay::lane_sms(LaneId lane) const {
  if (partition_.comm_sms() == 0) return gpu_sms_;
  return lane == kCommLane ? partition_.comm_sms() : partition_.compute_sms();
}

RankTimes RankReplay::full_times(CuptiTracer& tracer) const {
  group_.barrier();
  std::vector<OpTime> times = on_gpu_clock(tracer.times(group_.rank()));
  for (std::size_t i = 0; i < times.size(); ++i) times[i].sms = std::min(times[i].sms, lane_sms(linear_.ops[i].lane));
  return with_clock(std::move(times));
}

Ns RankReplay::event_time() const {
  float ms = 0;
  DBO_CUDA_CHECK(cudaEventElapsedTime(&ms, step_begin_.get(), step_end_.get()));
  return Ns{std::llround(static_cast<double>(ms) * 1e6)};
}

}  // namespace dbo::runtime
