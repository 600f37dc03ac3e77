// Orders of ops that share SMs, memory and ports: the engine's timing is the only judge there.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/engine/period.h"
#include "sim/plan/steady.h"
#include "sim/sched/schedule.h"
#include "sim/search/all_orders.h"
#include "sim/search/optimise.h"
#include "sim/search/predict.h"
#include "tests/sim/search/brute_force.h"

using namespace dbo;

namespace {

struct Case {
  std::string transport, sm_control, phase;
  std::int64_t tokens = 0;
  bool low_latency = false;
};

Config config_of(const Case& c, const std::string& model = R"("deepseek-v3")") {
  return config_from_json(JsonRef(json_document(
      R"({"model": )" + model +
          R"(, "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 2}, "parallel": {"data": 16, "expert": 16},
          "workload": {"phase": ")" +
          c.phase + R"(", "tokens_per_rank": )" + std::to_string(c.tokens) + R"(, "context_tokens": 4096},
          "overlap": {"schedule": ")" +
          (c.low_latency ? "vllm-ll" : "vllm-ht") + R"(", "transport": ")" + c.transport +
          R"(", "decode_token_threshold": 2, "prefill_token_threshold": 2, "sm_control": ")" + c.sm_control +
          R"("}, "execution": {"mode": "eager"}})",
      "test.json")));
}

/// Each transport with each control of the SMs, for decode and for prompts.
std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const bool low_latency : {false, true})
    for (const std::string& transport : low_latency ? std::vector<std::string>{"ll", "lsa-ll", "copy-engine"}
                                                    : std::vector<std::string>{"ht", "lsa-ht", "copy-engine", "nccl"})
      for (const char* control : {"limit", "green-context", "none"}) {
        cases.push_back({transport, control, "decode", 256, low_latency});
        cases.push_back({transport, control, "prefill", 4096, low_latency});
      }
  return cases;
}

/// The engine's own period of a plan, costs of its own ops included.
std::int64_t period_of(const Config& config, const Plan& plan) {
  return steady_period_time(plan, step_costs(config, plan, true)).period_ns;
}

const std::vector<std::string> kLow = {"vllm-ll", "sglang-decode", "deepseek-decode"};
const std::vector<std::string> kHigh = {"vllm-ht", "sglang-prefill", "deepseek-prefill"};

/// The engine's period of the fastest built-in, timed here.
std::int64_t fastest_builtin(const Config& config) {
  const ScheduleSpec spec = step_spec(config, decide(config.workload.steps.front(), decide_settings(config)));
  std::int64_t least = INT64_MAX;
  for (const std::string& name : config.overlap.low_latency ? kLow : kHigh)
    least = std::min(least, period_of(config, make_plan(name, spec)));
  return least;
}

}  // namespace

TEST_CASE("optimise: with contention too, never slower than a built-in by the engine's timing") {
  for (const Case& c : every_case()) {
    CAPTURE(c.transport);
    CAPTURE(c.sm_control);
    CAPTURE(c.phase);
    const Config config = config_of(c);
    std::int64_t calls = 0;
    OptimiseOptions options;
    options.keep_going = [&](const OptimiseProgress&) { return ++calls < 300; };  // as if time were short
    const OptimiseResult result = optimise(config, options);
    CHECK(result.contention);
    CHECK(result.period_ns <= fastest_builtin(config));
    CHECK(period_of(config, result.plan) == result.period_ns);
    CHECK(result.bound_ns <= result.lower_bound_ns);
    CHECK(result.lower_bound_ns <= result.period_ns);
    CHECK(result.proved == (result.lower_bound_ns == result.period_ns));
  }
}

TEST_CASE("optimise: a built-in that gains by its own waits is the result when nothing better was found in time") {
  // vLLM's copies keep a comm kernel off the SMs while an expert kernel starts: its order without them is slower.
  const Config config = config_of({"ht", "none", "decode", 512, false});
  const ScheduleSpec spec = step_spec(config, decide(config.workload.steps.front(), decide_settings(config)));
  const Plan builtin = make_plan("vllm-ht", spec);
  LaunchOrder order;
  for (const NotedOp& op : steady_period(builtin))
    if (op.kind != OpKind::CCopy) order.push_back({op.kind, op.ubatch});
  OrderTask task;
  task.low_latency = false;
  CHECK(period_of(config, builtin) < period_of(config, make_plan(notation_of_order(task, order), spec)));
  OptimiseOptions at_once;
  at_once.keep_going = [](const OptimiseProgress&) { return false; };
  const OptimiseResult result = optimise(config, at_once);
  CHECK(result.period_ns <= fastest_builtin(config));
  CHECK(period_of(config, result.plan) == result.period_ns);
  CHECK(!result.complete);
  CHECK(result.schedule == "vllm-ht");
  CHECK(result.plan.ops == builtin.ops);
}

TEST_CASE("optimise: what is proved of contending ops is the engine's least period of all orders") {
  // No shared expert, so that the engine can time them all here: 630 orders of two lanes.
  const std::string model = R"({"preset": "qwen3-235b-a22b", "layers": 6})";
  for (const Case& c : {Case{"ht", "none", "prefill", 4096, false}, Case{"ht", "limit", "decode", 256, false},
                        Case{"lsa-ht", "none", "decode", 256, false}, Case{"lsa-ht", "limit", "prefill", 4096, false},
                        Case{"nccl", "none", "prefill", 4096, false}, Case{"copy-engine", "none", "decode", 512, false},
                        Case{"ll", "none", "decode", 256, true}, Case{"lsa-ll", "none", "decode", 512, true}}) {
    CAPTURE(c.transport);
    CAPTURE(c.sm_control);
    const Config config = config_of(c, model);
    const ScheduleSpec spec = step_spec(config, decide(config.workload.steps.front(), decide_settings(config)));
    OrderTask task;
    task.low_latency = c.low_latency;
    task.shared = false;
    std::int64_t least = INT64_MAX;
    std::optional<CostTable> costs;
    std::optional<OrderTask> times;
    int number = 0;
    test::for_every_order(task, [&](const LaunchOrder& order) {
      // Of a low-latency lane there are four times as many: every fourth.
      if (c.low_latency && ++number % 4 != 0) return;
      const Plan plan = make_plan(notation_of_order(task, order), spec);
      if (!costs) costs = step_costs(config, plan, true);
      if (!times) times = make_order_task(plan, *costs, 1);
      const std::int64_t period = steady_period_time(plan, *costs).period_ns;
      // Ops that run beside each other only get slower: lanes alone are a bound of every single order.
      CHECK(period >= times->period(cycle_time(*times, order)));
      CHECK(cycle_exceeds(*times, order, cycle_time(*times, order) - 1));
      CHECK(!cycle_exceeds(*times, order, cycle_time(*times, order)));
      least = std::min(least, period);
    });
    const OptimiseResult result = optimise(config, {});
    CHECK(result.proved);
    CHECK(result.complete);
    if (c.low_latency)
      CHECK(result.period_ns <= least);
    else
      CHECK(result.period_ns == std::min(least, fastest_builtin(config)));  // which may gain by its own waits
    CHECK(result.lower_bound_ns == result.period_ns);
  }
}

TEST_CASE("all_orders: every order a task has, each once, and none when they are too many") {
  const KeepGoing going = [] { return true; };
  for (const bool low_latency : {false, true}) {
    for (const bool shared : {false, true}) {
      for (const int in_flight : {1, 2}) {
        if (low_latency && shared && in_flight == 2) continue;  // 1.7 million
        OrderTask task;
        task.low_latency = low_latency;
        task.shared = shared;
        task.in_flight = in_flight;
        std::size_t count = 0;
        test::for_every_order(task, [&](const LaunchOrder&) { ++count; });
        const auto orders = all_orders(task, 400000, going);
        REQUIRE(orders);
        CHECK(orders->size() == count);
        for (std::size_t i = 0; i < count; i += 1 + count / 50) CHECK(is_order(task, orders->at(i)));
        CHECK(!all_orders(task, count - 1, going));
      }
    }
  }
  OrderTask three;
  three.ubatches = 3;
  CHECK(!all_orders(three, 1000, going));
  OrderTask task;
  CHECK(!all_orders(task, 400000, [] { return false; }));
}
