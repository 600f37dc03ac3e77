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

/// How far a trace is from the stamps inside the kernels.
struct Difference {
  Ns begin{}, end{};        ///< at most, either way
  Ns after{};               ///< at most, of a traced begin behind the stamped one
  Ns before_free{};         ///< at most, of a traced begin before the lane was done with the op before it
  std::uint32_t worst = 0;  ///< the op of `begin`
  int missing = 0;
};

Difference difference(const Linear& linear, const RankTimes& stamps, const RankTimes& traced) {
  Difference d;
  for (const auto& queue : linear.queues) {
    std::int64_t free = INT64_MIN;
    for (const QueueItem& item : queue) {
      if (item.kind != QueueItem::Kind::Op) continue;
      const OpTime &stamp = stamps.ops[item.index], &trace = traced.ops[item.index];
      if (stamp.ran != trace.ran) ++d.missing;
      if (!stamp.ran || !trace.ran) continue;
      const Ns begin{std::abs(trace.begin_ns - stamp.begin_ns)};
      if (begin > d.begin) d.worst = item.index;
      d.begin = std::max(d.begin, begin);
      d.end = std::max(d.end, Ns{std::abs(trace.end_ns - stamp.end_ns)});
      d.after = std::max(d.after, Ns{trace.begin_ns - stamp.begin_ns});
      if (free != INT64_MIN) d.before_free = std::max(d.before_free, Ns{free - trace.begin_ns});
      free = stamp.end_ns;
    }
  }
  return d;
}

// Events and records have a resolution of about half a microsecond, and the trace is laid over the stamps by the median
// of the ends.
constexpr Ns kResolution{3'000};
// From an event to the kernel behind it, or from a kernel to the event behind it, where no host has a part in it.
constexpr Ns kNoHost{12'000};

/// Stamps, and the trace of `mode`, of one step; eager and by graph.
void compare_modes(TraceMode mode) {
  start_gpu(0);
  std::unique_ptr<CuptiTracer> tracer;  // one session a process
  if (mode == TraceMode::Full) tracer = std::make_unique<CuptiTracer>();
  for (const std::string name : {"vllm-ll", "vllm-ht"}) {
    const Transport transport = name == "vllm-ll" ? Transport::LsaLl : Transport::LsaHt;
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
          const Difference d = difference(linear, stamps, traced);
          MESSAGE(name << (graph ? " graph" : " eager") << ": begin " << us_text(d.begin.count()) << " ("
                       << describe(plan, linear.ops[d.worst]) << "), end " << us_text(d.end.count())
                       << " us apart at most");
          CHECK(d.missing == 0);
          CHECK(d.end <= kNoHost);
          CHECK(d.after <= kResolution);
          CHECK(d.before_free <= kResolution);
          // An event in front of an eager launch comes when its lane is free, the kernel when the host has launched it:
          // a host that is late stands between the two.
          if (graph || mode == TraceMode::Full) CHECK(d.begin <= kNoHost);
          const auto findings =
              check_order(plan, measured_trace(plan, {&linear}, {traced}), {Ns{2'000}, Ns{}, false, 5});
          CHECK(findings.empty());
          for (const OrderFinding& finding : findings) MESSAGE(finding.text);
          if (tracer == nullptr) continue;
          // Reading the stamps back is no part of a step.
          for (const auto& [record, count] : tracer->unclaimed()) {
            MESSAGE(count << " x " << record);
            CHECK(record == "copy to host");
          }
        }
      }
    });
  }
}

}  // namespace

TEST_CASE("trace light: events around each op agree with the stamps inside its kernel") {
  compare_modes(TraceMode::Light);
}

TEST_CASE("trace full: CUPTI finds every op's kernels, eagerly and inside graphs") {
  compare_modes(TraceMode::Full);
}

TEST_CASE("predict: the engine with measured gaps is within 2 % of the step, for ops of 20 to 200 us") {
  for (const std::string name :
       {"vllm-ll", "vllm-ht", "sglang-decode", "sglang-prefill", "deepseek-prefill", "sequential"}) {
    const bool low_latency = name == "vllm-ll" || name == "sglang-decode";
    const Transport transport = low_latency ? Transport::LsaLl : Transport::LsaHt;
    const int ubatches = name == "sequential" ? 1 : 2;
    ScheduleSpec spec = fakes::small_spec(6, ubatches, transport);
    spec.world = {1, 1};
    spec.classes = {{{{0, 1}}, 0}};
    Plan plan = make_plan(name, spec);
    test::on_gpus(1, [&](HostGroup& group) {
      const Linear linear = linearise(plan, 0);
      const auto work = test::drawn_work(plan, linear, 21, Ns{20'000}, Ns{200'000});
      RankReplay replay(group, plan, 0, stand_in_source(work), test::guard(), test::on_gpu(0));
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
      for (const bool graph : {false, true}) {
        if (graph) replay.capture({});
        std::vector<Ns> steps, same, cross;
        for (int i = 0; i < 15; ++i) {
          graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
          const RankTimes times = replay.stamp_times();
          steps.push_back(step_time(times));
          const LaneGaps gaps = lane_gaps(plan, linear, times);
          same.insert(same.end(), gaps.same_lane.begin(), gaps.same_lane.end());
          cross.insert(cross.end(), gaps.cross_lane.begin(), gaps.cross_lane.end());
        }
        plan.execution = graph ? Execution::Graph : Execution::Eager;
        costs.host.launch = replay.launch_cost();
        costs.host.node_gap = costs.host.eager_node_gap = spread_of(same).median;
        costs.host.lane_gap = costs.host.eager_lane_gap =
            std::max(spread_of(cross).median - spread_of(same).median, Ns{});
        const auto predicted = static_cast<double>(run_engine(plan, costs).step());
        const auto measured = static_cast<double>(spread_of(steps).median.count());
        MESSAGE(name << (graph ? " graph" : " eager") << ": predicted " << predicted / 1000 << " us, measured "
                     << measured / 1000 << " us, " << 100 * (measured / predicted - 1) << " %; gaps "
                     << us_text(spread_of(same).median.count()) << " and " << us_text(spread_of(cross).median.count())
                     << " us");
        CHECK(measured <= predicted * 1.02);
        CHECK(measured >= predicted * 0.98);
      }
    });
  }
}
