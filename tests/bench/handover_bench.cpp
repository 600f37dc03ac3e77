// Handing the baton over, awake and asleep, and the host's side of a whole step.
#include <benchmark/benchmark.h>

#include "runtime/ring.h"
#include "runtime/step.h"
#include "runtime/virtual_device.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

void handover(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const Ns spin = state.range(1) != 0 ? kDefaultSpin : Ns{};
  HandoverCost cost;
  for ([[maybe_unused]] auto _ : state) cost = measure_handover(threads, 200, spin);
  state.counters["median_ns"] = static_cast<double>(cost.median.count());
  state.counters["p90_ns"] = static_cast<double>(cost.p90.count());
}

/// What the machinery adds to a step's launches: 61 layers of the low-latency schedule on a device that only notes.
void virtual_step(benchmark::State& state) {
  const Plan plan = make_plan("vllm-ll", fakes::small_spec(61, 2, Transport::LsaLl));
  const Linear linear = linearise(plan, 0);
  VirtualDevice device(plan, linear);
  StepRunner runner(plan, 0, linear, device, {});
  for ([[maybe_unused]] auto _ : state) runner.run();
  state.counters["ops"] = static_cast<double>(linear.ops.size());
}

}  // namespace

BENCHMARK(handover)->ArgNames({"threads", "awake"})->Args({2, 1})->Args({2, 0})->UseRealTime();
BENCHMARK(virtual_step)->UseRealTime();

BENCHMARK_MAIN();
