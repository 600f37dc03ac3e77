// Planted faults on the virtual device: real threads, tampered queues, played in virtual time and judged like a replay.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/host_group.h"
#include "runtime/step.h"
#include "runtime/virtual_device.h"
#include "sim/base/error.h"
#include "sim/plan/plan_json.h"
#include "tests/fakes/small_plans.h"
#include "traces/compare.h"
#include "validate/fault.h"
#include "validate/faulty_device.h"
#include "validate/starvation.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

constexpr int kLayers = 6;

Plan split_plan(std::string_view schedule, Transport transport) {
  return make_plan(schedule, fakes::small_spec(kLayers, 2, transport));
}
Plan unsplit_plan(Transport transport) {
  return make_plan(kSequentialSchedule, fakes::small_spec(kLayers, 1, transport));
}

/// The step of both ranks, with the fault on each.
Trace played(const Plan& plan, const Fault& fault, std::uint64_t seed = 1) {
  const Linear linear = linearise(plan, 0), given = given_order(linear, fault);
  runtime::VirtualWorld world(plan.world.ranks);
  runtime::InProcessGroup group(plan.world.ranks);
  std::vector<std::unique_ptr<runtime::VirtualDevice>> devices;
  std::vector<std::unique_ptr<FaultyDevice>> faulty;
  std::vector<std::unique_ptr<runtime::StepRunner>> runners;
  for (int rank = 0; rank < plan.world.ranks; ++rank) {
    devices.push_back(std::make_unique<runtime::VirtualDevice>(plan, given, &world));
    faulty.push_back(std::make_unique<FaultyDevice>(*devices.back(), linear, fault, [] {}));
    runners.push_back(std::make_unique<runtime::StepRunner>(plan, 0, linear, *faulty.back(),
                                                            runtime::StepOptions{.spin = Ns{20'000}}));
  }
  runtime::run_ranks(group, plan.world.ranks,
                     [&](runtime::HostGroup& member) { runners[static_cast<std::size_t>(member.rank())]->run(); });
  std::vector<const runtime::VirtualDevice*> all;
  for (const auto& device : devices) all.push_back(device.get());
  runtime::VirtualTimes times;
  times.shortest = Ns{20'000};
  times.longest = Ns{60'000};
  times.seed = seed;
  times.longer = fault.longer;
  Trace trace = runtime::play_virtual(all, times);
  trace.metadata.set("op_starts", "lanes");
  return trace;
}

Fault fault_of(std::string_view code, const Plan& plan) {
  return plan_fault(code, plan, linearise(plan, 0), Ns{5'000'000});
}

/// The named failures of a step with the fault against the same step without.
std::vector<std::string> found(const Plan& plan, const Fault& fault, const Plan& unsplit, std::uint64_t seed = 1) {
  CompareInput input;
  input.plan = plan;
  input.predicted = played(plan, {}, seed);
  input.measured = played(plan, fault, seed);
  input.predicted_file = "predicted";
  input.measured_file = "replayed";
  input.baseline = played(unsplit, {}, seed);
  input.baseline_measured = true;
  std::vector<std::string> codes;
  for (const NamedFinding& finding : compare_traces(input).findings) codes.push_back(finding.code);
  return codes;
}

bool has(const std::vector<std::string>& codes, std::string_view code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

std::string refusal(std::string_view code, const Plan& plan) {
  try {
    (void)fault_of(code, plan);
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("fault: without one the device passes on exactly what the plan orders") {
  for (const Transport transport : {Transport::LsaHt, Transport::LsaLl}) {
    const Plan plan = split_plan(transport == Transport::LsaHt ? "vllm-ht" : "vllm-ll", transport);
    const Linear linear = linearise(plan, 0);
    const Fault none;
    CHECK(given_order(linear, none).queues.size() == linear.queues.size());
    runtime::VirtualDevice device(plan, linear);
    FaultyDevice faulty(device, linear, none, {});
    runtime::StepRunner runner(plan, 0, linear, faulty, {.spin = Ns{20'000}});
    runner.run();
    runner.run();
    CHECK(runtime::compare_queues(device) == "");
    const std::vector<std::string> codes = found(plan, none, unsplit_plan(transport));
    for (const std::string_view code : fault_codes())
      if (code != "F16") CHECK_FALSE(has(codes, code));
  }
}

TEST_CASE("fault: F3, F4 and F5 are named each time, whatever the durations") {
  for (const std::string_view schedule : {"vllm-ht", "sglang-prefill"}) {
    const Plan plan = split_plan(schedule, Transport::LsaHt);
    for (const std::string_view code : {"F3", "F4", "F5"}) {
      const Fault fault = fault_of(code, plan);
      CHECK(fault.code == code);
      CHECK_FALSE(fault.what.empty());
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(schedule);
        CAPTURE(code);
        CAPTURE(seed);
        CHECK(has(found(plan, fault, unsplit_plan(Transport::LsaHt), seed), code));
      }
    }
  }
}

TEST_CASE("fault: F7 leaves out one receive, which is named; F4 moves the shared expert where no kernel can move") {
  for (const std::string_view schedule : {"vllm-ll", "sglang-decode"}) {
    const Plan plan = split_plan(schedule, Transport::LsaLl);
    const Fault lost = fault_of("F7", plan);
    REQUIRE(lost.dropped_ops.size() == 1);
    const Linear linear = linearise(plan, 0);
    CHECK(plan.op(linear.ops[lost.dropped_ops[0]].op).kind == OpKind::DRecv);
    CHECK(has(found(plan, lost, unsplit_plan(Transport::LsaLl)), "F7"));
    const Fault moved = fault_of("F4", plan);
    REQUIRE(moved.moved_op);
    CHECK(plan.op(linear.ops[*moved.moved_op].op).kind == OpKind::S);
    CHECK(has(found(plan, moved, unsplit_plan(Transport::LsaLl)), "F4"));
  }
}

TEST_CASE("fault: F16 makes the split step longer than an un-split one lasts") {
  const Plan plan = split_plan("vllm-ht", Transport::LsaHt), unsplit = unsplit_plan(Transport::LsaHt);
  Ns step{};
  for (const TraceOp& op : played(unsplit, {}).ops) step = std::max(step, op.end - SimTime{});
  const Fault fault = plan_fault("F16", plan, linearise(plan, 0), step);
  CHECK(has(found(plan, fault, unsplit), "F16"));
  // On one lane, so what is added there is added to the step.
  Ns added{};
  for (const auto& [op, time] : fault.longer) added += time;
  CHECK(added >= step);
}

TEST_CASE("fault: a moved op is on its new lane behind all that was enqueued there before it") {
  const Plan plan = split_plan("vllm-ht", Transport::LsaHt);
  const Linear linear = linearise(plan, 0);
  const Fault fault = fault_of("F4", plan);
  const Linear given = given_order(linear, fault);
  const LinearOp& op = given.ops[*fault.moved_op];
  CHECK(op.lane == kComputeLane);
  REQUIRE(given.queues[kComputeLane].size() == linear.queues[kComputeLane].size() + 1);
  CHECK(given.queues[kCommLane].size() + 1 == linear.queues[kCommLane].size());
  CHECK(given.queues[kComputeLane][op.position].index == *fault.moved_op);
  for (const auto& queue : given.queues) {
    std::uint32_t last = 0;
    for (const QueueItem& item : queue) {
      if (item.kind != QueueItem::Kind::Op) continue;
      CHECK(given.ops[item.index].host >= last);
      last = given.ops[item.index].host;
    }
  }
}

TEST_CASE("fault: what a plan has no place for is refused, with what to change") {
  const Plan low = split_plan("vllm-ll", Transport::LsaLl), high = split_plan("vllm-ht", Transport::LsaHt);
  const Plan unsplit = unsplit_plan(Transport::LsaHt);
  CHECK(refusal("F3", low).find("--inject F3: no transfer waits") != std::string::npos);
  CHECK(refusal("F5", low).find("take a high-throughput schedule") != std::string::npos);
  CHECK(refusal("F7", high).find("take a low-latency schedule") != std::string::npos);
  CHECK(refusal("F17", low).find("no dispatch kernel runs beside compute") != std::string::npos);
  CHECK(refusal("F12", high).find("padded_tokens") != std::string::npos);
  CHECK(refusal("F8", unsplit).find("the step is not split") != std::string::npos);
  CHECK(refusal("F1", high).find("a replay can show F3, F4, F5, F7, F8, F12, F14, F16, F17") != std::string::npos);
  Plan green = high;
  green.sm = {SmControl::GreenContext, 16, 116, 0};
  CHECK(refusal("F17", green).find("green contexts") != std::string::npos);
  Plan padded = high;
  for (UbatchLoad& ubatch : padded.loads[0].ubatches) ubatch.padded += 8;
  CHECK(fault_of("F12", padded).route_padding);
}

TEST_CASE("starvation: kernels that run later than their lane was free, beyond what was foretold, are F17") {
  const Plan plan = split_plan("vllm-ht", Transport::LsaHt);
  const Linear linear = linearise(plan, 0);
  const Trace predicted = played(plan, {});
  std::vector<double> entry(linear.ops.size(), -1);
  std::vector<std::uint32_t> dispatches;
  for (std::uint32_t op = 0; op < linear.ops.size(); ++op)
    if (plan.op(linear.ops[op].op).kind == OpKind::D) dispatches.push_back(op);
  REQUIRE(dispatches.size() == 2 * kLayers);
  CHECK_FALSE(find_starvation(plan, linear, entry, predicted, 0));
  for (const std::uint32_t op : dispatches) entry[op] = 5;
  CHECK_FALSE(find_starvation(plan, linear, entry, predicted, 0));
  // Five of twelve are not a rule, six are.
  for (std::size_t i = 0; i < 5; ++i) entry[dispatches[i]] = 90;
  CHECK_FALSE(find_starvation(plan, linear, entry, predicted, 0));
  entry[dispatches[5]] = 95;
  const auto starved = find_starvation(plan, linear, entry, predicted, 0);
  REQUIRE(starved);
  CHECK(starved->rfind("F17 SM starvation: 6 of 12 dispatch kernels", 0) == 0);
  CHECK(starved->find("waited 95.0 us") != std::string::npos);
  // The same wait is nothing new where the prediction has it.
  Trace foretold = predicted;
  for (TraceOp& op : foretold.ops)
    if (op.kind == OpKind::D) op.start += Ns{90'000};
  CHECK_FALSE(find_starvation(plan, linear, entry, foretold, 0));
}
