#include "sim/plan/linearise.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/plan/plan_json.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::small_spec;

namespace {

/// "A0.0@1": op, ubatch and layer of each launch on a lane, in queue order.
std::string lane_text(const Plan& plan, const Linear& linear, LaneId lane) {
  std::string text;
  for (const QueueItem& item : linear.queues[lane]) {
    if (item.kind != QueueItem::Kind::Op) continue;
    const LinearOp& op = linear.ops[item.index];
    text += (text.empty() ? "" : " ") + plan.ops[op.op].name + "." + std::to_string(op.ubatch) + "@" +
            std::to_string(op.layer);
  }
  return text;
}

/// A plan of N threads that only yield, k[i] times each.
Plan yielding_plan(const std::vector<int>& yields) {
  Plan plan = make_plan("sequential", small_spec(1, 1, Transport::Ht));
  plan.threads.clear();
  plan.classes[0].threads.clear();
  for (std::size_t t = 0; t < yields.size(); ++t) {
    Thread thread;
    thread.ubatch = static_cast<int>(t);
    for (int i = 0; i < yields[t]; ++i) thread.body.emplace_back();
    thread.body.emplace_back().verb = Verb::Exit;
    plan.threads.push_back(thread);
    plan.classes[0].threads.push_back(static_cast<int>(t));
  }
  return plan;
}

bool runs_through(const std::vector<int>& yields) {
  return linearise(yielding_plan(yields), 0).problems.empty();
}

/// One thread with the given instructions on lanes compute and comm, ops A0 (compute) and C (comm).
Linear run_text(const std::string& body) {
  Plan plan = make_plan("vllm-ht", small_spec(1, 1, Transport::Ht));
  Json json = plan_to_json(plan);
  json.members().erase(json.members().begin() + 1);  // the hash
  json.set("events", parse_json(R"(["e", "f"])", "t"));
  json.set("blocks", Json::object());
  json.set("threads", parse_json(R"([{"ubatch": 0, "body": )" + body + "}]", "t"));
  return linearise(plan_from_json(JsonRef(wrap_json(json, "t"))), 0);
}

}  // namespace

TEST_CASE("linearise: vLLM low latency has the published stream order") {
  // A0 A1 of ubatch 0, then per window: receive of the sibling's call, own send, next work (two layers, no tail work).
  const Plan plan = make_plan("vllm-ll", small_spec(2, 2, Transport::Ll));
  const Linear linear = linearise(plan, 0);
  CHECK(linear.problems.empty());
  CHECK(lane_text(plan, linear, kComputeLane) ==
        "A0.0@0 A1.0@0 D.send.0@0 A0.1@0 A1.1@0 D.recv.0@0 D.send.1@0 MLP.0@0 D.recv.1@0 C.send.0@0 S.0@0 MLP.1@0 "
        "C.recv.0@0 "
        "C.send.1@0 S.1@0 "
        "A0.0@1 A1.0@1 C.recv.1@0 D.send.0@1 A0.1@1 A1.1@1 D.recv.0@1 D.send.1@1 MLP.0@1 D.recv.1@1 C.send.0@1 S.0@1 "
        "MLP.1@1 "
        "C.recv.0@1 C.send.1@1 S.1@1 C.recv.1@1");
  CHECK(lane_text(plan, linear, kCommLane).empty());
  CHECK(linear.records.empty());
}

TEST_CASE("linearise: a low-latency receive names its send, and calls count up in send order") {
  const Plan plan = make_plan("vllm-ll", small_spec(3, 2, Transport::Ll));
  const Linear linear = linearise(plan, 0);
  std::uint32_t next_call = 0;
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    if (!is_send(plan.ops[op.op].kind)) continue;
    CHECK(op.call == next_call++);
    const LinearOp& recv = linear.ops[op.pair];
    CHECK(recv.pair == i);
    CHECK((recv.layer == op.layer && recv.ubatch == op.ubatch && recv.call == op.call));
  }
  CHECK(next_call == 3 * 2 * 2);
}

TEST_CASE("linearise: at most one low-latency call is un-received with any number of ubatches") {
  for (const int ubatches : {1, 2, 3, 4, 7}) {
    const Plan plan = make_plan("vllm-ll", small_spec(4, ubatches, Transport::Ll));
    const Linear linear = linearise(plan, 0);
    CHECK(linear.problems.empty());
    int in_flight = 0, most = 0;
    for (const LinearOp& op : linear.ops) {
      if (is_send(plan.ops[op.op].kind)) most = std::max(most, ++in_flight);
      if (is_recv(plan.ops[op.op].kind)) --in_flight;
    }
    CHECK(most == 1);
    CHECK(in_flight == 0);
  }
}

TEST_CASE("linearise: vLLM high throughput has the published lane orders and waits") {
  const Plan plan = make_plan("vllm-ht", small_spec(2, 2, Transport::Ht));
  const Linear linear = linearise(plan, 0);
  CHECK(linear.problems.empty());
  CHECK(lane_text(plan, linear, kComputeLane) ==
        "A0.0@0 A1.0@0 A0.1@0 A1.1@0 MLP.0@0 MLP.1@0 S.0@0 S.1@0 A0.0@1 A1.0@1 A0.1@1 A1.1@1 MLP.0@1 MLP.1@1 S.0@1 "
        "S.1@1");
  CHECK(lane_text(plan, linear, kCommLane) ==
        "D.0@0 D.1@0 C.0@0 C.copy.0@0 C.1@0 C.copy.1@0 D.0@1 D.1@1 C.0@1 C.copy.0@1 C.1@1 C.copy.1@1");
  // The op each wait lets its lane see last: D0 after A1 of ubatch 0, MLP0 after D0, and so on.
  std::string waits;
  for (const LinearWait& wait : linear.waits) {
    if (wait.record == kNone) continue;
    const LinearRecord& record = linear.records[wait.record];
    std::uint32_t op = kNone;
    for (std::uint32_t p = 0; p < record.position; ++p)
      if (linear.queues[record.lane][p].kind == QueueItem::Kind::Op) op = linear.queues[record.lane][p].index;
    waits += plan.ops[linear.ops[op].op].name + "." + std::to_string(linear.ops[op].ubatch) + " ";
    if (wait.host > 60) break;
  }
  CHECK(waits.substr(0, 63) == "A1.0 D.0 A1.1 D.1 MLP.0 MLP.1 C.copy.0 C.copy.1 A1.0 D.0 A1.1 D");
  // Dispatch blocks the host until its counts are known.
  CHECK(std::count_if(linear.host.begin(), linear.host.end(),
                      [](const HostStep& s) { return s.verb == Verb::HostWait && s.notify; }) == 4);
}

TEST_CASE("linearise: a run finishes exactly when yields do not grow along the ring and differ by at most one") {
  // Worked table of the state machine.
  CHECK(runs_through({3, 3}));
  CHECK(runs_through({3, 2}));
  CHECK(!runs_through({4, 2}));
  CHECK(!runs_through({2, 3}));
  CHECK(runs_through({0, 0}));
  CHECK(!runs_through({0, 1}));
  CHECK(runs_through({3, 2, 2}));
  CHECK(!runs_through({2, 3, 2}));
  CHECK(!runs_through({4, 3, 2}));
  // The rule, over all small cases of two and three threads.
  for (int a = 0; a <= 4; ++a)
    for (int b = 0; b <= 4; ++b) {
      CHECK(runs_through({a, b}) == (a - b == 0 || a - b == 1));
      for (int c = 0; c <= 4; ++c) CHECK(runs_through({a, b, c}) == (a >= b && b >= c && a - c <= 1));
    }
}

TEST_CASE("linearise: a deadlock says who waits for whom and since which yield") {
  const Linear linear = linearise(yielding_plan({4, 2}), 0);
  REQUIRE(linear.problems.size() == 1);
  CHECK(linear.problems[0].code == "F2");
  CHECK(
      linear.problems[0].text ==
      "ubatch 1 has exited after 2 yields, so nobody passes the baton on: ubatch 0 waits at its yield 4 for ubatch 1.");
}

TEST_CASE("linearise: a wait binds to the latest record at that point, a never-recorded event is no wait") {
  const Linear linear = run_text(
      R"([["wait","e","comm"], ["launch","A0"], ["record","e","compute"], ["launch","A1"], ["wait","e","comm"],
          ["record","e","compute"], ["wait","e","comm"], ["wait","f","comm"], ["exit"]])");
  REQUIRE(linear.waits.size() == 4);
  CHECK(linear.waits[0].record == kNone);
  CHECK(linear.waits[1].record == 0);
  CHECK(linear.records[0].position == 1);  // behind A0, before A1
  CHECK(linear.waits[2].record == 1);
  CHECK(linear.records[1].position == 3);  // A0, the first record, A1
  CHECK(linear.waits[3].record == kNone);
}

TEST_CASE("linearise: a host wait for an op that was not launched is found") {
  const Linear linear = run_text(R"([["host_wait","D","notify"], ["exit"]])");
  REQUIRE(linear.problems.size() == 1);
  CHECK(linear.problems[0].code == "F2");
}

TEST_CASE("linearise: hooks lost, overwritten or run without their send are found") {
  const auto problem = [](const std::string& moe) {
    Plan plan = make_plan("vllm-ll", small_spec(1, 2, Transport::Ll));
    Json json = plan_to_json(plan);
    json.members().erase(json.members().begin() + 1);
    json.set("blocks", parse_json(R"({"moe": )" + moe + "}", "t"));
    const Linear linear = linearise(plan_from_json(JsonRef(wrap_json(json, "t"))), 0);
    return linear.problems.empty() ? "none" : linear.problems[0].code + " " + linear.problems[0].text;
  };
  CHECK(problem(R"([["launch","D.send"],["hook",["D.recv"]],["yield"],["run_hook"]])") == "none");
  CHECK(
      problem(R"([["launch","D.send"],["hook",["D.recv"]],["hook",["D.recv"]],["yield"],["run_hook"]])").substr(0, 2) ==
      "F7");
  CHECK(problem(R"([["launch","D.recv"],["launch","D.send"],["yield"]])") ==
        "F7 D.recv of ubatch 0, layer 0 is launched without a send before it: it would wait for ever");
  // Registered after the last yield of the sibling: nobody runs it.
  CHECK(problem(R"([["launch","D.send"],["yield"],["hook",["D.recv"]]])").substr(0, 2) == "F7");
}

TEST_CASE("linearise: a repeat with an offset has prologue and epilogue, and numbers layers on") {
  const Plan plan = make_plan("sglang-decode", small_spec(3, 2, Transport::Ll));
  const Linear linear = linearise(plan, 0);
  CHECK(linear.problems.empty());
  // Five stages, ubatch 1 two stages behind: one call in flight, experts of neither under communication.
  CHECK(
      lane_text(plan, linear, kComputeLane)
          .starts_with(
              "A0.0@0 A1.0@0 D.send.0@0 S.0@0 A0.1@0 D.recv.0@0 MLP.0@0 C.send.0@0 A1.1@0 C.recv.0@0 D.send.1@0 S.1@0 "
              "A0.0@1 D.recv.1@0 MLP.1@0 C.send.1@0 A1.0@1 C.recv.1@0 D.send.0@1 S.0@1 A0.1@1 D.recv.0@1 MLP.0@1 "
              "C.send.0@1 "
              "A1.1@1 C.recv.0@1 D.send.1@1 S.1@1 A0.0@2 D.recv.1@1"));
  CHECK(linear.marks.size() == 4);  // three layers and the epilogue
  CHECK(linear.marks[3].layer == 3);
}

TEST_CASE("linearise: leading dense layers come first and shift the numbers of the MoE layers") {
  ScheduleSpec spec = small_spec(5, 2, Transport::Ll);
  spec.shape.dense_layers = 2;
  spec.embed_and_head = true;
  const Plan plan = make_plan("vllm-ll", spec);
  const Linear linear = linearise(plan, 0);
  const std::string text = lane_text(plan, linear, kComputeLane);
  CHECK(text.starts_with(
      "EMB.0@-1 A0.0@0 A1.0@0 FFN.0@0 A0.0@1 A1.0@1 FFN.0@1 A0.0@2 A1.0@2 D.send.0@2 EMB.1@-1 A0.1@0 A1.1@0 FFN.1@0 "
      "A0.1@1 A1.1@1 "));
  // Ubatch 0's exit runs the last receive after its own tail; ubatch 1's tail follows.
  CHECK(text.ends_with(" S.1@4 HEAD.0@-1 C.recv.1@4 HEAD.1@-1"));
}

TEST_CASE("linearise: every second layer MoE numbers dense and MoE layers alternately") {
  ScheduleSpec spec = small_spec(4, 2, Transport::Ll);
  spec.shape.moe_period = 2;
  for (const char* name : {"vllm-ll", "sglang-decode"}) {
    const Plan plan = make_plan(name, spec);
    const Linear linear = linearise(plan, 0);
    CHECK(linear.problems.empty());
    for (const LinearOp& op : linear.ops) {
      const OpKind kind = plan.ops[op.op].kind;
      if (kind == OpKind::FFN) CHECK(op.layer % 2 == 0);
      if (kind == OpKind::MLP) CHECK(op.layer % 2 == 1);
    }
    CHECK(std::count_if(linear.ops.begin(), linear.ops.end(),
                        [&](const LinearOp& op) { return plan.ops[op.op].kind == OpKind::MLP; }) == 4);
    CHECK(std::count_if(linear.ops.begin(), linear.ops.end(),
                        [&](const LinearOp& op) { return plan.ops[op.op].kind == OpKind::FFN; }) == 4);
  }
}
