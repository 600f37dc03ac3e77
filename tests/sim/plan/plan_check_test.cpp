#include "sim/plan/plan_check.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "tests/fakes/random_orders.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::small_spec;

namespace {

std::string text_of(const PlanCheck& check) {
  std::string text;
  for (const PlanFinding& f : check.findings) text += f.code + ": " + f.text + "\n";
  return text;
}

bool only_too_few_handles(const PlanCheck& check) {
  return check.findings.size() == 1 && check.findings[0].code == "F18" && !check.findings[0].stops;
}

}  // namespace

TEST_CASE("plan_check: every built-in schedule is sound with one to four ubatches on every transport") {
  for (const ScheduleName& schedule : schedule_names()) {
    for (const TransportInfo& transport : transports()) {
      for (int ubatches = 1; ubatches <= std::min(4, schedule.most_ubatches); ++ubatches) {
        const bool pair_only = schedule.most_ubatches == 2;
        if (schedule.schedule_class != TransportClass::Both && !serves(transport, schedule.schedule_class)) continue;
        if (pair_only && ubatches != 2) continue;
        // A hook left for the next thread of a ring of one is left for oneself: a step of one ubatch is the un-split
        // one.
        if (schedule.name == "vllm-ll" && ubatches == 1) continue;
        ScheduleSpec spec = small_spec(5, ubatches, transport.id);
        spec.embed_and_head = true;
        spec.shape.dense_layers = 1;
        spec.sm = {SmControl::Limit, 20, 112, 0};
        for (const int period : {1, 2}) {
          for (const int shared : {0, 1}) {
            spec.shape.moe_period = period;
            spec.shape.moe.shared_experts = shared;
            CAPTURE(schedule.name);
            CAPTURE(transport.name);
            CAPTURE(ubatches);
            const PlanCheck check = check_plan(make_plan(schedule.name, spec));
            // Both handles are taken by the first two ubatches: that is true of every transport there is.
            const bool split = schedule.name != kSequentialSchedule && ubatches > 2;
            CHECK_MESSAGE((split ? only_too_few_handles(check) : check.findings.empty()), text_of(check));
            CHECK(check.ops > 0);
            CHECK(check.programs == 1);
          }
        }
      }
    }
  }
}

TEST_CASE("plan_check: any order in notation is sound, as waits follow from its data edges") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const bool low_latency = seed % 2 == 0;
    const fakes::RandomOrder order = fakes::random_order(seed, low_latency, 2 + static_cast<int>(seed % 3));
    CAPTURE(order.notation.order);
    ScheduleSpec spec = small_spec(4, order.ubatches, low_latency ? Transport::LsaLl : Transport::LsaHt);
    spec.sm = {SmControl::Limit, 20, 112, 0};
    spec.embed_and_head = seed % 5 == 0;
    const PlanCheck check = check_plan(make_plan(order.notation, spec));
    // What remains is what the order itself decides: how many calls it leaves un-received, and of how many ubatches.
    bool crowded = false, overflow = false;
    for (const PlanFinding& f : check.findings) {
      CAPTURE(f.text);
      CHECK((f.code == "F18" || f.code == "F6"));
      crowded = crowded || f.code == "F6";
      overflow = overflow || (f.code == "F6" && f.stops);
    }
    CHECK(crowded == (order.most_in_flight > 1));
    if (order.most_in_flight > 2) CHECK(overflow);
  }
}

TEST_CASE("plan_check: a receive hooked in four threads is never crowded: one call is un-received at a time") {
  const PlanCheck check = check_plan(make_plan("vllm-ll", small_spec(6, 4, Transport::LsaLl)));
  CHECK_MESSAGE(only_too_few_handles(check), text_of(check));
}

TEST_CASE("plan_check: a finding that stops is thrown with code and words, a warning is not") {
  Plan plan = make_plan("vllm-ht", small_spec(2, 2, Transport::LsaHt));
  plan.sm.control = SmControl::None;
  const std::vector<PlanFinding> warnings = warnings_or_throw(check_plan(plan));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].code == "F17");
  // The experts' wait, the second of the block: without it they start before their tokens are there.
  Program& body = plan.blocks[0].body;
  std::vector<std::size_t> waits;
  for (std::size_t i = 0; i < body.size(); ++i)
    if (body[i].verb == Verb::Wait) waits.push_back(i);
  body.erase(body.begin() + static_cast<std::ptrdiff_t>(waits[1]));
  CHECK_THROWS_WITH_AS(
      warnings_or_throw(check_plan(plan)),
      "F5: MLP of ubatch 0, layer 0 (compute) reads received[0] without waiting for D of ubatch 0, layer 0 (comm), "
      "which writes it: compute never waits for comm before it",
      FindingError);
}

TEST_CASE("plan_check: the same fault in every layer is one finding with its count") {
  // Two ubatches of 50 layers, whose experts do not wait.
  Plan plan = make_plan("vllm-ht", small_spec(50, 2, Transport::LsaHt));
  plan.sm = {SmControl::Limit, 20, 112, 0};
  Program& body = plan.blocks[0].body;
  int seen = 0;
  std::erase_if(body, [&](const Instruction& i) { return i.verb == Verb::Wait && ++seen == 2; });
  const PlanCheck check = check_plan(plan);
  REQUIRE(!check.findings.empty());
  CHECK(check.findings[0].code == "F5");
  CHECK(check.findings[0].times == 100);
  CHECK(check.findings[0].rank == 0);
}

TEST_CASE("plan_check: a dense layer without its feed-forward leaves the next one nothing to add") {
  ScheduleSpec spec = small_spec(2, 1, Transport::LsaHt);
  spec.shape.dense_layers = 1;
  Plan plan = make_plan(kSequentialSchedule, spec);
  for (Block& block : plan.blocks)
    std::erase_if(block.body, [&](const Instruction& instruction) {
      return instruction.verb == Verb::Launch && plan.op(instruction.op.op).kind == OpKind::FFN;
    });
  const PlanCheck check = check_plan(plan);
  REQUIRE(check.findings.size() == 1);
  CHECK(check.findings[0].text ==
        "A0 of ubatch 0, layer 1 reads shared, which FFN of ubatch 0, layer 0 never writes, as it is not launched: it "
        "finds nothing there");
}

TEST_CASE("plan_check: every code has a name") {
  for (const std::string_view code : failure_codes()) CHECK(!failure_name(code).empty());
  CHECK_THROWS_AS(failure_name("F99"), InternalError);
}

TEST_CASE("plan_check: a thread that does not end with its exit is found") {
  Plan plan = make_plan("vllm-ll", small_spec(4, 2, Transport::Ll));
  REQUIRE(check_plan(plan).findings.empty());
  for (Thread& thread : plan.threads) {
    REQUIRE(thread.body.back().verb == Verb::Exit);
    thread.body.pop_back();
  }
  const PlanCheck all = check_plan(plan);
  CHECK(all.stops());
  CHECK(
      text_of(all).find("F2: ubatch 0 ends without \"exit\": the baton is never handed on, and the step never ends") !=
      std::string::npos);
  Plan early = make_plan("vllm-ll", small_spec(4, 2, Transport::Ll));
  early.threads[1].body.push_back(early.threads[1].body.back());
  CHECK(text_of(check_plan(early)).find("F2: ubatch 1 exits before its last instruction: what follows never runs") !=
        std::string::npos);
}
