#include "runtime/cuda/cuda_device.h"

#include <chrono>
#include <thread>

#include "runtime/cuda/check.h"
#include "runtime/cuda/driver.h"
#include "runtime/ring.h"
#include "sim/base/error.h"

namespace dbo::runtime {

LaneStreams::LaneStreams(const Plan& plan, const SmPartition* partition) {
  for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) {
    const bool comm = lane == kCommLane;
    if (partition != nullptr) {
      streams_.push_back(comm ? partition->comm_stream() : partition->compute_stream());
    } else {
      streams_.push_back(Stream::create(comm));
    }
  }
}

CudaDevice::CudaDevice(const Plan& plan, const Linear& linear, const LaneStreams& lanes, const LaunchTable& table,
                       const HostWords& progress, HangGuard& guard, CudaDeviceOptions options)
    : plan_(plan),
      linear_(linear),
      lanes_(lanes),
      table_(table),
      progress_(progress),
      guard_(guard),
      options_(options),
      ordinal_(linear.ops.size(), 0),
      op_ends_(linear.ops.size()) {
  DBO_CHECK(table.ops.size() == linear.ops.size(), "the launch table has not the plan's ops");
  DBO_CHECK(progress.count() >= lanes.count(), "a progress word for each lane");
  for (const auto& queue : linear.queues) {
    std::uint32_t count = 0;
    for (const QueueItem& item : queue) {
      if (item.kind == QueueItem::Kind::Op) ordinal_[item.index] = ++count;
    }
  }
  for (const HostStep& step : linear.host) {
    const auto thread = static_cast<std::size_t>(step.thread);
    // Layer code's own events lie behind the plan's.
    while (events_.size() <= thread) {
      events_.emplace_back();
      for (int e = 0; e < events_per_thread(static_cast<int>(plan.events.size())); ++e) {
        events_.back().push_back(Event::create(false));
      }
    }
    if (step.verb == Verb::HostWait && !step.notify) op_ends_[step.index] = Event::create(false);
  }
  for (std::size_t i = 0; i < lanes.count() + table.side_streams.size(); ++i) joins_.push_back(Event::create(false));
  fork_ = Event::create(false);
  end_ = Event::create(false);
}

void CudaDevice::bind_thread() {
  DBO_CUDA_CHECK(cudaSetDevice(options_.gpu));
}

void CudaDevice::fork() {
  DBO_CUDA_CHECK(cudaEventRecord(fork_.get(), compute()));
  for (std::size_t lane = 1; lane < lanes_.count(); ++lane) {
    DBO_CUDA_CHECK(cudaStreamWaitEvent(lanes_.get(static_cast<LaneId>(lane)), fork_.get(), 0));
  }
  for (const cudaStream_t side : table_.side_streams) DBO_CUDA_CHECK(cudaStreamWaitEvent(side, fork_.get(), 0));
}

void CudaDevice::join() {
  const auto one = [&](cudaStream_t stream, const Event& event) {
    DBO_CUDA_CHECK(cudaEventRecord(event.get(), stream));
    DBO_CUDA_CHECK(cudaStreamWaitEvent(compute(), event.get(), 0));
  };
  for (std::size_t lane = 1; lane < lanes_.count(); ++lane) one(lanes_.get(static_cast<LaneId>(lane)), joins_[lane]);
  for (std::size_t i = 0; i < table_.side_streams.size(); ++i) one(table_.side_streams[i], joins_[lanes_.count() + i]);
}

void CudaDevice::begin_step() {
  DBO_CHECK(!in_step_, "a step begins inside another");
  if (stopped_) throw Stopped{};
  in_step_ = true;
  recorded_.assign(events_.size(), std::vector<bool>(events_.empty() ? 0 : events_[0].size(), false));
  if (capturing_) {
    // Relaxed: the ubatch threads, which did not begin the capture, launch into it.
    DBO_CUDA_CHECK(cudaStreamBeginCapture(compute(), cudaStreamCaptureModeRelaxed));
  } else {
    ++steps_;
  }
  // The step's own first launches are watched like an op behind the last one.
  const auto own = static_cast<std::uint32_t>(linear_.ops.size());
  if (observer_ != nullptr) {
    observer_->begin_step(compute(), capturing_);
    observer_->before_op(own, compute(), capturing_);
  }
  if (table_.begin) table_.begin(compute());
  if (observer_ != nullptr) observer_->after_op(own, compute(), capturing_);
  fork();
}

void CudaDevice::launch(std::uint32_t plan_op) {
  DBO_CHECK(in_step_ && plan_op < linear_.ops.size(), "an op outside of a step or of the plan's order");
  const LinearOp& op = linear_.ops[plan_op];
  const cudaStream_t stream = lanes_.get(op.lane);
  const OpLaunch& launch = table_.ops[plan_op];
  try {
    if (observer_ != nullptr) observer_->before_op(plan_op, stream, capturing_);
    launch.enqueue(stream);
    if (observer_ != nullptr) observer_->after_op(plan_op, stream, capturing_);
    if (!launch.stamped && options_.write_progress) {
      // Without the step's number, which a graph could not know; a lane's first op shows as a step back.
      DBO_DRIVER_CHECK(driver().write_value64(stream, reinterpret_cast<CUdeviceptr>(progress_.device(op.lane)),
                                              ordinal_[plan_op], 0));
    }
    if (op_ends_[plan_op]) DBO_CUDA_CHECK(cudaEventRecord(op_ends_[plan_op]->get(), stream));
  } catch (const NcclError& error) {
    throw NcclError(std::string(error.what()) + ", in " + describe(plan_, op) + ", rank " +
                    std::to_string(options_.rank));
  } catch (const CudaError& error) {
    throw CudaError(std::string(error.what()) + ", in " + describe(plan_, op) + ", rank " +
                    std::to_string(options_.rank));
  }
}

cudaEvent_t CudaDevice::event_of(int thread, EventId event) {
  return events_.at(static_cast<std::size_t>(thread)).at(event).get();
}

void CudaDevice::record(int thread, EventId event, LaneId lane) {
  DBO_CUDA_CHECK(cudaEventRecord(event_of(thread, event), lanes_.get(lane)));
  recorded_[static_cast<std::size_t>(thread)][event] = true;
}

void CudaDevice::wait(int thread, EventId event, LaneId lane) {
  if (!recorded_[static_cast<std::size_t>(thread)][event]) return;
  DBO_CUDA_CHECK(cudaStreamWaitEvent(lanes_.get(lane), event_of(thread, event), 0));
}

void CudaDevice::host_wait(std::uint32_t plan_op, bool notify) {
  if (capturing_) {
    throw InputError(describe(plan_, linear_.ops[plan_op]) +
                     " blocks the host: a step with it cannot be captured, run it eagerly");
  }
  if (notify) {
    wait_counts(plan_op);
  } else {
    wait_end(plan_op);
  }
}

namespace {

/// Polls `done` until it is true; throws Stopped, and CudaError with `what` after the deadline.
template <typename Done>
void poll(const Done& done, const std::atomic<bool>& stopped, Ns deadline, const std::string& what) {
  const auto give_up = std::chrono::steady_clock::now() + deadline;
  for (int i = 0; !done(); ++i) {
    if (stopped) throw Stopped{};
    if (i % 1024 == 1023 && std::chrono::steady_clock::now() > give_up) throw CudaError(what);
  }
}

}  // namespace

void CudaDevice::wait_counts(std::uint32_t plan_op) {
  DBO_CHECK(table_.counts_known != nullptr, "the plan waits for counts that no op of the table makes known");
  poll([&] { return table_.counts_known(plan_op, steps_); }, stopped_, options_.host_wait_deadline,
       "the counts of " + describe(plan_, linear_.ops[plan_op]) + ", rank " + std::to_string(options_.rank) +
           ", did not come: a rank has not started its part");
}

void CudaDevice::wait_end(std::uint32_t plan_op) {
  const auto done = [&] {
    const cudaError_t code = cudaEventQuery(op_ends_[plan_op]->get());
    if (code == cudaErrorNotReady) return false;
    DBO_CUDA_CHECK(code);
    return true;
  };
  poll(done, stopped_, options_.host_wait_deadline,
       describe(plan_, linear_.ops[plan_op]) + ", rank " + std::to_string(options_.rank) + ", did not end");
}

void CudaDevice::end_step() {
  DBO_CHECK(in_step_, "a step ends that has not begun");
  join();
  if (capturing_) {
    cudaGraph_t graph = nullptr;
    DBO_CUDA_CHECK(cudaStreamEndCapture(compute(), &graph));
    captured_ = Graph::adopt(graph);
  } else {
    DBO_CUDA_CHECK(cudaEventRecord(end_.get(), compute()));
  }
  in_step_ = false;
}

void CudaDevice::abandon_step() noexcept {
  if (in_step_ && capturing_) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(compute(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  in_step_ = false;
}

Graph CudaDevice::capture(StepRunner& runner) {
  struct Mode {
    explicit Mode(bool& on) : flag(on) { flag = true; }
    ~Mode() { flag = false; }
    bool& flag;
  } mode(capturing_);
  runner.run();
  return std::move(captured_);
}

void CudaDevice::launch_graph(const GraphExec& graph) {
  if (stopped_) throw Stopped{};
  ++steps_;
  DBO_CUDA_CHECK(cudaGraphLaunch(graph.get(), compute()));
  DBO_CUDA_CHECK(cudaEventRecord(end_.get(), compute()));
}

bool CudaDevice::step_done() const {
  const cudaError_t code = cudaEventQuery(end_.get());
  if (code == cudaErrorNotReady) return false;
  DBO_CUDA_CHECK(code);
  return true;
}

void CudaDevice::wait_step() {
  // Not a synchronise: that could not be left again when a peer is gone.
  const HangGuard::Section section(guard_);
  const ErrorScope scope("the step of rank " + std::to_string(options_.rank));
  for (int i = 0; !step_done(); ++i) {
    if (stopped_) throw Stopped{};
    if (i > 20'000) std::this_thread::yield();
  }
}

std::uint64_t CudaDevice::progress_sum() const {
  std::uint64_t sum = steps_;
  for (std::size_t lane = 0; lane < lanes_.count(); ++lane) sum = sum * 31 + progress_.load(lane);
  return sum;
}

std::string CudaDevice::report() const {
  std::vector<std::uint32_t> ended;
  for (std::size_t lane = 0; lane < lanes_.count(); ++lane) {
    const std::uint64_t word = progress_.load(lane);
    const auto step = static_cast<std::uint32_t>(word >> 32);
    // A word of the step before: the lane has ended nothing yet in this one.
    ended.push_back(step != 0 && step != steps_ ? 0 : static_cast<std::uint32_t>(word));
  }
  return progress_report(plan_, linear_, options_.rank, ended);
}

}  // namespace dbo::runtime
