#include <doctest/doctest.h>

#include "tests/sim/config/config_text.h"

using namespace dbo;

namespace {
std::string workload_error(const std::string& workload) {
  return config_error(ConfigText{.workload = workload});
}
WorkloadConfig workload_of(const std::string& workload) {
  return read_config(ConfigText{.workload = workload}).workload;
}
/// Two ranks: one with `requests`, one idle; plus `more` keys of the first.
std::string rank_error(const std::string& requests, const std::string& more = "") {
  return workload_error("{\"ranks\": [{\"requests\": [" + requests + "]" + more + "}, {\"requests\": []}]}");
}
}  // namespace

TEST_CASE("workload: decode is whole requests of query_tokens") {
  const WorkloadConfig w =
      workload_of(R"({"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024, "query_tokens": 2})");
  CHECK(w.steps[0].draft_tokens == 1);
  CHECK(w.steps[0].ranks[1].requests.size() == 64);
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024, "query_tokens": 3})") ==
        "c.json: /workload/tokens_per_rank: must be a multiple of /workload/query_tokens (3), is 128");
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": 6, "context_tokens": 2, "query_tokens": 3})") ==
        "c.json: /workload/context_tokens: must be at least /workload/query_tokens (3), is 2");
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": -4, "context_tokens": 10})") ==
        "c.json: /workload/tokens_per_rank: must be a whole number from 1 to 1073741823, is -4");
}

TEST_CASE("workload: keys of another phase are unknown, misspelt ones are named") {
  CHECK(workload_error(R"({"phase": "prefill", "tokens_per_rank": 8, "context_tokens": 8, "query_tokens": 1})")
            .starts_with("c.json: /workload/query_tokens: unknown key \"query_tokens\" (known: phase, "
                         "tokens_per_rank, context_tokens, context_spread, token_spread, seed"));
  CHECK(workload_error(R"({"phase": "mixed", "tokens_per_rank": 8, "context_tokens": 8})")
            .starts_with("c.json: /workload/tokens_per_rank: unknown key"));
  CHECK(workload_error(R"({"phase": "mixed", "decode_tokens": 8, "context_tokens": 8})") ==
        "c.json: /workload: missing key \"prefill_tokens\"");
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": 8, "contxt_tokens": 8})")
            .ends_with("did you mean \"context_tokens\"?)"));
  CHECK(workload_error(R"({"phase": "decod", "tokens_per_rank": 8, "context_tokens": 8})") ==
        "c.json: /workload/phase: unknown phase \"decod\" (known: decode, prefill, mixed; did you mean "
        "\"decode\"?)");
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": 8, "context_tokens": 8, "context_spread": 2})") ==
        "c.json: /workload/context_spread: must be a number from 0 to 1, is 2");
  CHECK(workload_error("{}") ==
        "c.json: /workload: must have \"phase\" (a rule for the batch), \"ranks\" (an explicit batch), \"steps\" or "
        "\"steps_file\"");
  CHECK(workload_error(R"({"rank": []})") == "c.json: /workload/rank: unknown key \"rank\" (did you mean \"ranks\"?)");
  CHECK(workload_error(R"({"ranks": [], "phase": "decode"})").find("/workload/phase") == std::string::npos);
}

TEST_CASE("workload: explicit ranks, with requests and ranks that repeat") {
  const WorkloadConfig w = workload_of(R"({
    "ranks": [{"requests": [{"query": 1, "seq": 64, "count": 3}, {"query": 10, "seq": 33, "blocks": [7, 8, 9]}],
               "padded_tokens": 16, "padded_requests": 8, "allow": false, "repeat": 2}],
    "block_size": 16, "draft_tokens": 2})");
  CHECK_FALSE(w.sequence);
  REQUIRE(w.steps.size() == 1);
  const StepBatch& step = w.steps[0];
  CHECK(step.draft_tokens == 2);
  REQUIRE(step.ranks.size() == 2);
  CHECK(step.ranks[0] == step.ranks[1]);
  REQUIRE(step.ranks[0].requests.size() == 4);
  CHECK(step.ranks[0].tokens() == 13);
  CHECK(step.ranks[0].requests[3].computed() == 23);
  CHECK(step.ranks[0].padded_tokens == 16);
  CHECK_FALSE(step.ranks[0].allow);
}

TEST_CASE("workload: requests and paddings that cannot be are refused at their place") {
  CHECK(rank_error(R"({"query": 5, "seq": 4})") ==
        "c.json: /workload/ranks/0/requests/0/query: must be at most seq (4), which counts the tokens of this step "
        "too, is 5");
  CHECK(rank_error(R"({"query": 1, "seq": 33, "blocks": [1, 2]})") ==
        "c.json: /workload/ranks/0/requests/0/blocks: must list at least 3 blocks of 16 tokens for a seq of 33, "
        "lists 2");
  CHECK(rank_error(R"({"query": 1, "seq": 32, "blocks": [1, 2]})") == "no error");
  CHECK(rank_error(R"({"query": 4, "seq": 4, "count": 2})", R"(, "padded_tokens": 7)") ==
        "c.json: /workload/ranks/0/padded_tokens: must be at least the rank's 8 tokens, is 7");
  CHECK(rank_error(R"({"query": 4, "seq": 4, "count": 2})", R"(, "padded_requests": 1)") ==
        "c.json: /workload/ranks/0/padded_requests: must be at least the rank's 2 requests, is 1");
  CHECK(rank_error(R"({"query": 0, "seq": 4})").starts_with("c.json: /workload/ranks/0/requests/0/query: "));
  CHECK(rank_error(R"({"qeury": 1, "seq": 4})") ==
        "c.json: /workload/ranks/0/requests/0/qeury: unknown key \"qeury\" (known: query, seq, blocks, count; did you "
        "mean \"query\"?)");
  CHECK(rank_error(R"({"query": 1, "seq": 4})", R"(, "allow": 1)") ==
        "c.json: /workload/ranks/0/allow: must be true or false, is 1");
}

TEST_CASE("workload: every step has the ranks of parallel.data") {
  CHECK(workload_error(R"({"ranks": [{"requests": [], "repeat": 3}]})") ==
        "c.json: /workload/ranks: must list the 2 ranks of /parallel/data, repeats counted, lists 3");
  CHECK(workload_error(R"({"steps": [{"ranks": [{"requests": [], "repeat": 2}]}, {"ranks": [{"requests": []}]}]})") ==
        "c.json: /workload/steps/1/ranks: must list the 2 ranks of /parallel/data, repeats counted, lists 1");
  CHECK(workload_error(R"({"steps": []})") == "c.json: /workload/steps: must list at least one step");
  CHECK(workload_error(R"({"steps": [{"phase": "decode"}]})")
            .starts_with("c.json: /workload/steps/0: missing key \"ranks\""));
  CHECK(workload_error(R"({"steps_file": "none.jsonl"})").starts_with("none.jsonl: "));
  const WorkloadConfig w = workload_of(R"({"steps": [
    {"ranks": [{"requests": [], "repeat": 2}], "block_size": 64},
    {"ranks": [{"requests": [], "repeat": 2}], "draft_tokens": 1}]})");
  CHECK(w.sequence);
  CHECK(w.steps[0].block_size == 64);
  CHECK(w.steps[1].block_size == 16);
  CHECK(w.steps[1].draft_tokens == 1);
}

TEST_CASE("workload: absurd sizes fail before they fill the memory") {
  CHECK(rank_error(R"({"query": 1, "seq": 4, "count": 5000000})")
            .starts_with("c.json: /workload/ranks/0/requests/0/count: "));
  CHECK(workload_error(R"({"phase": "decode", "tokens_per_rank": 1000000000, "context_tokens": 10})") ==
        "c.json: /workload: makes more than 4194304 requests on the 2 ranks");
}
