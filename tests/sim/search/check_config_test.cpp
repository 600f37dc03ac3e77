#include "sim/search/check_config.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/json_reader.h"

using namespace dbo;

namespace {

/// Two ranks with the same requests, block size 16, thresholds of 3 tokens, fixed costs.
Config config_of(const std::string& requests, const std::string& overlap) {
  return config_from_json(JsonRef(json_document(
      R"({"model": {"layers": 2, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
          "workload": {"ranks": [{"requests": )" +
          requests + R"(, "repeat": 2}], "block_size": 16},
          "overlap": {"decode_token_threshold": 3, "prefill_token_threshold": 3, )" +
          overlap + R"(}, "costs": {"source": "fixed"}})",
      "test.json")));
}

std::vector<std::string> codes(const PlanCheck& check) {
  std::vector<std::string> out;
  for (const PlanFinding& f : check.findings) out.push_back(f.code);
  return out;
}

// Request 0 continues a context of 48 tokens whose blocks 7 and 8 request 1 fills in the same step. 4 + 40 tokens are
// cut at 22: ubatch 1 holds the last 22 tokens of request 1, its positions 18 to 39, so block 8 (16 to 31) is written
// by both ubatches and block 7 by ubatch 0 alone.
const char* const kShared =
    R"([{"query": 4, "seq": 52, "blocks": [6, 7, 8, 9]}, {"query": 40, "seq": 40, "blocks": [7, 8, 11]}])";

}  // namespace

TEST_CASE("check_config: a prefix read before the other ubatch writes it is F9 where nothing vetoes") {
  const PlanCheck check = check_config(config_of(kShared, R"("schedule": "vllm-ll", "coordination": "mrv2")"));
  REQUIRE(codes(check) == std::vector<std::string>{"F9"});
  CHECK(check.stops());
  CHECK(check.findings[0].text ==
        "request 0 (ubatch 0) reads block 8, which request 1 (ubatch 1) writes in the same step: its attention comes "
        "first, and nothing vetoes the split");
  // Rank 1 has the same batch.
  CHECK(check.findings[0].rank == 0);
}

TEST_CASE("check_config: vLLM's first runner vetoes that step, so its plan is the un-split one and clean") {
  CHECK(codes(check_config(config_of(kShared, R"("schedule": "vllm-ll", "coordination": "v1")"))).empty());
}

TEST_CASE("check_config: who leads decides whether a shared prefix is read too early") {
  // The same batch the other way round: the reader is in ubatch 1, behind the writer, unless ubatch 1 leads.
  const char* const kReversed =
      R"([{"query": 40, "seq": 40, "blocks": [7, 8, 11]}, {"query": 40, "seq": 88, "blocks": [6, 7, 8, 9, 10, 12]}])";
  CHECK(codes(check_config(config_of(kReversed, R"("schedule": "vllm-ll", "coordination": "mrv2")"))).empty());
  const PlanCheck check =
      check_config(config_of(kReversed, R"("schedule": "deepseek-prefill", "coordination": "mrv2")"));
  REQUIRE(codes(check) == std::vector<std::string>{"F9"});
  CHECK(check.findings[0].text.find("request 1 (ubatch 1) reads block 7, which request 0 (ubatch 0)") == 0);
}

TEST_CASE("check_config: more ubatches than handles is reported once for all steps") {
  const PlanCheck check =
      check_config(config_of(R"([{"query": 1, "seq": 64, "count": 60}])", R"("schedule": "vllm-ll", "ubatches": 3)"));
  CHECK(codes(check) == std::vector<std::string>{"F18"});
  CHECK(!check.stops());
}
