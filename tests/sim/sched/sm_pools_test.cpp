#include <doctest/doctest.h>

#include <string>

#include "sim/sched/schedule.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;

namespace {

/// Compute ops that run on the whole GPU whatever is set aside.
std::string ignoring(Transport transport, SmControl control, Precision weights, Precision experts) {
  ScheduleSpec spec = fakes::small_spec(3, 2, transport);
  spec.shape.hidden = 2048;
  spec.shape.weights = weights;
  spec.shape.expert_weights = experts;
  spec.sm = {control, 20, 112, 0};
  std::string names;
  for (const OpDef& op : make_plan("vllm-ht", spec).ops)
    if (op.sms == SmPool::All) names += (names.empty() ? "" : " ") + op.name;
  return names;
}

}  // namespace

TEST_CASE("sm pools: beside DeepEP a limit holds fp8 GEMMs alone, which are DeepGEMM's") {
  const auto ht = [](Precision weights, Precision experts) {
    return ignoring(Transport::Ht, SmControl::Limit, weights, experts);
  };
  CHECK(ht(Precision::Fp8, Precision::Fp8) == "EMB A1 HEAD");
  CHECK(ht(Precision::Bf16, Precision::Fp8) == "EMB A0 A1 FFN S HEAD");
  CHECK(ht(Precision::Bf16, Precision::Bf16) == "EMB A0 A1 FFN MLP S HEAD");
  CHECK(ht(Precision::Bf16, Precision::Fp4) == "EMB A0 A1 FFN MLP S HEAD");
}

TEST_CASE("sm pools: a green context holds every kernel, and kernels of our own take a block count") {
  CHECK(ignoring(Transport::Ht, SmControl::GreenContext, Precision::Bf16, Precision::Bf16).empty());
  CHECK(ignoring(Transport::Ht, SmControl::None, Precision::Bf16, Precision::Bf16).empty());
  CHECK(ignoring(Transport::LsaHt, SmControl::Limit, Precision::Bf16, Precision::Bf16).empty());
}
