#include "runtime/cuda/host_costs.h"

#include <chrono>

#include "runtime/cuda/check.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/rank_replay.h"
#include "runtime/ring.h"

namespace dbo::runtime {
namespace {

constexpr int kOps = 40;
constexpr Ns kOpTime{20'000};

/// `kOps` ops one after the other: all on `compute`, or in turn on both lanes with an event between.
Plan chain_plan(bool both_lanes) {
  Plan plan;
  plan.lanes = {"compute", "comm"};
  plan.events = {"done"};
  plan.ops = {{"A0", OpKind::A0, kComputeLane, SmPool::Compute, {}, {}, {}},
              {"C.copy", OpKind::CCopy, kCommLane, SmPool::Comm, {}, {}, {}}};
  Thread thread;
  for (int i = 0; i < kOps; ++i) {
    const auto lane = static_cast<LaneId>(both_lanes ? i % 2 : 0);
    Instruction instruction;
    instruction.lane = lane;
    if (both_lanes && i > 0) {
      instruction.verb = Verb::Wait;
      thread.body.push_back(instruction);
    }
    instruction.verb = Verb::Launch;
    instruction.op.op = lane;
    thread.body.push_back(instruction);
    if (both_lanes) {
      instruction.verb = Verb::Record;
      thread.body.push_back(instruction);
    }
  }
  Instruction exit;
  exit.verb = Verb::Exit;
  thread.body.push_back(exit);
  plan.threads = {thread};
  plan.classes = {{{{0, 1}}, {0}, 0}};
  plan.loads = {Load{{UbatchLoad{}}}};
  return plan;
}

struct Gaps {
  std::vector<Ns> eager, graph, graph_launch;
};

Gaps measure_gaps(HostGroup& group, HangGuard& guard, int gpu, bool both_lanes, int repeats) {
  const Plan plan = chain_plan(both_lanes);
  StandInWork op;
  op.time = kOpTime;
  ReplayOptions options;
  options.gpu = gpu;
  RankReplay replay(group, plan, 0, stand_in_source(std::vector<StandInWork>(kOps, op)), guard, options);
  Gaps gaps;
  const auto add = [&](std::vector<Ns>& to) {
    const LaneGaps found = lane_gaps(plan, replay.linear(), replay.stamp_times());
    const std::vector<Ns>& from = both_lanes ? found.cross_lane : found.same_lane;
    to.insert(to.end(), from.begin(), from.end());
  };
  for (int i = 0; i < repeats; ++i) {
    replay.run_eager();
    add(gaps.eager);
  }
  replay.capture({});
  for (int i = 0; i < repeats; ++i) {
    replay.run_graph({});
    add(gaps.graph);
    gaps.graph_launch.push_back(replay.host_time());
  }
  return gaps;
}

/// Host time of one call of `call`, while a long kernel keeps what is enqueued from running.
template <typename Call>
Spread time_calls(int repeats, cudaStream_t stream, const Call& call) {
  std::vector<Ns> times;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    times.push_back(std::chrono::duration_cast<Ns>(std::chrono::steady_clock::now() - begin));
  }
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream));
  return spread_of(times);
}

Spread as_spread(const HandoverCost& cost, int count) {
  return {cost.median, cost.p10, cost.p90, count};
}

}  // namespace

MeasuredHostCosts measure_host_costs(int gpu, bool quick) {
  const int repeats = quick ? 5 : 50;
  MeasuredHostCosts costs;
  start_gpu(gpu);
  {
    const Stream stream = Stream::create(false), other = Stream::create(false);
    const Event event = Event::create(false);
    const DeviceBuffer probe(sizeof(kernels::TimerProbe));
    // About 3 ms of work ahead, and far fewer calls than a queue holds.
    const auto busy = [&] {
      DBO_CUDA_CHECK(kernels::launch_timer_probe(probe.as<kernels::TimerProbe>(), stream.get()));
    };
    busy();
    costs.launch = time_calls(200, stream.get(), [&] { DBO_CUDA_CHECK(kernels::launch_nothing(stream.get())); });
    busy();
    costs.record = time_calls(200, stream.get(), [&] { DBO_CUDA_CHECK(cudaEventRecord(event.get(), stream.get())); });
    costs.wait =
        time_calls(200, other.get(), [&] { DBO_CUDA_CHECK(cudaStreamWaitEvent(other.get(), event.get(), 0)); });
    kernels::TimerProbe tick{};
    DBO_CUDA_CHECK(cudaMemcpy(&tick, probe.get(), sizeof tick, cudaMemcpyDeviceToHost));
    costs.timer_tick_ns = tick.tick_ns;
  }
  const int rounds = quick ? 500 : 20'000;
  costs.yield_awake = as_spread(measure_handover(2, rounds, kDefaultSpin), 2 * rounds);
  costs.yield_asleep = as_spread(measure_handover(2, quick ? 100 : 1000, Ns{}), quick ? 200 : 2000);
  InProcessGroup group(1);
  HangGuard guard;
  const Gaps same = measure_gaps(group.member(0), guard, gpu, false, repeats);
  const Gaps cross = measure_gaps(group.member(0), guard, gpu, true, repeats);
  costs.eager_gap = spread_of(same.eager);
  costs.node_gap = spread_of(same.graph);
  costs.graph_launch = spread_of(same.graph_launch);
  costs.eager_lane_gap = spread_of(cross.eager);
  costs.lane_gap = spread_of(cross.graph);
  costs.graph_ops = kOps;
  return costs;
}

}  // namespace dbo::runtime
