#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/cuda/check.h"
#include "runtime/cuda/cuda_device.h"
#include "sim/base/error.h"
#include "tests/runtime/cuda/gpu_rig.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;
using test::event;
using test::launch;
using test::simple;

namespace {

/// A device whose ops are what the test says.
struct Rig {
  explicit Rig(Plan made) : plan(std::move(made)), linear(linearise(plan, 0)) {
    start_gpu(0);
    lanes = std::make_unique<LaneStreams>(plan, nullptr);
    progress = HostWords(plan.lanes.size());
    table.ops.resize(linear.ops.size());
  }
  void start() {
    device = std::make_unique<CudaDevice>(plan, linear, *lanes, table, progress, test::guard(), CudaDeviceOptions{});
    runner = std::make_unique<StepRunner>(plan, 0, linear, *device, StepOptions{});
  }

  Plan plan;
  Linear linear;
  std::unique_ptr<LaneStreams> lanes;
  HostWords progress;
  LaunchTable table;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<StepRunner> runner;
};

/// Two ubatch threads that pass a value from lane to lane: A0 (compute), D (comm), MLP (compute), C (comm), a layer.
Plan relay_plan(int layers) {
  Plan plan = test::two_lane_plan();
  plan.blocks = {{"relay",
                  {launch(plan, "A0"), event(Verb::Record, 0, 0), simple(Verb::Yield), event(Verb::Wait, 0, 1),
                   launch(plan, "D"), event(Verb::Record, 1, 1), event(Verb::Wait, 1, 0), launch(plan, "MLP"),
                   event(Verb::Record, 0, 0), simple(Verb::Yield), event(Verb::Wait, 0, 1), launch(plan, "C"),
                   event(Verb::Record, 1, 1), simple(Verb::Yield), event(Verb::Wait, 1, 0)}}};
  for (int t = 0; t < 2; ++t) plan.threads.push_back({t, {test::repeat(layers, 0), simple(Verb::Exit)}});
  test::single_class(plan);
  return plan;
}

constexpr std::size_t kBytes = 1u << 20;

/// The relay's ops as copies: each copies its ubatch's buffer to the next one, so that the last holds the first's
/// content only if every op ran behind the one before it.
struct Relay : Rig {
  explicit Relay(int layers) : Rig(relay_plan(layers)), ops_per_ubatch(linear.ops.size() / 2) {
    std::vector<std::size_t> index(2, 0);
    for (int u = 0; u < 2; ++u) chain.emplace_back((ops_per_ubatch + 1) * kBytes);
    for (std::size_t i = 0; i < linear.ops.size(); ++i) {
      const std::size_t u = linear.ops[i].ubatch;
      std::byte* from = chain[u].get() + index[u] * kBytes;
      ++index[u];
      table.ops[i].enqueue = [from](cudaStream_t stream) {
        DBO_CUDA_CHECK(cudaMemcpyAsync(from + kBytes, from, kBytes, cudaMemcpyDefault, stream));
      };
    }
    start();
  }
  void fill(std::uint64_t seed) {
    for (std::size_t u = 0; u < 2; ++u) {
      std::vector<std::uint64_t> data(kBytes / 8);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = mix(seed + u, i);
      DBO_CUDA_CHECK(cudaMemset(chain[u].get(), 0xEE, (ops_per_ubatch + 1) * kBytes));
      DBO_CUDA_CHECK(cudaMemcpy(chain[u].get(), data.data(), kBytes, cudaMemcpyHostToDevice));
    }
    DBO_CUDA_CHECK(cudaDeviceSynchronize());
  }
  bool arrived(std::uint64_t seed) const {
    for (std::size_t u = 0; u < 2; ++u) {
      std::vector<std::uint64_t> data(kBytes / 8);
      DBO_CUDA_CHECK(cudaMemcpy(data.data(), chain[u].get() + ops_per_ubatch * kBytes, kBytes, cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; i < data.size(); ++i) {
        if (data[i] != mix(seed + u, i)) return false;
      }
    }
    return true;
  }

  std::size_t ops_per_ubatch;
  std::vector<DeviceBuffer> chain;  ///< by ubatch
};

}  // namespace

TEST_CASE("device: data passes from lane to lane and ubatch thread to ubatch thread, step after step") {
  Relay relay(4);
  for (std::uint64_t step = 0; step < 20; ++step) {
    relay.fill(step);
    relay.runner->run();
    relay.device->wait_step();
    CHECK(relay.arrived(step));
  }
}

TEST_CASE("graph: one captured step replayed 1000 times gives the same result every time") {
  Relay relay(4);
  relay.fill(0);
  relay.runner->run();
  relay.device->wait_step();
  const Graph graph = relay.device->capture(*relay.runner);
  const GraphExec exec = GraphExec::create(graph, relay.device->compute());
  DBO_CUDA_CHECK(cudaStreamSynchronize(relay.device->compute()));
  int wrong = 0;
  for (std::uint64_t replay = 1; replay <= 1000; ++replay) {
    const bool checked = replay % 20 == 0;
    if (checked) relay.fill(replay);
    relay.device->launch_graph(exec);
    relay.device->wait_step();
    if (checked && !relay.arrived(replay)) ++wrong;
  }
  CHECK(wrong == 0);
  // The device still runs eagerly.
  relay.fill(5);
  relay.runner->run();
  relay.device->wait_step();
  CHECK(relay.arrived(5));
}

TEST_CASE("device: an error of a launch names op, ubatch, layer and rank, eagerly and in a capture, and ends cleanly") {
  for (const bool capturing : {false, true}) {
    Relay relay(2);
    const std::size_t failing = 7;
    relay.table.ops[failing].enqueue = [](cudaStream_t) { DBO_CUDA_CHECK(cudaErrorInvalidValue); };
    const std::string name = describe(relay.plan, relay.linear.ops[failing]) + ", rank 0";
    try {
      if (capturing) {
        static_cast<void>(relay.device->capture(*relay.runner));
      } else {
        relay.runner->run();
      }
      CHECK(false);
    } catch (const CudaError& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find("in " + name) != std::string::npos);
    }
    DBO_CUDA_CHECK(cudaDeviceSynchronize());
    // The GPU is fine: a new device runs.
    Relay again(2);
    again.fill(9);
    again.runner->run();
    again.device->wait_step();
    CHECK(again.arrived(9));
  }
}

TEST_CASE("device: a host wait for an op's end returns when it has ended, and cannot be captured") {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back(
      {0, {launch(plan, "A0"), test::host_wait(plan, "A0", false), launch(plan, "MLP"), simple(Verb::Exit)}});
  test::single_class(plan);
  test::on_gpus(1, [&](HostGroup& group) {
    const Linear linear = linearise(plan, 0);
    std::vector<StandInWork> work(2);
    work[0].time = Ns{3'000'000};
    work[1].time = Ns{20'000};
    RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
    replay.run_eager();
    // The host blocked for as long as A0 ran.
    CHECK(replay.host_time() >= Ns{2'800'000});
    CHECK_THROWS_AS(replay.capture({}), InputError);
    replay.run_eager();
  });
}

TEST_CASE("device: a host wait for counts returns when they are known, long before the kernel ends") {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back({0,
                          {event(Verb::Record, 0, 0), event(Verb::Wait, 0, 1), launch(plan, "D"),
                           test::host_wait(plan, "D", true), launch(plan, "MLP"), simple(Verb::Exit)}});
  test::single_class(plan);
  test::on_gpus(1, [&](HostGroup& group) {
    std::vector<StandInWork> work(2);
    work[0].time = Ns{20'000'000};
    work[0].notify = Ns{2'000'000};
    work[1].time = Ns{20'000};
    RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
    replay.run_eager();
    CHECK(replay.host_time() >= Ns{1'900'000});
    CHECK(replay.host_time() < Ns{15'000'000});
  });
}

TEST_CASE("device: two lanes overlap, and what an event orders does not") {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back({0,
                          {launch(plan, "C.copy"), launch(plan, "A0"), launch(plan, "A1"), event(Verb::Record, 0, 0),
                           event(Verb::Wait, 0, 1), launch(plan, "C"), simple(Verb::Exit)}});
  test::single_class(plan);
  test::on_gpus(1, [&](HostGroup& group) {
    std::vector<StandInWork> work(4);
    for (StandInWork& w : work) {
      w.time = Ns{400'000};
      w.blocks = 60;
    }
    RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
    for (const bool graph : {false, true}) {
      if (graph) replay.capture({});
      graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
      const std::vector<OpTime> t = replay.stamp_times().ops;
      const auto overlap = std::min(t[0].end_ns, t[1].end_ns) - std::max(t[0].begin_ns, t[1].begin_ns);
      CAPTURE(graph);
      CHECK(overlap > 300'000);
      CHECK(t[3].begin_ns >= t[2].end_ns);
    }
  });
}

TEST_CASE("schedules: every one, eager and by graph, keeps the plan's order on one GPU") {
  int graphs = 0;
  for (const Plan& plan : test::schedule_plans(3, 1)) {
    test::on_gpus(1, [&](HostGroup& group) {
      const Linear linear = linearise(plan, 0);
      const auto work = test::drawn_work(plan, linear, 7, Ns{20'000}, Ns{60'000});
      RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
      for (const bool graph : {false, true}) {
        if (graph && test::host_blocks(linear)) continue;
        if (graph) replay.capture({});
        graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
        replay.check_arrivals();
        const RankTimes times = replay.stamp_times();
        CHECK(std::all_of(times.ops.begin(), times.ops.end(), [](const OpTime& op) { return op.ran; }));
        const auto findings = check_order(plan, measured_trace(plan, {&linear}, {times}),
                                          {Ns{static_cast<std::int64_t>(replay.timer().tick_ns)}, Ns{}, false, 5});
        CHECK(findings.empty());
        for (const OrderFinding& finding : findings) MESSAGE(finding.text);
        graphs += graph ? 1 : 0;
      }
    });
  }
  CHECK(graphs >= 8);
}

TEST_CASE("graph: kernels keep the priority of the lane they were captured on") {
  Rig rig(relay_plan(2));
  for (OpLaunch& op : rig.table.ops)
    op.enqueue = [](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_nothing(stream)); };
  rig.start();
  const Graph graph = rig.device->capture(*rig.runner);
  std::size_t count = 0;
  DBO_CUDA_CHECK(cudaGraphGetNodes(graph.get(), nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  DBO_CUDA_CHECK(cudaGraphGetNodes(graph.get(), nodes.data(), &count));
  int least = 0, greatest = 0;
  DBO_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  REQUIRE(least != greatest);
  std::map<int, int> kernels_by_priority;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    // CUDA's runtime has no name for nodes of stream memory operations, and says that the error is unknown.
    const cudaError_t status = cudaGraphNodeGetType(node, &type);
    if (status == cudaErrorUnknown) {
      (void)cudaGetLastError();
      continue;
    }
    DBO_CUDA_CHECK(status);
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaLaunchAttributeValue value{};
    DBO_CUDA_CHECK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    ++kernels_by_priority[value.priority];
  }
  // Of the four ops a layer and ubatch, D and C are on comm.
  CHECK(kernels_by_priority == std::map<int, int>{{greatest, 8}, {least, 8}});
  const GraphExec exec = GraphExec::create(graph, rig.device->compute());
  rig.device->launch_graph(exec);
  rig.device->wait_step();
}

TEST_CASE("graph: a size without a graph runs eagerly, split and un-split are two graphs") {
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(2, 2, Transport::LsaLl));
  test::on_gpus(1, [&](HostGroup& group) {
    const Linear linear = linearise(plan, 0);
    const auto work = test::drawn_work(plan, linear, 1, Ns{20'000}, Ns{30'000});
    RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
    replay.capture({128, 2});
    CHECK(replay.run_graph({128, 2}));
    CHECK(!replay.run_graph({128, 1}));
    CHECK(!replay.run_graph({256, 2}));
    replay.check_arrivals();
  });
}

TEST_CASE("sm: lanes of a plan with green contexts keep to disjoint SMs, in a replayed graph too") {
  Plan plan = make_plan("vllm-ht", fakes::small_spec(2, 2, Transport::LsaHt));
  plan.sm = {SmControl::GreenContext, 16, 116, 0};
  test::on_gpus(1, [&](HostGroup& group) {
    const Linear linear = linearise(plan, 0);
    // More blocks than either partition has SMs, several an SM.
    auto work = test::drawn_work(plan, linear, 3, Ns{20'000}, Ns{40'000}, 264, 264);
    for (StandInWork& w : work) w.whole_sm = false;
    RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
    CHECK(replay.comm_sms() == 16);
    for (const bool graph : {false, true}) {
      if (graph) replay.capture({});
      graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
      std::map<LaneId, std::vector<bool>> used;
      const auto by_op = dynamic_cast<const StandInTable&>(replay.source()).sms_used();
      for (std::size_t i = 0; i < by_op.size(); ++i) {
        auto& bits = used[linear.ops[i].lane];
        bits.resize(by_op[i].size());
        for (std::size_t sm = 0; sm < bits.size(); ++sm) bits[sm] = bits[sm] || by_op[i][sm];
      }
      int both = 0;
      for (std::size_t sm = 0; sm < used[0].size(); ++sm) both += used[0][sm] && used[1][sm] ? 1 : 0;
      CAPTURE(graph);
      CHECK(both == 0);
      CHECK(std::count(used[1].begin(), used[1].end(), true) == replay.comm_sms());
      CHECK(std::count(used[0].begin(), used[0].end(), true) == replay.compute_sms());
    }
  });
}

TEST_CASE("hang: a GPU that makes no progress ends the process with exit code 3 and says where its lanes stand") {
  // Not a test that returns: the program's own exit code is the result (see main).
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(2, 2, Transport::LsaLl));
  HangGuard guard(Ns{1'500'000'000});
  test::on_gpus(1, [&](HostGroup& group) {
    const Linear linear = linearise(plan, 0);
    auto work = test::drawn_work(plan, linear, 1, Ns{20'000}, Ns{30'000});
    ReplayOptions options = test::on_gpu(0);
    options.deadline = Ns{25'000'000'000};
    // A wire far longer than the guard's deadline: the receive holds.
    for (StandInWork& w : work) {
      if (w.wire > Ns{}) w.wire = Ns{20'000'000'000};
    }
    const RankReplay replay(group, plan, 0, stand_in_source(work), guard, options);
  });
}
