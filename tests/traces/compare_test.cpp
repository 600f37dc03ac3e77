#include "traces/compare.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "tests/traces/kineto_builder.h"
#include "tests/traces/simulated.h"
#include "tests/traces/temp_dir.h"
#include "traces/chrome_writer.h"
#include "traces/join.h"
#include "traces/overlap.h"

using namespace dbo;
using dbo::testing::compare_input;
using dbo::testing::simulated;
using dbo::testing::worked_costs;
using fakes::small_spec;

namespace {

Plan low_latency(int layers = 6) {
  return make_plan("vllm-ll", small_spec(layers, 2, Transport::LsaLl));
}
Plan high_throughput(int layers = 6) {
  ScheduleSpec spec = small_spec(layers, 2, Transport::LsaHt);
  spec.sm = {SmControl::Limit, 20, 112, 0};
  return make_plan("vllm-ht", spec);
}

std::optional<NamedFinding> finding(const Comparison& c, std::string_view code) {
  for (const NamedFinding& one : c.findings)
    if (one.code == code) return one;
  return std::nullopt;
}

const KindRow* row(const Comparison& c, OpKind kind) {
  for (const KindRow& one : c.kinds)
    if (one.kind == kind) return &one;
  return nullptr;
}

std::string failed(const Comparison& c) {
  std::string text;
  for (const Criterion& criterion : c.criteria)
    if (!criterion.ok) text += criterion.what + ";";
  return text;
}

}  // namespace

TEST_CASE("compare: a trace agrees with itself in every respect") {
  for (const Plan& plan : {low_latency(), high_throughput()}) {
    const CompareInput input = compare_input(plan, worked_costs(transport_info(plan.transport).handle_slots > 0));
    const Comparison c = compare_traces(input);
    CHECK(c.pass());
    CHECK(c.same_plan);
    CHECK(c.order.empty());
    CHECK_FALSE(c.divergence);
    CHECK(c.findings.empty());
    CHECK(c.only_predicted == 0);
    CHECK(c.only_measured == 0);
    CHECK(c.step_error() == 0);
    for (const KindRow& one : c.kinds) CHECK(one.worst == 0);
    for (const WindowRow& one : c.windows) CHECK(one.share() == one.predicted_share());
    REQUIRE(c.clocks.size() == 2);
    CHECK(c.clocks[1].offset == Ns{0});
    CHECK(comparison_json(c).find("pass")->as_bool());
  }
}

TEST_CASE("compare: durations are compared by kind, apart in and out of overlap, and the worst op is named") {
  CompareInput input = compare_input(low_latency(), worked_costs(true));
  // Every MLP takes half as long again; one A1 takes twice as long. Starts are left alone: only lengths are looked at.
  bool doubled = false;
  for (TraceOp& op : input.measured.ops) {
    if (op.kind == OpKind::MLP) op.end += (op.end - op.start) / 2;
    if (op.kind == OpKind::A1 && op.layer == 3 && op.rank == 1 && !doubled) {
      op.end += op.end - op.start;
      doubled = true;
    }
  }
  const Comparison c = compare_traces(input);
  const KindRow* mlp = row(c, OpKind::MLP);
  REQUIRE(mlp != nullptr);
  CHECK(mlp->error == doctest::Approx(0.5));
  CHECK(mlp->predicted == Ns{80'000});
  CHECK(mlp->measured == Ns{120'000});
  CHECK(mlp->overlapped);
  double worst = 0;
  std::string worst_op;
  for (const KindRow& one : c.kinds)
    if (one.kind == OpKind::A1 && one.worst > worst) {
      worst = one.worst;
      worst_op = one.worst_op;
    }
  CHECK(worst == doctest::Approx(1.0));
  CHECK(worst_op == "A1 of ubatch 0, layer 3, rank 1");
  CHECK(failed(c).find("MLP in overlap;") != std::string::npos);
}

TEST_CASE("compare: windows say how much of each intended overlap was achieved") {
  // Communication on the compute lane: nothing runs beside it (collectives issued to the compute stream).
  const Plan plan = high_throughput();
  CompareInput input = compare_input(plan, worked_costs(false));
  for (const std::int32_t rank : {0, 1}) {
    SimTime time{};
    std::vector<TraceOp*> ops;
    for (TraceOp& op : input.measured.ops)
      if (op.rank == rank) ops.push_back(&op);
    std::stable_sort(ops.begin(), ops.end(),
                     [](const TraceOp* a, const TraceOp* b) { return a->plan_op < b->plan_op; });
    for (TraceOp* op : ops) {
      const Ns length = op->end - op->start;
      op->lane = 0;
      op->start = time;
      op->end = time = time + length;
    }
  }
  const Comparison c = compare_traces(input);
  REQUIRE(c.windows.size() == 5);
  CHECK(c.windows[0].name == "D[0]|A[1]");
  CHECK(c.windows[0].planned == 12);  // six layers on two ranks
  CHECK(*c.windows[0].predicted_share() == doctest::Approx(1.0));
  CHECK(*c.windows[0].share() == doctest::Approx(0.0));
  CHECK(failed(c).find("window D[0]|A[1];") != std::string::npos);
  CHECK_FALSE(c.pass());
  // ... which is the failure F4, with the ops as evidence.
  const auto f4 = finding(c, "F4");
  REQUIRE(f4);
  CHECK(f4->evidence[0].find("D of ubatch 0, layer 0 ran on lane compute, planned on comm") != std::string::npos);
}

TEST_CASE("compare: the first divergence from the planned order is shown") {
  const Plan plan = low_latency();
  CompareInput input = compare_input(plan, worked_costs(true));
  // Rank 1 runs MLP of ubatch 1 before S of ubatch 0 in layer 2: they change places.
  TraceOp *shared = nullptr, *mlp = nullptr;
  for (TraceOp& op : input.measured.ops) {
    if (op.rank != 1 || op.layer != 2) continue;
    if (op.kind == OpKind::S && op.ubatch == 0) shared = &op;
    if (op.kind == OpKind::MLP && op.ubatch == 1) mlp = &op;
  }
  const Ns mlp_length = mlp->end - mlp->start;
  mlp->start = shared->start;
  mlp->end = mlp->start + mlp_length;
  shared->start = mlp->end;
  shared->end = shared->start + Ns{20'000};
  const Comparison c = compare_traces(input);
  REQUIRE(c.divergence);
  CHECK(c.divergence->rank == 1);
  CHECK(c.divergence->lane == "compute");
  CHECK(c.divergence->before == "C.send of ubatch 0, layer 2");
  CHECK(c.divergence->planned == "S of ubatch 0, layer 2");
  CHECK(c.divergence->measured == "MLP of ubatch 1, layer 2");
  CHECK_FALSE(c.order.empty());
  CHECK_FALSE(c.pass());
  CHECK(comparison_text(c).find("first divergence: rank 1, lane compute") != std::string::npos);
}

TEST_CASE("compare: an event recorded too late (F3) keeps the order and loses the windows") {
  // The runtime records its event after the yield: comm then waits for whatever compute was enqueued last.
  const Plan plan = high_throughput();
  Plan late = plan;
  for (Block& block : late.blocks)
    for (std::size_t i = 0; i + 1 < block.body.size(); ++i)
      if (block.body[i].verb == Verb::Record && block.body[i].lane == kComputeLane &&
          block.body[i + 1].verb == Verb::Yield)
        std::swap(block.body[i], block.body[i + 1]);
  REQUIRE_FALSE(late == plan);
  CompareInput input = compare_input(plan, worked_costs(false));
  input.measured = simulated(late, worked_costs(false));
  input.measured.metadata.set("plan_hash", plan_hash(plan));
  const Comparison c = compare_traces(input);
  CHECK(c.order.empty());
  const auto f3 = finding(c, "F3");
  REQUIRE(f3);
  CHECK(f3->evidence.size() >= 3);
  CHECK(std::any_of(f3->evidence.begin(), f3->evidence.end(), [](const std::string& text) {
    return text.find("D[0]|A[1]: 12 of 12 transfers began only when the compute") == 0;
  }));
  CHECK_FALSE(finding(c, "F17"));
  CHECK(failed(c).find("window D[0]|A[1];") != std::string::npos);
  CHECK(failed(c).find("step time;") != std::string::npos);

  // Without SMs set aside the same picture is SM starvation.
  input.plan->sm = {SmControl::None, 0, 132, 0};
  input.predicted.metadata.set("plan_hash", plan_hash(*input.plan));
  input.measured.metadata.set("plan_hash", plan_hash(*input.plan));
  const Comparison starved = compare_traces(input);
  CHECK(finding(starved, "F17"));
  CHECK_FALSE(finding(starved, "F3"));

  // Unless the starts are those of lanes, which no kernel keeps from being reached.
  input.measured.metadata.set("op_starts", "lanes");
  const Comparison reached = compare_traces(input);
  CHECK(finding(reached, "F3"));
  CHECK_FALSE(finding(reached, "F17"));
}

TEST_CASE("compare: a transfer is late (F3) by a tenth of itself, not by a fixed time") {
  // The other ubatch's A takes 100 us, so a late event costs every dispatch and combine about that.
  const Plan plan = high_throughput();
  Plan late = plan;
  for (Block& block : late.blocks)
    for (std::size_t i = 0; i + 1 < block.body.size(); ++i)
      if (block.body[i].verb == Verb::Record && block.body[i].lane == kComputeLane &&
          block.body[i + 1].verb == Verb::Yield)
        std::swap(block.body[i], block.body[i + 1]);
  const auto found = [&](Ns wire, Ns shift) {
    FixedCosts costs = worked_costs(false);
    costs.dispatch.wire = costs.combine.wire = wire;
    CompareInput input = compare_input(plan, costs);
    input.measured = simulated(late, costs);
    input.measured.metadata.set("plan_hash", plan_hash(plan));
    for (TraceOp& op : input.measured.ops)
      if (is_collective(op.kind)) op.start += shift;
    return finding(compare_traces(input), "F3").has_value();
  };
  CHECK(found(Ns{60'000}, Ns{0}));
  CHECK(found(Ns{500'000}, Ns{0}));
  CHECK_FALSE(found(Ns{2'000'000}, Ns{0}));
  // How close behind the compute's end it has to begin: 10 us, or a tenth of it, and 1 us for reading two times.
  CHECK(found(Ns{60'000}, Ns{11'000}));
  CHECK_FALSE(found(Ns{60'000}, Ns{12'000}));
  CHECK(found(Ns{300'000}, Ns{28'000}));
}

TEST_CASE("compare: a missing wait is F5, a third call in flight F6, a hook that never ran F7") {
  {
    const Plan plan = high_throughput();
    FixedCosts costs = worked_costs(false);
    costs.dispatch.wire = Ns{150'000};  // D0 100..250, A1 100..200: the MLP waits for D0 alone
    CompareInput input = compare_input(plan, costs);
    for (TraceOp& op : input.measured.ops)
      if (op.rank == 0 && op.kind == OpKind::MLP && op.layer == 0 && op.ubatch == 0) op.start -= Ns{30'000};
    const Comparison c = compare_traces(input);
    CHECK(finding(c, "F5"));
  }
  {
    const Plan plan = low_latency();
    CompareInput input = compare_input(plan, worked_costs(true));
    // Receives of layer 2 come at the end of layer 3.
    for (TraceOp& op : input.measured.ops)
      if (op.rank == 0 && op.layer == 2 && is_recv(op.kind)) op.end += Ns{800'000};
    const Comparison c = compare_traces(input);
    const auto f6 = finding(c, "F6");
    REQUIRE(f6);
    CHECK(f6->evidence[0].find("rank 0: ") == 0);
    CHECK(f6->evidence[0].find("the transport holds 2") != std::string::npos);
  }
  {
    const Plan plan = low_latency();
    CompareInput input = compare_input(plan, worked_costs(true));
    std::erase_if(input.measured.ops, [](const TraceOp& op) {
      return op.rank == 1 && op.kind == OpKind::DRecv && op.layer == 4 && op.ubatch == 0;
    });
    const auto f7 = finding(compare_traces(input), "F7");
    REQUIRE(f7);
    CHECK(f7->evidence[0] == "rank 1: D.recv of ubatch 0, layer 4 did not run");
  }
}

TEST_CASE("compare: no benefit over the un-split step is F16, with what it was lost on") {
  const Plan plan = high_throughput();
  CompareInput input = compare_input(plan, worked_costs(false));
  input.baseline = input.predicted;
  for (TraceOp& op : input.baseline->ops) {  // an un-split step of half the time
    op.start = at(op.start.time_since_epoch().count() / 2);
    op.end = at(op.end.time_since_epoch().count() / 2);
  }
  const auto f16 = finding(compare_traces(input), "F16");
  REQUIRE(f16);
  CHECK(f16->evidence[0].find("un-split 1.2") != std::string::npos);
  input.baseline->ops.back().end += Ns{10'000'000};
  CHECK_FALSE(finding(compare_traces(input), "F16"));
}

TEST_CASE("compare: clocks of ranks are aligned before order is judged") {
  // Rank 1's clock is 500 us ahead and gains 50 parts per million.
  const Plan plan = low_latency(12);
  CompareInput input = compare_input(plan, worked_costs(true));
  for (TraceOp& op : input.measured.ops) {
    if (op.rank != 1) continue;
    const auto off = [](SimTime time) {
      const std::int64_t ns = time.time_since_epoch().count();
      return at(ns + 500'000 + ns * 50 / 1'000'000);
    };
    op.start = off(op.start);
    op.end = off(op.end);
  }
  const Comparison c = compare_traces(input);
  REQUIRE(c.clocks.size() == 2);
  CHECK(std::abs((c.clocks[1].offset - Ns{500'000}).count()) <= 5);
  CHECK(c.clocks[1].drift_ppm == doctest::Approx(50).epsilon(0.02));
  CHECK(c.clocks[1].residual <= Ns{2});
  CHECK(c.clocks[1].measurements == 48);
  CHECK(c.order.empty());
  CHECK(c.pass());
}

TEST_CASE("compare: a rank that is late is no clock that is off") {
  const Plan plan = low_latency();
  CompareInput input = compare_input(plan, worked_costs(true));
  // Rank 1 sends everything 5 us later, within its own idle time: nothing contradicts equal clocks.
  for (TraceOp& op : input.measured.ops)
    if (op.rank == 1 && is_send(op.kind)) op.end += Ns{5'000};
  CHECK(compare_traces(input).clocks[1].offset == Ns{0});
}

TEST_CASE(
    "compare: the step's error is split over the compute lane, largest part first, with the assumption behind it") {
  FixedCosts slower = worked_costs(true);
  slower.mlp = Ns{100'000};
  const Plan plan = low_latency();
  CompareInput input = compare_input(plan, worked_costs(true));
  input.measured = simulated(plan, slower);
  const Comparison c = compare_traces(input);
  REQUIRE_FALSE(c.parts.empty());
  CHECK(c.parts[0].what == "MLP");
  CHECK(c.parts[0].measured - c.parts[0].predicted == Ns{6 * 2 * 20'000});
  CHECK(c.parts[0].assumption.find("grouped GEMM") == 0);
  std::int64_t sum = 0;
  for (const StepPart& part : c.parts) sum += (part.measured - part.predicted).count();
  CHECK(sum == (c.measured_step - c.predicted_step).count());
}

TEST_CASE("compare: traces of different plans are refused unless asked for") {
  CompareInput input = compare_input(low_latency(), worked_costs(true));
  input.measured.metadata.set("plan_hash", "0000000000000000");
  CHECK_THROWS_AS(compare_traces(input), InputError);
  CompareOptions options;
  options.any_plan = true;
  CHECK_FALSE(compare_traces(input, options).same_plan);
}

TEST_CASE("compare: ranks without a prediction of their own are compared with one of their class") {
  CompareInput input = compare_input(low_latency(), worked_costs(true));
  std::erase_if(input.predicted.ops, [](const TraceOp& op) { return op.rank == 1; });
  input.predicted.flows.clear();
  CHECK(predicted_rank_for(input, 1) == 0);
  const Comparison c = compare_traces(input);
  CHECK(c.ranks.size() == 2);
  CHECK(c.pass());
}

TEST_CASE("compare: files are found, and a profiler's trace is joined by kind, layer and ubatch") {
  const Plan plan = make_plan("vllm-ll", small_spec(2, 2, Transport::Ll));
  const dbo::testing::TempDir dir;
  Trace predicted = simulated(plan, worked_costs(true));
  write_file(dir.file("plan.json"), plan_text(plan));
  write_chrome_trace(dir.file("predicted.trace.json"), predicted);
  // The same step as kernels of a profiler, on one stream, 10 % slower.
  dbo::testing::KinetoBuilder builder;
  const Linear linear = linearise(plan, 0);
  const auto ops = ops_by_key(predicted, 0);
  int time = 0;
  for (const LinearOp& op : linear.ops) {
    const OpKind kind = plan.ops[op.op].kind;
    const auto length = [&](double share) {
      const TraceOp& seen = *ops.at({kind, op.layer, op.ubatch, kNoPlanOp});
      return static_cast<int>(static_cast<double>((seen.end - seen.start - seen.waited).count()) * 1.1 * share / 1000);
    };
    const auto kernel = [&](const char* name, int dur) {
      builder.kernel(name, 7, time, dur);
      time += dur;
    };
    switch (kind) {
      case OpKind::A0:
        kernel("rms_norm", length(0.5));
        kernel("gemm", length(0.5));
        break;
      case OpKind::A1:
        kernel("flash_fwd_splitkv_mla", length(0.5));
        kernel("gemm", length(0.5));
        break;
      case OpKind::MLP:
        kernel("m_grouped_gemm", length(0.5));
        kernel("m_grouped_gemm", length(0.5));
        break;
      case OpKind::S:
        kernel("gemm", length(1));
        break;
      default:
        kernel(is_dispatch(kind) ? "deep_ep::internode_ll::dispatch" : "deep_ep::internode_ll::combine", 3);
    }
  }
  write_file(dir.file("measured.json"), builder.text());
  CompareFiles files;
  files.predicted = dir.file("predicted.trace.json");
  files.measured = dir.file("measured.json");
  const CompareInput input = load_compare_input(files);
  CHECK(input.foreign);
  REQUIRE(input.plan);
  const Comparison c = compare_traces(input);
  CHECK(c.joined == static_cast<int>(ops.size()) - 8);  // all but the wires
  CHECK(c.only_measured == 0);
  CHECK(c.order.empty());
  CHECK_FALSE(c.divergence);
  CHECK(row(c, OpKind::MLP)->error == doctest::Approx(0.1).epsilon(0.02));
  CHECK(row(c, OpKind::A1)->error == doctest::Approx(0.1).epsilon(0.02));
}

TEST_CASE("compare: without the plan the prediction's own order is the measure") {
  CompareInput input = compare_input(low_latency(), worked_costs(true));
  input.plan.reset();
  const Comparison same = compare_traces(input);
  CHECK(same.pass());
  CHECK(same.windows.empty());
  for (TraceOp& op : input.measured.ops)
    if (op.rank == 0 && op.layer == 1 && op.kind == OpKind::S && op.ubatch == 0) op.start += Ns{200'000};
  const Comparison other = compare_traces(input);
  CHECK(other.divergence);
  CHECK(failed(other).find("order of lanes;") == 0);
}
