#include "sim/plan/plan_json.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::small_spec;

namespace {

Plan every_feature_plan() {
  ScheduleSpec spec = small_spec(6, 2, Transport::Ht);
  spec.shape.dense_layers = 1;
  spec.shape.attention.kind = AttentionKind::Mla;
  spec.shape.attention.heads = 16;
  spec.shape.moe.scaling = 2.827;
  spec.execution = Execution::Graph;
  spec.sm = {SmControl::GreenContext, 24, 108, 4};
  spec.routing.kind = RoutingKind::Table;
  spec.routing.table = {{0.25, 0.75}};
  spec.routing.seed = 7;
  spec.loads[0].ubatches[0].query_start_loc = {0, 32, 64};
  spec.loads[0].ubatches[0].seq_lens = {100, 200};
  return make_plan("vllm-ht", spec);
}

std::string error_of(const std::string& pointer, const Json& value) {
  Json json = plan_to_json(every_feature_plan());
  json.members().erase(json.members().begin() + 1);  // the hash would be the first complaint
  Json* at = &json;
  std::size_t begin = 1;
  while (begin <= pointer.size()) {
    std::size_t end = pointer.find('/', begin);
    if (end == std::string::npos) end = pointer.size();
    const std::string token = pointer.substr(begin, end - begin);
    begin = end + 1;
    if (at->is_array()) {
      at = &at->items().at(std::stoul(token));
    } else {
      if (at->find(token) == nullptr) at->set(token, Json());
      at = const_cast<Json*>(at->find(token));
    }
  }
  *at = value;
  try {
    plan_from_json(JsonRef(wrap_json(json, "p.json")));
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("plan_json: every schedule reads back as the same plan and hash") {
  for (const ScheduleName& schedule : schedule_names()) {
    const Plan plan = fakes::small_plan(schedule, 5);
    const Plan again = plan_from_json(JsonRef(json_document(plan_text(plan), "p")));
    CHECK(again == plan);
    CHECK(plan_hash(again) == plan_hash(plan));
  }
  const Plan plan = every_feature_plan();
  CHECK(plan_from_json(JsonRef(json_document(plan_text(plan), "p"))) == plan);
}

TEST_CASE("plan_json: templates stay templates, so the text does not grow with layers or ranks") {
  ScheduleSpec spec = small_spec(4, 2, Transport::Ll);
  const std::size_t small = plan_text(make_plan("vllm-ll", spec)).size();
  spec.shape.layers = 1000;
  spec.world = {256, 8};
  spec.classes = {{{{0, 256}}, 0}};
  CHECK(plan_text(make_plan("vllm-ll", spec)).size() <= small + 20);
}

TEST_CASE("plan_json: any change of content changes the hash, layout does not") {
  const Plan plan = every_feature_plan();
  Plan other = plan;
  other.sm.comm = 16;
  CHECK(plan_hash(other) != plan_hash(plan));
  other = plan;
  other.loads[0].ubatches[1].padded = 65;
  CHECK(plan_hash(other) != plan_hash(plan));
  CHECK(plan_hash(plan_from_json(JsonRef(json_document(compact_json(plan_to_json(plan)), "p")))) == plan_hash(plan));
}

TEST_CASE("plan_json: errors name the place, the value and what is allowed") {
  CHECK(error_of("/ops/A0/lane", "com") ==
        "p.json: /ops/A0/lane: unknown lane \"com\" (known: compute, comm; did you mean \"comm\"?)");
  CHECK(error_of("/ops/D/pairs", "C") == "p.json: /ops/D: a comm kernel that all ranks run together pairs with itself");
  CHECK(error_of("/blocks/moe/0", Json(Json::Array{"lunch", "A0"})) ==
        "p.json: /blocks/moe/0/0: unknown instruction \"lunch\" (known: launch, record, wait, yield, hook, run_hook, "
        "host_wait, exit, "
        "repeat, block; did you mean \"launch\"?)");
  CHECK(error_of("/blocks/moe/0", Json(Json::Array{"yield", 3})) ==
        "p.json: /blocks/moe/0: must have the form [\"yield\"], is [\"yield\",3]");
  CHECK(error_of("/classes/0/ranks/0", Json(Json::Array{0, 1})) == "p.json: /classes: rank 1 is in no class");
  CHECK(error_of("/loads/0/ubatches", Json(Json::array())) ==
        "p.json: /classes: the programs of a class use 2 ubatches, its load has 0");
  CHECK(error_of("/loads/0/ubatches/0/seq_lens", Json(Json::Array{100})) ==
        "p.json: /loads/0/ubatches/0/query_start_loc: must have one entry more than seq_lens");
  CHECK(error_of("/loads/0/ubatches/0/padded", 3) ==
        "p.json: /loads/0/ubatches/0/padded: must be at least the 64 real tokens, is 3");
  CHECK(error_of("/threads", Json(Json::array())) == "p.json: /threads: must list at least one thread");
  CHECK(error_of("/loads", Json(Json::array())) == "p.json: /loads: must list at least one load");
  CHECK(error_of("/shape/layers", 1000000000) ==
        "p.json: /shape/layers: must be a whole number from 0 to 65536, is 1000000000");
  CHECK(error_of("/transport", "ll") ==
        "p.json: /ops/D: \"D\" is one comm op, which transport \"ll\" does not have (allowed: ht, lsa-ht, "
        "copy-engine, nccl)");
  CHECK(error_of("/transport", "nccl") == "no error");
  CHECK(error_of("/format", 2) == "p.json: /format: must be a whole number from 1 to 1, is 2");
  CHECK(error_of("/hash", "0000000000000000").find("/hash: does not match the plan's content") != std::string::npos);
  CHECK(error_of("/extra", 1).find("unknown key \"extra\"") != std::string::npos);
}

TEST_CASE("plan_json: a plan with send and receive halves takes only a transport that has them") {
  for (const TransportInfo& transport : transports()) {
    CAPTURE(transport.name);
    Plan plan = make_plan("vllm-ll", small_spec(4, 2, Transport::Ll));
    plan.transport = transport.id;
    const auto read = [&] { plan_from_json(JsonRef(wrap_json(plan_to_json(plan), "p.json"))); };
    if (serves(transport, TransportClass::LowLatency))
      CHECK_NOTHROW(read());
    else
      CHECK_THROWS_WITH_AS(read(), doctest::Contains("is a send or receive half, which transport"), InputError);
  }
}
