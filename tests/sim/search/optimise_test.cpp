#include "sim/search/optimise.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/engine/period.h"
#include "sim/search/order_search.h"
#include "sim/search/predict.h"
#include "tests/fakes/random_orders.h"
#include "tests/sim/search/brute_force.h"

using namespace dbo;
using fakes::Draw;

namespace {

struct Times {
  std::int64_t a0 = 0, a1 = 0, mlp = 0, s = 0, d = 0, c = 0, send = 0, recv = 0, copy = 0, host = 0;
};

Config config_of(const std::string& schedule, const Times& t, int ubatches = 2, const std::string& more = "") {
  const auto us = [](std::int64_t v) { return std::to_string(v); };
  const std::string exchange = R"("send_us": )" + us(t.send) + R"(, "recv_us": )" + us(t.recv) + R"(, "wire_us": )";
  return config_from_json(JsonRef(json_document(
      R"({"model": {"layers": 4, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"phase": "decode", "tokens_per_rank": 1024, "context_tokens": 1024},
          "overlap": {"schedule": ")" +
          schedule + R"(", "ubatches": )" + us(ubatches) + more + R"(},
          "costs": {"source": "fixed", "A0_us": )" +
          us(t.a0) + R"(, "A1_us": )" + us(t.a1) + R"(, "MLP_us": )" + us(t.mlp) + R"(, "S_us": )" + us(t.s) +
          R"(, "D": {)" + exchange + us(t.d) + R"(}, "C": {)" + exchange + us(t.c) + R"(, "copy_us": )" + us(t.copy) +
          R"(}, "host_us": )" + us(t.host) + "}}",
      "test.json")));
}

/// The period the engine gives the notation as written.
std::int64_t period_of(const Config& config, const Notation& notation) {
  const Decision decision = decide(config.workload.steps.front(), decide_settings(config));
  const Plan plan = make_plan(notation, step_spec(config, decision));
  return steady_period_time(plan, step_costs(config, plan, true)).period_ns;
}

}  // namespace

TEST_CASE("optimise: every corner of the high-throughput cube reaches its bound; a built-in does at 24 of 32") {
  int reached = 0, builtin = 0;
  for (int corner = 0; corner < 32; ++corner) {
    const auto at = [&](int bit) { return (corner >> bit & 1) != 0 ? 160 : 20; };
    const Config config = config_of("vllm-ht", {.a1 = at(0), .mlp = at(1), .s = at(2), .d = at(3), .c = at(4)});
    const OptimiseResult result = optimise(config, {});
    CAPTURE(corner);
    CHECK(result.period_ns == result.bound_ns);
    CHECK(result.proved);
    CHECK(period_of(config, result.notation) == result.period_ns);
    // Both lanes, and the chain of one ubatch, by hand.
    const std::int64_t compute = 2 * (at(0) + at(1) + at(2)), comm = 2 * (at(3) + at(4));
    const std::int64_t chain = at(0) + std::max(at(3) + at(1) + at(4), at(2));
    CHECK(result.bound_ns == 1000 * std::max({compute, comm, chain}));
    reached += result.period_ns == result.bound_ns ? 1 : 0;
    builtin += result.builtins.front().period_ns == result.bound_ns ? 1 : 0;
  }
  CHECK(reached == 32);
  CHECK(builtin == 24);
}

TEST_CASE("optimise: the engine gives no order of two ubatches a shorter period") {
  // Ten ops of each lane order: those that differ only in how the host interleaves the lanes count once.
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const auto us = [&] { return 5 * draw.below(20); };
    const Config config = config_of("vllm-ht", {.a0 = us(), .a1 = us(), .mlp = us(), .s = us(), .d = us(), .c = us()});
    const Decision decision = decide(config.workload.steps.front(), decide_settings(config));
    const ScheduleSpec spec = step_spec(config, decision);
    OrderTask task;
    task.low_latency = false;
    std::int64_t least = INT64_MAX;
    int orders = 0;
    std::set<std::string> seen;
    test::for_every_order(task, [&](const LaunchOrder& order) {
      const Notation notation = notation_of_order(task, order);
      if (!seen.insert(notation.compute + "/" + notation.comm).second) return;
      const Plan plan = make_plan(notation, spec);
      least = std::min(least, steady_period_time(plan, step_costs(config, plan, true)).period_ns);
      ++orders;
    });
    CHECK(orders > 1000);
    const OptimiseResult result = optimise(config, {});
    CHECK(result.period_ns == least);
    CHECK(result.proved);
  }
}

TEST_CASE("optimise: is never slower than a built-in schedule, and its notation runs as it says") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const auto us = [&](int most) { return draw.below(4) == 0 ? 0 : draw.below(most); };
    const bool low_latency = seed % 2 == 0;
    Times t{.a0 = us(60), .a1 = us(160), .mlp = us(160), .s = us(80), .d = us(160), .c = us(160)};
    t.send = us(10), t.recv = us(10), t.copy = us(20), t.host = us(8);
    const char* const graph = low_latency && seed % 4 == 0 ? R"(}, "execution": {"mode": "graph")" : "";
    const Config config = config_of(low_latency ? "vllm-ll" : "vllm-ht", t, 2 + static_cast<int>(seed % 3), graph);
    std::int64_t calls = 0;
    OptimiseOptions options;
    options.keep_going = [&](const OptimiseProgress&) { return ++calls < 20000; };
    const OptimiseResult result = optimise(config, options);
    REQUIRE(!result.builtins.empty());
    CHECK(result.period_ns <= result.builtins.front().period_ns);
    CHECK(result.period_ns >= result.bound_ns);
    CHECK(result.lower_bound_ns >= result.bound_ns);
    CHECK(result.proved == (result.gap_ns() == 0));
    CHECK(period_of(config, result.notation) == result.period_ns);
    CHECK(warnings_or_throw(check_plan(result.plan)).size() == (seed % 3 == 0 ? 0 : 1));  // too few handles past two
  }
}

TEST_CASE("optimise: two calls in flight may be faster, and are a warning where there are two buffers") {
  // A call takes 10 + 120 + 10 or 10 + 100 + 10 us: 2 (140 + 120) one after the other. With two under way the wires
  // alone count, 2 (120 + 100).
  const Config config =
      config_of("vllm-ll", {.a1 = 60, .mlp = 60, .s = 20, .d = 120, .c = 100, .send = 10, .recv = 10});
  OptimiseOptions two;
  two.in_flight = 2;
  const OptimiseResult one_call = optimise(config, {}), two_calls = optimise(config, two);
  CHECK(one_call.proved);
  CHECK(two_calls.proved);
  CHECK(one_call.period_ns == 520000);
  CHECK(two_calls.period_ns == 440000);
  const std::vector<PlanFinding> warnings = warnings_or_throw(check_plan(two_calls.plan));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].code == "F6");
  two.in_flight = 3;
  CHECK_THROWS_WITH_AS(optimise(config, two), "--in-flight 3: transport ll has 2 buffers", InputError);
}

TEST_CASE("optimise: a step that is not split has no order to choose") {
  const Config config = config_of("vllm-ll", {.a1 = 40}, 1);
  CHECK_THROWS_AS(optimise(config, {}), InputError);
}

TEST_CASE("optimise: what ends the search leaves the best order so far and says what is proved") {
  const Config config = config_of("vllm-ht", {.a1 = 131, .mlp = 77, .s = 23, .d = 149, .c = 91});
  OptimiseOptions options;
  options.keep_going = [](const OptimiseProgress& p) {
    CHECK(p.best_ns >= p.lower_bound_ns);
    return false;
  };
  const OptimiseResult result = optimise(config, options);
  CHECK(result.period_ns <= result.builtins.front().period_ns);
  CHECK(result.complete == result.proved);
}
