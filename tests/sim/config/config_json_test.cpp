#include <doctest/doctest.h>

#include "tests/sim/config/config_text.h"

using namespace dbo;

namespace {
/// Reading what was written gives the same text again.
void check_round_trip(const Config& config) {
  const Json written = config_to_json(config);
  const Config again = read_config(pretty_json(written), config.file);
  CHECK(compact_json(config_to_json(again)) == compact_json(written));
  CHECK(again.model == config.model);
  CHECK(again.cluster.gpu == config.cluster.gpu);
  CHECK(again.cluster.fabric == config.cluster.fabric);
  CHECK(again.cluster.stragglers == config.cluster.stragglers);
  CHECK(again.parallel == config.parallel);
  CHECK(again.workload == config.workload);
  CHECK(again.routing == config.routing);
  CHECK(again.overlap == config.overlap);
  CHECK(again.execution == config.execution);
  CHECK(again.network == config.network);
  CHECK(again.costs == config.costs);
  CHECK(again.emulate == config.emulate);
}
}  // namespace

TEST_CASE("config_json: every default is written out, and presets stay names") {
  const Config c = read_config(ConfigText{.model = "\"deepseek-v3\"", .parallel = R"({"data": 16})"});
  const Json out = config_to_json(c);
  CHECK(*out.find("model") == Json("deepseek-v3"));
  CHECK(*out.find("cluster")->find("gpu") == Json("h200-sxm"));
  CHECK(*out.find("parallel")->find("expert") == Json(16));
  CHECK(*out.find("overlap")->find("transport") == Json("ll"));
  CHECK(*out.find("overlap")->find("coordination") == Json("v1"));
  CHECK(*out.find("workload")->find("tokens_per_rank") == Json(128));
  check_round_trip(c);
}

TEST_CASE("config_json: reading what was written gives the same config") {
  check_round_trip(read_config(ConfigText{}));
  check_round_trip(read_config(
      ConfigText{.model = R"({"preset": "deepseek-v3", "layers": 4, "precision": {"dispatch": "bf16"}})",
                 .parallel = R"({"data": 4, "tensor": 2})",
                 .workload = R"({"phase": "mixed", "decode_tokens": 8, "prefill_tokens": 100, "context_tokens": 64,
                      "context_spread": 0.5, "token_spread": 0.25, "seed": 3})",
                 .costs = R"({"source": "analytical"})",
                 .more = R"(, "cluster": {"nodes": 2, "gpu": {"preset": "h100-sxm", "sms": 120, "hbm_gb_per_s": 3000},
                   "fabric": {"nic_gb_per_s": 25, "latency_us": 4},
                   "stragglers": [{"ranks": [1, 2], "compute_factor": 1.5}, {"ranks": [0], "wire_factor": 1.25}]},
                   "network": "flows", "emulate": "off",
                   "routing": {"kind": "zipf", "alpha": 0.8, "seed": 5, "per_layer": true},
                   "execution": {"mode": "graph", "graph_sizes": [8, 16], "host": {"launch_us": 2.5}})"}));
  check_round_trip(read_config(ConfigText{
      .workload = R"({"ranks": [{"requests": [{"query": 1, "seq": 9, "count": 3}, {"query": 2, "seq": 2,
                     "blocks": [4]}], "padded_tokens": 8, "padded_requests": 4, "allow": false},
                     {"requests": []}], "block_size": 8, "draft_tokens": 1})",
      .costs = R"({"source": "fixed", "A0_us": 1.234, "D": {"wire_us": 60}, "C": {"copy_us": 0.5}, "host_us": 3})",
      .more = R"(, "overlap": {"schedule": {"compute": "A0_0 A1_0", "comm": "D_0", "order": "A0_0 D_0"},
                   "coordination": "mrv2", "comm_sms": 24, "sm_control": "green-context"},
                   "routing": {"kind": "table", "table": [[0.5, 0.5]]})"}));
  check_round_trip(read_config(
      ConfigText{.model = "\"qwen3-235b-a22b\"",
                 .workload = R"({"steps": [{"ranks": [{"requests": [{"query": 1, "seq": 9}], "repeat": 2}]}]})",
                 .more = R"(, "overlap": {"schedule": "sglang-prefill", "token_distribution_threshold": 0.4})"}));
}

TEST_CASE("config_json: equal ranks and requests are counted, not listed") {
  const Config c =
      read_config(ConfigText{.workload = R"({"ranks": [{"requests": [{"query": 1, "seq": 9, "count": 300}]},
                                {"requests": [{"query": 1, "seq": 9, "count": 300}]}]})"});
  CHECK(compact_json(*config_to_json(c).find("workload")->find("ranks")) ==
        R"([{"requests":[{"query":1,"seq":9,"count":300}],"repeat":2}])");
}
