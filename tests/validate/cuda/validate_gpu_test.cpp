// Validations on GPUs: a sound step has no finding, and each planted fault is found under its name. Predictions are the
// cost model's, so nothing is asked of their accuracy.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "runtime/cuda/process.h"
#include "sim/base/json_reader.h"
#include "validate/cuda/validate_run.h"
#include "validate/fault.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

struct Setting {
  std::string schedule = "vllm-ht", transport = "lsa-ht", graph_sizes;
  int ranks = 8;  ///< of the config; with fewer GPUs they are played
  int gpus = 1;
};

Outcome validated(const Setting& setting, const std::string& inject) {
  const std::string ranks = std::to_string(setting.ranks);
  const std::string text =
      R"({"model": {"preset": "deepseek-v2-lite", "layers": 6},
          "cluster": {"gpu": "h200-sxm", "gpus_per_node": )" +
      ranks + R"(, "nodes": 1}, "parallel": {"data": )" + ranks + R"(, "expert": )" + ranks +
      R"(}, "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1000},
          "overlap": {"schedule": ")" +
      setting.schedule + R"(", "transport": ")" + setting.transport + R"("},
          "execution": {"mode": "graph")" +
      (setting.graph_sizes.empty() ? "" : ", \"graph_sizes\": " + setting.graph_sizes) + "}}";
  ValidateOptions options;
  options.program = "test";
  options.gpus = setting.gpus;
  options.rules.iterations = 3;
  options.rules.warmup = 1;
  options.rules.traced = 3;
  options.rules.inject = inject;
  return validate_config(config_from_json(JsonRef(json_document(text, "test"))), "test", options);
}

/// The named failures of a replay that are there, those apart that depend on how fast the machine is.
std::string named(const Outcome& outcome) {
  std::string text;
  for (const std::string& problem : outcome.numerics.problems) text += problem + "\n";
  for (const WayOutcome& way : outcome.ways) {
    if (way.order_findings > 0) text += std::to_string(way.order_findings) + " findings against the order\n";
    for (const std::string& finding : way.named)
      if (finding.rfind("F16", 0) != 0 && finding.rfind("host-bound", 0) != 0) text += finding + "\n";
  }
  return text;
}

void check_sound(const Setting& setting) {
  const Outcome outcome = validated(setting, "");
  CAPTURE(setting.schedule);
  CAPTURE(setting.transport);
  CHECK(named(outcome) == "");
  CHECK(outcome.numerics.ok());
  CHECK(outcome.numerics.tokens > 0);
  // Six layers, split and un-split, some seven ops each.
  CHECK(outcome.numerics.audited > 100);
  CHECK(outcome.ways.size() == 2);
  MESSAGE(outcome_text(outcome));
}

void check_caught(const Setting& setting, const std::string& code) {
  const Outcome outcome = validated(setting, code);
  CAPTURE(code);
  CAPTURE(outcome.injected);
  CHECK(outcome.injected.rfind(code + ": ", 0) == 0);
  CHECK_MESSAGE(outcome.caught(), outcome_text(outcome));
  CHECK_FALSE(outcome.failures().empty());
  MESSAGE(outcome.injected << "\n" << named(outcome));
}

const Setting kHigh{}, kLow{"vllm-ll", "lsa-ll", "", 8, 1}, kPadded{"vllm-ht", "lsa-ht", "[160]", 8, 1};
const Setting kHighPair{"vllm-ht", "lsa-ht", "", 2, 2}, kLowPair{"vllm-ll", "lsa-ll", "", 2, 2};

}  // namespace

TEST_CASE("sound one: steps without a fault have no finding") {
  for (const Setting& setting : {kHigh, kLow, kPadded, Setting{"vllm-ht", "copy-engine", "", 8, 1},
                                 Setting{"sglang-decode", "lsa-ll", "", 8, 1}})
    check_sound(setting);
}
TEST_CASE("sound two: the same between two GPUs") {
  if (runtime::list_gpus().size() < 2) return;
  check_sound(kHighPair);
  check_sound(kLowPair);
  check_sound({"vllm-ht", "nccl", "", 2, 2});
}

TEST_CASE("inject F3: a late event") {
  check_caught(kHigh, "F3");
}
TEST_CASE("inject F4: a launch on another lane") {
  check_caught(kHigh, "F4");
  check_caught(kLow, "F4");
}
TEST_CASE("inject F5: a missing wait") {
  check_caught(kHigh, "F5");
}
TEST_CASE("inject F7: a receive hook that is never run") {
  check_caught(kLow, "F7");
}
TEST_CASE("inject F8: a buffer that ubatches share") {
  check_caught(kHigh, "F8");
}
TEST_CASE("inject F12: padding that is routed") {
  check_caught(kPadded, "F12");
}
TEST_CASE("inject F14: memory that is freed too early") {
  check_caught(kHigh, "F14");
}
TEST_CASE("inject F16: splitting that does not pay") {
  check_caught(kHigh, "F16");
}
TEST_CASE("inject F17: communication that finds no SM") {
  check_caught(kHigh, "F17");
}
TEST_CASE("inject two: order, memory and hooks between two GPUs") {
  if (runtime::list_gpus().size() < 2) return;
  for (const char* const code : {"F3", "F4", "F5", "F8", "F14", "F17"}) check_caught(kHighPair, code);
  check_caught(kLowPair, "F7");
}
