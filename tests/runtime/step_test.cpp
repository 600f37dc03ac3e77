#include "runtime/step.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/host_group.h"
#include "runtime/virtual_device.h"
#include "sim/base/error.h"
#include "sim/plan/plan_check.h"
#include "tests/runtime/plans.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

constexpr Ns kSpin{20'000};

std::string lane_text(const VirtualDevice& device, LaneId lane) {
  std::string text;
  for (const VirtualItem& item : device.queues()[lane]) {
    if (item.kind != QueueItem::Kind::Op) continue;
    const LinearOp& op = device.linear().ops[item.index];
    if (!text.empty()) text += " ";
    text += device.plan().op(op.op).name + "_" + std::to_string(op.ubatch) +
            std::string(static_cast<std::size_t>(std::max(op.layer, 0)), '\'');
  }
  return text;
}

/// The low-latency order of facts section 5.1: two yields a layer, receives run by the sibling.
Plan low_latency_plan(int threads, int layers) {
  using namespace test;
  Plan plan = two_lane_plan();
  plan.blocks = {{"moe",
                  {launch(plan, "A0"), launch(plan, "A1"), simple(Verb::RunHook), launch(plan, "D.send"),
                   hook(plan, "D.recv"), simple(Verb::Yield), launch(plan, "MLP"), simple(Verb::RunHook),
                   launch(plan, "C.send"), launch(plan, "S"), hook(plan, "C.recv"), simple(Verb::Yield)}}};
  for (int t = 0; t < threads; ++t) plan.threads.push_back({t, {repeat(layers, 0), simple(Verb::Exit)}});
  single_class(plan);
  return plan;
}

/// The high-throughput order of facts section 6.1: three yields a layer, two lanes, the previous event captured before
/// the yield.
Plan high_throughput_plan(int threads, int layers) {
  using namespace test;
  Plan plan = two_lane_plan();
  const EventId compute = 0, comm = 1, previous = 2;
  plan.blocks = {{"moe",
                  {launch(plan, "A0"),
                   launch(plan, "A1"),
                   event(Verb::Record, previous, 0),
                   event(Verb::Record, compute, 0),
                   simple(Verb::Yield),
                   event(Verb::Wait, compute, 1),
                   event(Verb::Wait, previous, 1),
                   launch(plan, "D"),
                   host_wait(plan, "D", true),
                   event(Verb::Record, comm, 1),
                   event(Verb::Wait, comm, 0),
                   launch(plan, "MLP"),
                   event(Verb::Record, previous, 0),
                   event(Verb::Record, compute, 0),
                   simple(Verb::Yield),
                   event(Verb::Wait, compute, 1),
                   event(Verb::Wait, previous, 1),
                   launch(plan, "C"),
                   launch(plan, "S"),
                   launch(plan, "C.copy"),
                   event(Verb::Record, comm, 1),
                   simple(Verb::Yield),
                   event(Verb::Wait, comm, 0)}}};
  for (int t = 0; t < threads; ++t) plan.threads.push_back({t, {repeat(layers, 0), simple(Verb::Exit)}});
  single_class(plan);
  return plan;
}

/// The same order as layer code would write it, without a plan: launches by op, ubatch and layer.
void high_throughput_layer(const std::map<std::string, std::uint32_t>& ops, Device& device, int layer) {
  const auto launch = [&](const char* op, LaneId lane) {
    CHECK(current_lane() == lane);
    device.launch(ops.at(std::string(op) + "/" + std::to_string(current_ubatch()) + "/" + std::to_string(layer)));
  };
  launch("A0", kComputeLane);
  launch("A1", kComputeLane);
  record_previous_event();
  yield_and_switch_to_comm();
  wait_previous_event();
  launch("D", kCommLane);
  switch_to_compute_synced();
  launch("MLP", kComputeLane);
  record_previous_event();
  yield_and_switch_to_comm();
  wait_previous_event();
  launch("C", kCommLane);
  switch_to_compute();
  launch("S", kComputeLane);
  switch_to_comm();
  launch("C.copy", kCommLane);
  yield_and_switch_to_compute();
}

std::map<std::string, std::uint32_t> ops_by_name(const Plan& plan, const Linear& linear) {
  std::map<std::string, std::uint32_t> ops;
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    ops[plan.op(op.op).name + "/" + std::to_string(op.ubatch) + "/" + std::to_string(op.layer)] = i;
  }
  return ops;
}

}  // namespace

TEST_CASE("step: two threads give the low-latency stream order of the facts, receives run by the sibling") {
  const Plan plan = low_latency_plan(2, 2);
  const Linear linear = linearise(plan, 0);
  VirtualDevice device(plan, linear);
  StepRunner runner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true});
  runner.run();
  // facts: T9, with A in its two halves
  CHECK(lane_text(device, kComputeLane) ==
        "A0_0 A1_0 D.send_0 A0_1 A1_1 D.recv_0 D.send_1 MLP_0 D.recv_1 C.send_0 S_0 MLP_1 C.recv_0 C.send_1 S_1 "
        "A0_0' A1_0' C.recv_1 D.send_0' A0_1' A1_1' D.recv_0' D.send_1' MLP_0' D.recv_1' C.send_0' S_0' MLP_1' "
        "C.recv_0' C.send_1' S_1' C.recv_1'");
  CHECK(lane_text(device, kCommLane).empty());
  CHECK(compare_queues(device) == "");
}

TEST_CASE(
    "step: two threads give the high-throughput order of both lanes, waits bound to the records before the yield") {
  const Plan plan = high_throughput_plan(2, 2);
  const Linear linear = linearise(plan, 0);
  VirtualDevice device(plan, linear);
  StepRunner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true}).run();
  // facts: T11
  CHECK(lane_text(device, kComputeLane) ==
        "A0_0 A1_0 A0_1 A1_1 MLP_0 MLP_1 S_0 S_1 A0_0' A1_0' A0_1' A1_1' MLP_0' MLP_1' S_0' S_1'");
  CHECK(lane_text(device, kCommLane) == "D_0 D_1 C_0 C.copy_0 C_1 C.copy_1 D_0' D_1' C_0' C.copy_0' C_1' C.copy_1'");
  CHECK(compare_queues(device) == "");
}

TEST_CASE("step: layer code with the free functions makes the queues of the plan") {
  const Plan plan = high_throughput_plan(2, 3);
  const Linear linear = linearise(plan, 0);
  const auto ops = ops_by_name(plan, linear);
  VirtualDevice by_hand(plan, linear);
  UbatchGroup group(by_hand, {0, 1}, {.spin = kSpin, .plan_events = 0, .last_op = {}});
  group.run([&](UbatchContext&) {
    CHECK(in_ubatch());
    for (int layer = 0; layer < 3; ++layer) high_throughput_layer(ops, by_hand, layer);
  });
  CHECK(compare_queues(by_hand) == "");
  CHECK(!in_ubatch());
}

TEST_CASE("step: outside a context the free functions do nothing and layer code runs on the compute lane") {
  CHECK(!in_ubatch());
  CHECK(current_ubatch() == 0);
  ubatch_yield();
  switch_to_comm();
  yield_and_switch_to_comm();
  switch_to_compute_synced();
  record_previous_event();
  wait_previous_event();
  run_recv_hook();
  CHECK(current_lane() == kComputeLane);
  bool ran = false;
  CHECK(!register_recv_hook([&] { ran = true; }));
  CHECK(!ran);
}

TEST_CASE("step: layer code with hooks: the sibling runs the receive, the last one runs on exit") {
  const Plan plan = low_latency_plan(2, 2);
  const Linear linear = linearise(plan, 0);
  const auto ops = ops_by_name(plan, linear);
  VirtualDevice device(plan, linear);
  UbatchGroup group(device, {0, 1}, {.spin = kSpin, .plan_events = 0, .last_op = {}});
  group.run([&](UbatchContext& context) {
    for (int layer = 0; layer < 2; ++layer) {
      const int ubatch = context.ubatch();
      const auto launch = [&device, &ops, ubatch, layer](const char* op) {
        device.launch(ops.at(std::string(op) + "/" + std::to_string(ubatch) + "/" + std::to_string(layer)));
      };
      launch("A0");
      launch("A1");
      run_recv_hook();
      launch("D.send");
      CHECK(register_recv_hook([launch] { launch("D.recv"); }));
      ubatch_yield();
      launch("MLP");
      run_recv_hook();
      launch("C.send");
      launch("S");
      CHECK(register_recv_hook([launch] { launch("C.recv"); }));
      ubatch_yield();
    }
  });
  CHECK(compare_queues(device) == "");
}

TEST_CASE("step: a hook for a full slot, for a thread that has left, and one that never runs are found out") {
  const Plan plan = low_latency_plan(2, 1);
  const Linear linear = linearise(plan, 0);
  const auto run = [&](const std::function<void(UbatchContext&)>& body) -> std::string {
    VirtualDevice device(plan, linear);
    UbatchGroup group(device, {0, 1}, {.spin = kSpin, .plan_events = 0, .last_op = {}});
    try {
      group.run(body);
    } catch (const FindingError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(run([](UbatchContext& context) {
          if (context.thread() == 0) {
            (void)register_recv_hook([] {});
            (void)register_recv_hook([] {});
          }
        }) == "F7 hook misuse: ubatch 0 registers a hook for ubatch 1, whose slot still holds the one before it");
  CHECK(run([](UbatchContext& context) {
          if (context.thread() == 1) (void)register_recv_hook([] {});
        }) == "F7 hook misuse: ubatch 1 registers a hook for ubatch 0, which has left the step");
  CHECK(run([](UbatchContext& context) {
          // Registered during the sibling's exit: nobody is left to run it.
          if (context.thread() == 0) (void)register_recv_hook([] { (void)register_recv_hook([] {}); });
        }) == "F7 hook misuse: ubatch 1 registers a hook for ubatch 0, which has left the step");
}

TEST_CASE("step: random programs of 1 to 4 threads enqueue exactly the plan's order, and their queues can be played") {
  for (int threads = 1; threads <= 4; ++threads) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      CAPTURE(threads);
      CAPTURE(seed);
      const Plan plan = test::random_plan(seed, threads);
      const Linear linear = linearise(plan, 0);
      REQUIRE(problems_text(linear) == "");
      // Checked before it runs: what is called sound below must run.
      CHECK(!check_plan(plan).stops());
      VirtualDevice device(plan, linear);
      StepRunner runner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true});
      runner.run();
      REQUIRE(compare_queues(device) == "");
      const Trace trace = play_virtual({&device}, {.seed = seed});
      CHECK(trace.ops.size() == linear.ops.size());
      const auto findings = check_order(plan, trace);
      CHECK(findings.empty());
      if (!findings.empty()) MESSAGE(findings[0].text);
    }
  }
}

TEST_CASE("step: a changed program either runs in the plan's order or ends with a finding, never hangs") {
  int sound = 0, unsound = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const int threads = 2 + static_cast<int>(seed % 3);
    CAPTURE(seed);
    const Plan plan = test::mutated_plan(seed, threads);
    const Linear linear = linearise(plan, 0);
    VirtualDevice device(plan, linear);
    if (linear.problems.empty()) {
      StepRunner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true}).run();
      CHECK(compare_queues(device) == "");
      ++sound;
      continue;
    }
    CHECK_THROWS_AS(StepRunner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true}), FindingError);
    CHECK(check_plan(plan).stops());
    ++unsound;
    // Unequal yields are found by the ring itself, too. (A receive without a send is for the device to wait on.)
    if (linear.problems.size() == 1 && linear.problems[0].code == "F2" &&
        linear.problems[0].text.find("yield") != std::string::npos) {
      StepRunner runner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = false});
      CHECK_THROWS_AS(runner.run(), FindingError);
    }
  }
  CHECK(sound > 100);
  CHECK(unsound > 100);
}

TEST_CASE("step: unequal yields are reported with who waits for whom since which op") {
  Plan plan = low_latency_plan(2, 1);
  plan.threads[0].body.insert(plan.threads[0].body.begin() + 1, test::simple(Verb::Yield));
  plan.threads[0].body.insert(plan.threads[0].body.begin() + 1, test::simple(Verb::Yield));
  const Linear linear = linearise(plan, 0);
  VirtualDevice device(plan, linear);
  StepRunner runner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = false});
  CHECK_THROWS_WITH_AS(runner.run(),
                       "F2 unequal yields: thread 0 (ubatch 0, after S of ubatch 0, layer 0) waits at its yield 4 for "
                       "thread 1 (ubatch 1, after S of ubatch 1, layer 0), which has finished after 2 yields",
                       FindingError);
}

TEST_CASE("step: an error of any launch reaches the caller as itself, from plain launches and from hooks") {
  const Plan plan = low_latency_plan(3, 2);
  const Linear linear = linearise(plan, 0);
  for (std::uint32_t failing = 0; failing < linear.ops.size(); ++failing) {
    VirtualDevice device(plan, linear);
    device.on_launch([&](std::uint32_t op) {
      if (op == failing) throw CudaError("launch of op " + std::to_string(op));
    });
    StepRunner runner(plan, 0, linear, device, {.spin = kSpin, .refuse_unsound = true});
    CHECK_THROWS_WITH_AS(runner.run(), ("launch of op " + std::to_string(failing)).c_str(), CudaError);
    CHECK(!device.in_step());
  }
}

TEST_CASE("step: ranks that block on the host wait for each other's launches; one that fails releases the rest") {
  constexpr int kRanks = 3;
  const Plan plan = high_throughput_plan(2, 3);
  const Linear linear = linearise(plan, 0);
  for (const int failing : {-1, 0, 2}) {
    VirtualWorld world(kRanks);
    std::vector<std::unique_ptr<VirtualDevice>> devices;
    std::vector<std::unique_ptr<StepRunner>> runners;
    for (int rank = 0; rank < kRanks; ++rank) {
      devices.push_back(std::make_unique<VirtualDevice>(plan, linear, &world));
      runners.push_back(std::make_unique<StepRunner>(plan, 0, linear, *devices.back(),
                                                     StepOptions{.spin = kSpin, .refuse_unsound = true}));
      if (rank == failing) {
        devices.back()->on_launch([](std::uint32_t op) {
          if (op == 20) throw CudaError("out of memory");
        });
      }
    }
    InProcessGroup group(kRanks);
    const auto run = [&] {
      run_ranks(
          group, kRanks,
          [&](HostGroup& member) {
            member.barrier();
            runners[static_cast<std::size_t>(member.rank())]->run();
          },
          [&](int rank) { runners[static_cast<std::size_t>(rank)]->stop(std::make_exception_ptr(Stopped{})); });
    };
    if (failing >= 0) {
      CHECK_THROWS_WITH_AS(run(), "out of memory", CudaError);
      continue;
    }
    run();
    for (const auto& device : devices) CHECK(compare_queues(*device) == "");
    const Trace trace = play_virtual({devices[0].get(), devices[1].get(), devices[2].get()}, {.seed = 5});
    CHECK(trace.ops.size() == linear.ops.size() * kRanks);
  }
}
