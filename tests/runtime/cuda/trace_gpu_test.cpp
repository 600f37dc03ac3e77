#include <doctest/doctest.h>

#include <cstdlib>

#include "runtime/cuda/check.h"
#include "sim/cost/cost_table.h"
#include "sim/engine/engine.h"
#include "tests/runtime/cuda/gpu_rig.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

/// Largest difference of begin and end between two measurements of one step, and of the lengths.
struct Difference {
  Ns begin{}, end{}, length{};
  int missing = 0;
};

Difference difference(const RankTimes& a, const RankTimes& b) {
  Difference d;
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    if (a.ops[i].ran != b.ops[i].ran) {
      ++d.missing;
      continue;
    }
    const auto far = [](std::int64_t x, std::int64_t y) { return Ns{std::abs(x - y)}; };
    d.begin = std::max(d.begin, far(a.ops[i].begin_ns, b.ops[i].begin_ns));
    d.end = std::max(d.end, far(a.ops[i].end_ns, b.ops[i].end_ns));
    d.length = std::max(d.length, far(a.ops[i].end_ns - a.ops[i].begin_ns, b.ops[i].end_ns - b.ops[i].begin_ns));
  }
  return d;
}

/// Stamps, and the trace of `mode`, of one step; eager and by graph.
void compare_modes(TraceMode mode, Ns slack) {
  start_gpu(0);
  std::unique_ptr<CuptiTracer> tracer;  // one session a process
  if (mode == TraceMode::Full) tracer = std::make_unique<CuptiTracer>();
  for (const char* name : {"vllm-ll", "vllm-ht"}) {
    const Transport transport = std::string(name) == "vllm-ll" ? Transport::LsaLl : Transport::LsaHt;
    const Plan plan = make_plan(name, fakes::small_spec(3, 2, transport));
    test::on_gpus(1, [&](HostGroup& group) {
      const Linear linear = linearise(plan, 0);
      const auto work = test::drawn_work(plan, linear, 11, Ns{20'000}, Ns{80'000});
      RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
      replay.set_trace(mode, tracer.get());
      for (const bool graph : {false, true}) {
        CAPTURE(name);
        CAPTURE(graph);
        if (graph) replay.capture({});
        for (int step = 0; step < 3; ++step) {
          if (tracer != nullptr) tracer->clear();
          graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
          const RankTimes stamps = replay.stamp_times();
          const RankTimes traced = mode == TraceMode::Full ? replay.full_times(*tracer) : replay.light_times();
          const Difference d = difference(stamps, traced);
          MESSAGE(name << (graph ? " graph" : " eager") << ": begin " << us_text(d.begin.count()) << ", end "
                       << us_text(d.end.count()) << ", length " << us_text(d.length.count()) << " us apart at most");
          CHECK(d.missing == 0);
          CHECK(d.begin <= slack);
          CHECK(d.end <= slack);
          const auto findings =
              check_order(plan, measured_trace(plan, {&linear}, {traced}), {Ns{2'000}, Ns{}, false, 5});
          CHECK(findings.empty());
          for (const OrderFinding& finding : findings) MESSAGE(finding.text);
          if (tracer != nullptr) CHECK(tracer->unclaimed() == 0);
        }
      }
    });
  }
}

}  // namespace

TEST_CASE("trace light: events around each op agree with the stamps inside its kernel") {
  // An event's distance from its kernel: launch latency on either side.
  compare_modes(TraceMode::Light, Ns{12'000});
}

TEST_CASE("trace full: CUPTI finds every op's kernels, eagerly and inside graphs") {
  compare_modes(TraceMode::Full, Ns{8'000});
}

TEST_CASE("predict: the engine with measured gaps is within 2 % of the step, for ops of 20 to 200 us") {
  for (const char* name : {"vllm-ll", "vllm-ht", "sglang-decode", "sglang-prefill", "deepseek-prefill", "sequential"}) {
    const bool low_latency = std::string(name) == "vllm-ll" || std::string(name) == "sglang-decode";
    const Transport transport = low_latency ? Transport::LsaLl : Transport::LsaHt;
    const int ubatches = std::string(name) == "sequential" ? 1 : 2;
    ScheduleSpec spec = fakes::small_spec(6, ubatches, transport);
    spec.world = {1, 1};
    spec.classes = {{{{0, 1}}, 0}};
    Plan plan = make_plan(name, spec);
    plan.execution = Execution::Graph;
    test::on_gpus(1, [&](HostGroup& group) {
      const Linear linear = linearise(plan, 0);
      const auto work = test::drawn_work(plan, linear, 21, Ns{20'000}, Ns{200'000});
      RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
      replay.capture({});
      std::vector<Ns> steps, same, cross;
      for (int i = 0; i < 15; ++i) {
        replay.run_graph({});
        const RankTimes times = replay.stamp_times();
        steps.push_back(step_time(times));
        const LaneGaps gaps = lane_gaps(plan, linear, times);
        same.insert(same.end(), gaps.same_lane.begin(), gaps.same_lane.end());
        cross.insert(cross.end(), gaps.cross_lane.begin(), gaps.cross_lane.end());
      }
      // Every op has its own duration, so the table is filled by launch; wires and sends by op, layer and ubatch.
      CostTable costs(plan, {0}, [&] {
        std::vector<int> classes;
        for (int layer = 0; layer < plan.shape.layers; ++layer) classes.push_back(layer);
        return classes;
      }());
      for (std::size_t i = 0; i < linear.ops.size(); ++i) {
        OpCost& cost = costs.at(0, costs.layer_class(linear.ops[i].layer), linear.ops[i].ubatch, linear.ops[i].op);
        cost.time = work[i].time;
        cost.wire = work[i].wire;
      }
      costs.host.node_gap = spread_of(same).median;
      costs.host.lane_gap = std::max(spread_of(cross).median - spread_of(same).median, Ns{});
      const auto predicted = static_cast<double>(run_engine(plan, costs).step());
      const auto measured = static_cast<double>(spread_of(steps).median.count());
      MESSAGE(name << ": predicted " << predicted / 1000 << " us, measured " << measured / 1000 << " us, "
                   << 100 * (measured / predicted - 1) << " %; gaps " << us_text(spread_of(same).median.count())
                   << " and " << us_text(spread_of(cross).median.count()) << " us");
      CHECK(measured <= predicted * 1.02);
      CHECK(measured >= predicted * 0.98);
    });
  }
}
