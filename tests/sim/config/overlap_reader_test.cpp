#include <doctest/doctest.h>

#include "tests/sim/config/config_text.h"

using namespace dbo;

namespace {
ConfigText with_overlap(const std::string& overlap) {
  return {.more = ", \"overlap\": " + overlap};
}
OverlapConfig overlap_of(const std::string& overlap) {
  return read_config(with_overlap(overlap)).overlap;
}
std::string overlap_error(const std::string& overlap) {
  return config_error(with_overlap(overlap));
}
std::string execution_error(const std::string& execution) {
  return config_error(ConfigText{.more = ", \"execution\": " + execution});
}
}  // namespace

TEST_CASE("overlap: the schedule gives transport, class and coordination") {
  struct Row {
    const char* schedule;
    Transport transport;
    bool low_latency;
    Coordination coordination;
  };
  const Row rows[] = {
      {"\"vllm-ll\"", Transport::Ll, true, Coordination::V1},
      {"\"vllm-ht\"", Transport::Ht, false, Coordination::V1},
      {"\"sglang-decode\"", Transport::Ll, true, Coordination::Sglang},
      {"\"sglang-prefill\"", Transport::Ht, false, Coordination::Sglang},
      {"\"deepseek-decode\"", Transport::Ll, true, Coordination::V1},
      {"\"deepseek-prefill\"", Transport::Ht, false, Coordination::V1},
      {"\"sequential\"", Transport::Ht, false, Coordination::V1},
      {R"({"compute": "A0_0 D_0.send", "order": "A0_0"})", Transport::Ll, true, Coordination::V1},
      {R"({"compute": "A0_0", "comm": "D_0", "order": "A0_0 D_0"})", Transport::Ht, false, Coordination::V1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.schedule);
    const OverlapConfig overlap = overlap_of("{\"schedule\": " + std::string(row.schedule) + "}");
    CHECK(overlap.transport == row.transport);
    CHECK(overlap.low_latency == row.low_latency);
    CHECK(overlap.coordination == row.coordination);
  }
  CHECK(overlap_of(R"({"schedule": "sequential", "transport": "lsa-ll"})").low_latency);
  // Un-split over a transport of both classes: as the schedule makes its plan, one op.
  CHECK(overlap_of(R"({"schedule": "sequential", "transport": "copy-engine"})").low_latency == false);
  CHECK(overlap_of(R"({"schedule": "vllm-ht", "transport": "copy-engine"})").low_latency == false);
  CHECK(overlap_of(R"({"schedule": "vllm-ll", "transport": "copy-engine"})").low_latency);
}

TEST_CASE("overlap: a transport of the other class is refused with those allowed") {
  CHECK(overlap_error(R"({"schedule": "vllm-ll", "transport": "ht"})") ==
        "c.json: /overlap/transport: \"ht\" does not serve schedule \"vllm-ll\", which has send and receive halves "
        "(allowed: ll, lsa-ll, copy-engine)");
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "transport": "lsa-ll"})") ==
        "c.json: /overlap/transport: \"lsa-ll\" does not serve schedule \"vllm-ht\", which has one comm op (allowed: "
        "ht, lsa-ht, copy-engine, nccl)");
  CHECK(overlap_error(R"({"schedule": {"compute": "A0_0"}, "transport": "ll"})")
            .starts_with("c.json: /overlap/transport: \"ll\" does not serve the notation, which has one comm op"));
  CHECK(overlap_error(R"({"transport": "nvlink"})")
            .starts_with("c.json: /overlap/transport: unknown transport \"nvlink\" (known: ht, ll, "));
  CHECK(overlap_error(R"({"schedule": "vllm-lh"})") ==
        "c.json: /overlap/schedule: unknown schedule \"vllm-lh\" (known: sequential, vllm-ll, vllm-ht, sglang-decode, "
        "sglang-prefill, deepseek-decode, deepseek-prefill; did you mean \"vllm-ll\"?)");
  CHECK(overlap_error(R"({"schedule": 3})") ==
        "c.json: /overlap/schedule: must be the name of a schedule or an object with its notation, is 3");
}

TEST_CASE("overlap: thresholds are at least the number of ubatches, where they are read at all") {
  CHECK(overlap_error(R"({"ubatches": 2, "decode_token_threshold": 1})") ==
        "c.json: /overlap/decode_token_threshold: must be at least /overlap/ubatches (2), so that a rank past it can "
        "fill every ubatch, is 1");
  CHECK(overlap_error(R"({"ubatches": 3, "prefill_token_threshold": 2})")
            .starts_with("c.json: /overlap/prefill_token_threshold: must be at least /overlap/ubatches (3)"));
  CHECK(overlap_error(R"({"ubatches": 40})") ==
        "c.json: /overlap/ubatches: must be at most /overlap/decode_token_threshold (32 by default), is 40");
  CHECK(overlap_error(R"({"ubatches": 1, "decode_token_threshold": 1})") == "no error");
  CHECK(overlap_error(R"({"ubatches": 2, "coordination": "sglang", "decode_token_threshold": 1})") == "no error");
}

TEST_CASE("overlap: counts, choices and shares outside their range name it") {
  CHECK(overlap_error(R"({"ubatches": 2.5})") ==
        "c.json: /overlap/ubatches: must be a whole number from 1 to 64, is 2.5");
  CHECK(overlap_error(R"({"ubatches": 0})") == "c.json: /overlap/ubatches: must be a whole number from 1 to 64, is 0");
  CHECK(overlap_error(R"({"schedule": "sglang-decode", "ubatches": 3})") ==
        "c.json: /overlap/ubatches: must be 1 or 2 for schedule \"sglang-decode\", is 3");
  CHECK(overlap_error(R"({"coordination": "sglang", "ubatches": 3})") ==
        "c.json: /overlap/ubatches: must be 1 or 2 with coordination \"sglang\", which splits a batch in two, is 3");
  CHECK(overlap_error(R"({"coordination": "v2"})") ==
        "c.json: /overlap/coordination: unknown coordination \"v2\" (known: v1, mrv2, sglang; did you mean \"v1\"?)");
  CHECK(overlap_error(R"({"sm_control": "limits"})") ==
        "c.json: /overlap/sm_control: unknown sm_control \"limits\" (known: limit, green-context, none; did you mean "
        "\"limit\"?)");
  CHECK(overlap_error(R"({"token_distribution_threshold": 0.7})") ==
        "c.json: /overlap/token_distribution_threshold: must be a number from 0 to 0.5, is 0.7");
}

TEST_CASE("overlap: DeepEP high throughput wants an even number of SMs below the GPU's") {
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 19})") ==
        "c.json: /overlap/comm_sms: must be even with transport \"ht\", is 19");
  // Above the created count the kernels keep theirs, which is even.
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 25})") == "no error");
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 25, "comm_sms_created": 21})") ==
        "c.json: /overlap/comm_sms_created: must be even with transport \"ht\", is 21");
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 132})") ==
        "c.json: /overlap/comm_sms: must be below the 132 SMs of h200-sxm, is 132");
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "transport": "lsa-ht", "comm_sms": 19})") == "no error");
  // DeepEP and NCCL then take their own number; our kernel has none.
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 0})") == "no error");
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "transport": "nccl", "comm_sms": 0})") == "no error");
  CHECK(
      overlap_error(R"({"schedule": "vllm-ht", "transport": "lsa-ht", "comm_sms": 0})") ==
      "c.json: /overlap/comm_sms: must be at least 1 with transport \"lsa-ht\", whose kernel has as many blocks, is 0");
  // Low latency sets no SM aside, whatever is asked for.
  CHECK(overlap_error(R"({"schedule": "vllm-ll", "comm_sms": 133})") == "no error");
  // A green context of 126 SMs takes 128 of the 132 and leaves half of what the other one needs.
  CHECK(overlap_error(R"({"schedule": "vllm-ht", "comm_sms": 126, "sm_control": "green-context"})") ==
        "c.json: /overlap/comm_sms: must leave at least the 8 SMs that a green context needs of the 132 SMs of "
        "h200-sxm, is 126");
}

TEST_CASE("execution: graph sizes are sorted, host times may be given one by one") {
  const Config c = read_config(
      ConfigText{.more = R"(, "execution": {"mode": "graph", "graph_sizes": [256, 128], "host": {"launch_us": 2.5}})"});
  CHECK(c.execution.mode == Execution::Graph);
  CHECK(c.execution.graph_sizes == std::vector<std::int64_t>{128, 256});
  CHECK(c.execution.host.find("launch_us")->as_number() == 2.5);
  CHECK(execution_error(R"({"graph_sizes": []})") ==
        "c.json: /execution/graph_sizes: must list at least one size; without the key every step has a graph of its "
        "own size");
  CHECK(execution_error(R"({"graph_sizes": [8, 16, 8]})") == "c.json: /execution/graph_sizes: lists 8 twice");
  CHECK(execution_error(R"({"graph_sizes": [8, 0]})").starts_with("c.json: /execution/graph_sizes/1: "));
  CHECK(execution_error(R"({"mode": "graphs"})") ==
        "c.json: /execution/mode: unknown execution mode \"graphs\" (known: eager, graph; did you mean \"graph\"?)");
  CHECK(execution_error(R"({"host": "rust"})") ==
        "c.json: /execution/host: unknown host \"rust\" (known: cpp, python)");
  CHECK(execution_error(R"({"host": {"launch_us": -1}})") ==
        "c.json: /execution/host/launch_us: must be a number from 0 to 1e+09, is -1");
  CHECK(execution_error(R"({"host": {"launch": 1}})").starts_with("c.json: /execution/host/launch: unknown key"));
}
