#include <doctest/doctest.h>

#include <filesystem>

#include "sim/base/files.h"
#include "tests/sim/config/config_text.h"

using namespace dbo;

TEST_CASE("config: model, parallel and workload are enough; the rest has its stated default") {
  const Config c = read_config(
      R"({"model": "deepseek-v3", // a comment
          "parallel": {"data": 8, "tensor": 2, "expert": 16},
          "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 4096}})");
  CHECK(c.model.layers == 61);
  CHECK(c.cluster.gpu.name == "h200-sxm");
  CHECK(c.cluster.fabric.name == "cx7-400g");
  CHECK(c.cluster.nodes == 2);
  CHECK(c.cluster.gpus_per_node == 8);
  CHECK(c.parallel.redundant_experts == 0);
  CHECK(c.workload.steps.size() == 1);
  CHECK(c.workload.steps[0].ranks.size() == 8);
  CHECK(c.routing == Routing{});
  CHECK(c.overlap.schedule == "vllm-ll");
  CHECK(c.overlap.transport == Transport::Ll);
  CHECK(c.overlap.ubatches == 2);
  CHECK(c.overlap.decode_token_threshold == 32);
  CHECK(c.overlap.prefill_token_threshold == 512);
  CHECK(c.overlap.coordination == Coordination::V1);
  CHECK(c.overlap.comm_sms == 20);
  CHECK(c.overlap.sm_control == SmControl::Limit);
  CHECK(c.execution.mode == Execution::Eager);
  CHECK_FALSE(c.execution.graph_sizes.has_value());
  CHECK(c.execution.host == Json("cpp"));
  CHECK(c.network == NetworkModel::Ports);
  CHECK(c.costs.source == CostSource::Analytical);
  CHECK(c.emulate == Emulate::Auto);
}

TEST_CASE("config: experts divide evenly by the smallest number of replicas") {
  // 256 experts over 72 ranks: 4 a rank make 288, so 32 replicas.
  ConfigText parts{.model = "\"deepseek-v3\"", .parallel = R"({"data": 72, "expert": 72})"};
  CHECK(read_config(parts).parallel.redundant_experts == 32);
  CHECK(read_config(parts).routing.redundant == 32);
  parts.parallel = R"({"data": 72, "expert": 72, "redundant_experts": 104})";
  CHECK(read_config(parts).parallel.redundant_experts == 104);
  parts.parallel = R"({"data": 72, "expert": 72, "redundant_experts": 31})";
  CHECK(config_error(parts) ==
        "c.json: /parallel/redundant_experts: with the 256 routed experts must make a multiple of /parallel/expert "
        "(72), for example 32, is 31");
}

TEST_CASE("config: layers alone make a model with a shared expert and an expert a rank, for fixed costs only") {
  const Config c = read_config(ConfigText{});
  CHECK(c.model.layers == 4);
  CHECK(c.model.moe_layers() == 3);
  CHECK(c.model.has_shared());
  CHECK(c.model.moe.routed_experts == 2);
  CHECK(c.parallel.redundant_experts == 0);
  CHECK(config_error(ConfigText{.costs = R"({"source": "analytical"})"}) ==
        "c.json: /model: must have the model's dimensions (\"hidden\" and so on): layers alone are enough only with "
        "fixed costs");
}

TEST_CASE("config: one of nodes and gpus_per_node gives the other; together they make parallel.expert") {
  ConfigText parts{.parallel = R"({"data": 16, "expert": 16})"};
  parts.more = R"(, "cluster": {"nodes": 2})";
  CHECK(read_config(parts).cluster.gpus_per_node == 8);
  parts.more = R"(, "cluster": {"gpus_per_node": 4, "gpu": "h100-sxm"})";
  CHECK(read_config(parts).cluster.nodes == 4);
  CHECK(read_config(parts).cluster.gpu.name == "h100-sxm");
  parts.more = R"(, "cluster": {"nodes": 2, "gpus_per_node": 4})";
  CHECK(config_error(parts) == "c.json: /cluster: nodes x gpus_per_node (2 x 4 = 8) must be /parallel/expert, is 16");
  parts.more = R"(, "cluster": {"nodes": 3})";
  CHECK(config_error(parts) == "c.json: /cluster: nodes x gpus_per_node (3 x 16 = 48) must be /parallel/expert, is 16");
  parts.more = R"(, "cluster": {"gpu": "h20O-sxm"})";
  CHECK(config_error(parts).starts_with("c.json: /cluster/gpu: unknown gpu \"h20O-sxm\" (known: a100-sxm, "));
  CHECK(config_error(parts).ends_with("did you mean \"h200-sxm\"?)"));
}

TEST_CASE("config: with neither nodes nor gpus_per_node, a node has no more GPUs than share scale-up links") {
  const auto layout = [](int gpus, const std::string& more) {
    ConfigText parts{.parallel = "{\"data\": " + std::to_string(gpus) + "}"};
    parts.more = more;
    const ClusterConfig cluster = read_config(parts).cluster;
    CHECK(cluster.layout_assumed);
    return std::pair(cluster.nodes, cluster.gpus_per_node);
  };
  // Eight H200 share links; a GB200 rack shares them among 72.
  CHECK(layout(2, "") == std::pair(1, 2));
  CHECK(layout(8, "") == std::pair(1, 8));
  CHECK(layout(72, "") == std::pair(9, 8));
  CHECK(layout(12, "") == std::pair(2, 6));
  CHECK(layout(11, "") == std::pair(11, 1));
  CHECK(layout(72, R"(, "cluster": {"gpu": "h100-sxm"})") == std::pair(9, 8));
  CHECK(layout(72, R"(, "cluster": {"gpu": "gb200-nvl72"})") == std::pair(1, 72));
  CHECK(layout(144, R"(, "cluster": {"fabric": "nvl72"})") == std::pair(2, 72));
  ConfigText parts{.parallel = R"({"data": 16})"};
  parts.more = R"(, "cluster": {"gpus_per_node": 16})";
  CHECK_FALSE(read_config(parts).cluster.layout_assumed);
  CHECK(read_config(parts).cluster.gpus_per_node == 16);
}

TEST_CASE("config: stragglers are ranks of the world, each named once, with a factor of at least 1") {
  const auto with = [](const std::string& stragglers) {
    return ConfigText{.parallel = R"({"data": 4})", .more = R"(, "cluster": {"stragglers": )" + stragglers + "}"};
  };
  const std::vector<Straggler> read =
      read_config(with(R"([{"ranks": [3, 1], "compute_factor": 1.25}, {"ranks": [0], "wire_factor": 2}])"))
          .cluster.stragglers;
  CHECK(read == std::vector<Straggler>{{{1, 3}, 1.25, 1}, {{0}, 1, 2}});
  // A rank as fast as the others is no straggler.
  CHECK(read_config(with(R"([{"ranks": [2], "compute_factor": 1, "wire_factor": 1}])")).cluster.stragglers.empty());
  CHECK(read_config(with("[]")).cluster.stragglers.empty());
  CHECK(config_error(with(R"([{"ranks": [4], "compute_factor": 2}])")) ==
        "c.json: /cluster/stragglers/0/ranks/0: must be a whole number from 0 to 3, is 4");
  CHECK(config_error(with(R"([{"ranks": [1], "compute_factor": 2}, {"ranks": [0, 1], "wire_factor": 2}])")) ==
        "c.json: /cluster/stragglers/1/ranks/1: names rank 1 a second time");
  CHECK(config_error(with(R"([{"ranks": [1], "compute_factor": 0.9}])")) ==
        "c.json: /cluster/stragglers/0/compute_factor: must be a number from 1 to 1000, is 0.9");
  CHECK(config_error(with(R"([{"ranks": [1]}])")) ==
        "c.json: /cluster/stragglers/0: needs \"compute_factor\" or \"wire_factor\"");
  CHECK(config_error(with(R"([{"ranks": [], "wire_factor": 2}])")) ==
        "c.json: /cluster/stragglers/0/ranks: must name at least one rank");
  CHECK(config_error(with(R"([{"ranks": [1], "compute_facter": 2}])")) ==
        "c.json: /cluster/stragglers/0/compute_facter: unknown key \"compute_facter\" (known: ranks, compute_factor, "
        "wire_factor; did you mean \"compute_factor\"?)");
  CHECK(config_error(with(R"({"ranks": [1]})")).starts_with("c.json: /cluster/stragglers: must be "));
}

TEST_CASE("config: data x tensor is expert, and tensor divides the heads") {
  CHECK(config_error(ConfigText{.parallel = R"({"data": 2, "tensor": 2, "expert": 8})"}) ==
        "c.json: /parallel/expert: must be data x tensor (2 x 2 = 4), is 8");
  CHECK(read_config(ConfigText{.parallel = R"({"data": 2, "tensor": 2})"}).parallel.expert == 4);
  CHECK(config_error(ConfigText{.model = "\"deepseek-v2-lite\"", .parallel = R"({"data": 1, "tensor": 32})"}) ==
        "c.json: /parallel/tensor: must divide the 16 attention heads, is 32");
  CHECK(config_error(ConfigText{.parallel = R"({"data": 0})"}) ==
        "c.json: /parallel/data: must be a whole number from 1 to 65536, is 0");
  CHECK(config_error(ConfigText{.parallel = R"({"dat": 2})"}) ==
        "c.json: /parallel/dat: unknown key \"dat\" (known: data, tensor, expert, redundant_experts; did you mean "
        "\"data\"?)");
}

TEST_CASE("config: a Hugging Face config in its place is named as what it is") {
  CHECK(config_error(R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 4096})") ==
        "c.json: is a Hugging Face config, of a model: name it in a config, as \"model\": {\"hf_config\": FILE}");
}

TEST_CASE("config: a misspelt key is reported as that, not as a missing one") {
  CHECK(
      config_error(R"({"modell": "deepseek-v3"})") ==
      "c.json: /modell: unknown key \"modell\" (known: $schema, model, parallel, workload, cluster, routing, overlap, "
      "execution, network, costs, emulate; did you mean \"model\"?)");
  CHECK(config_error(R"({"model": "deepseek-v3"})") == "c.json: /: missing key \"parallel\"");
  CHECK(config_error(R"([])") == "c.json: /: must be an object: the config, is []");
  CHECK(config_error(R"({"model": "deepseek-v3", "model": "deepseek-v2"})").starts_with("c.json: /model: "));
  CHECK(config_error(ConfigText{.more = R"(, "network": "port")"}) ==
        "c.json: /network: unknown network model \"port\" (known: ports, flows; did you mean \"ports\"?)");
  CHECK(config_error(ConfigText{.more = R"(, "emulate": true)"}) == "c.json: /emulate: must be a string, is true");
}

TEST_CASE("config: routing keys belong to their kind, and shares sum to one") {
  ConfigText parts;
  parts.more = R"(, "routing": {"kind": "zipf", "alpha": 1.5, "seed": 7, "per_layer": true})";
  CHECK(read_config(parts).routing.alpha == 1.5);
  CHECK(read_config(parts).routing.seed == 7);
  CHECK(read_config(parts).routing.per_layer);
  parts.more = R"(, "routing": {"kind": "zipf"})";
  CHECK(config_error(parts) == "c.json: /routing: missing key \"alpha\"");
  parts.more = R"(, "routing": {"alpha": 1})";
  CHECK(config_error(parts) == "c.json: /routing/alpha: unknown key \"alpha\" (known: kind, seed, per_layer)");
  parts.more = R"(, "routing": {"kind": "zipff", "alpha": 1})";
  CHECK(config_error(parts) ==
        "c.json: /routing/kind: unknown routing kind \"zipff\" (known: balanced, uniform, zipf, table; did you mean "
        "\"zipf\"?)");
  parts.more = R"(, "routing": {"kind": "table", "table": [[0.25, 0.5]]})";
  CHECK(config_error(parts) == "c.json: /routing/table/0: must have shares that sum to 1, they sum to 0.75");
  parts.more = R"(, "routing": {"kind": "table", "table": [[1]]})";
  CHECK(config_error(parts) == "c.json: /routing/table/0: must have a share for each of the 2 routed experts, has 1");
  parts.more = R"(, "routing": {"kind": "table", "table": [[0.5, 0.5], [0.25, 0.75]]})";
  CHECK(config_error(parts) ==
        "c.json: /routing/table: must have one row, or one for each of the 3 MoE layers or 4 layers, has 2");
}

TEST_CASE("config: a routing table of the MoE layers alone is spread over all layers") {
  // Layer 0 is dense: its row is never used and is even.
  ConfigText parts;
  parts.more = R"(, "routing": {"kind": "table", "table": [[0.5, 0.5], [0.25, 0.75], [1, 0]]})";
  const std::vector<std::vector<double>> want = {{0.5, 0.5}, {0.5, 0.5}, {0.25, 0.75}, {1, 0}};
  CHECK(read_config(parts).routing.table == want);
}

TEST_CASE("config: fixed costs are read to the nanosecond, unknown and negative ones refused") {
  ConfigText parts;
  parts.costs = R"({"source": "fixed", "A0_us": 40.0005, "D": {"wire_us": 60}, "C": {"copy_us": 5}, "FFN_us": 3})";
  const Config c = read_config(parts);
  CHECK(c.costs.fixed.a0 == Ns{40001});
  CHECK(c.costs.fixed.dispatch.wire == Ns{60000});
  CHECK(c.costs.fixed.combine.copy == Ns{5000});
  CHECK(c.costs.fixed.ffn == Ns{3000});
  CHECK(c.costs.fixed.mlp == Ns{0});
  CHECK(config_error(ConfigText{.costs = R"({"source": "fixed", "MLP_us": -1})"}) ==
        "c.json: /costs/MLP_us: must be a number from 0 to 1e+09, is -1");
  CHECK(config_error(ConfigText{.costs = R"({"source": "fixed", "D": {"copy_us": 1}})"})
            .starts_with("c.json: /costs/D/copy_us: unknown key \"copy_us\""));
  CHECK(config_error(ConfigText{.costs = R"({"source": "guess"})"}) ==
        "c.json: /costs/source: unknown source of costs \"guess\" (known: analytical, profile, fixed)");
  CHECK(config_error(ConfigText{.costs = R"({"source": "profile", "file": "no/such.json"})"}) ==
        "c.json: /costs/file: must be the path of a profile, there is no file no/such.json");
  const Config shipped = read_config(ConfigText{.model = "\"deepseek-v3\"", .costs = R"({"source": "profile"})"});
  CHECK(shipped.costs.source == CostSource::Profile);
  CHECK(shipped.profile_path().empty());
}

TEST_CASE("config: paths are relative to the config's folder") {
  const std::string folder = (std::filesystem::temp_directory_path() / "dbo-config-test").string();
  make_folder(folder + "/parts");
  write_file(folder + "/parts/steps.jsonl",
             "{\"ranks\": [{\"requests\": [{\"query\": 1, \"seq\": 8}], \"repeat\": 2}]}\n\n"
             "{\"ranks\": [{\"requests\": []}, {\"requests\": []}], \"draft_tokens\": 1}\n");
  write_file(folder + "/profile.json", "{}");
  write_file(folder + "/config.json", ConfigText{.model = "\"deepseek-v2-lite\"",
                                                 .workload = R"({"steps_file": "parts/steps.jsonl"})",
                                                 .costs = R"({"source": "profile", "file": "profile.json"})"}
                                          .text());
  const Config c = load_config(folder + "/config.json");
  CHECK(c.workload.sequence);
  REQUIRE(c.workload.steps.size() == 2);
  CHECK(c.workload.steps[0].ranks[1].requests[0].seq == 8);
  CHECK(c.workload.steps[1].draft_tokens == 1);
  CHECK(c.costs.profile == "profile.json");
  CHECK(c.profile_path() == folder + "/profile.json");

  // An error in a line names file and line.
  write_file(folder + "/parts/steps.jsonl", "{\"ranks\": []}\n");
  try {
    load_config(folder + "/config.json");
    FAIL("no error");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()) == folder +
                                           "/parts/steps.jsonl:1: /ranks: must list the 2 ranks of "
                                           "/parallel/data, repeats counted, lists 0");
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("config: a Hugging Face model is named as written, wherever its file lies") {
  const std::string folder = (std::filesystem::temp_directory_path() / "dbo-config-hf").string();
  make_folder(folder);
  write_file(folder + "/hf.json", R"({"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4,
    "num_experts_per_tok": 2, "intermediate_size": 32})");
  write_file(folder + "/config.json", ConfigText{.model = R"({"hf_config": "hf.json"})"}.text());
  CHECK(load_config(folder + "/config.json").model.name == "hf.json");
  std::filesystem::remove_all(folder);
}
