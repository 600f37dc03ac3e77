#include "sim/search/from_serve.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/search/serving_flags.h"

using namespace dbo;

namespace {

Config config_of(const FromServe& r) {
  return config_from_json(JsonRef(wrap_json(r.config, "test.json")));
}

Config config_of(const std::string& line, const ServeHints& hints = {}) {
  return config_of(from_serve(line, hints));
}

bool says(const std::vector<std::string>& items, const std::string& words) {
  return std::any_of(items.begin(), items.end(),
                     [&](const std::string& item) { return item.find(words) != std::string::npos; });
}

const std::string kVllm = "vllm serve deepseek-ai/DeepSeek-V3-0324 --data-parallel-size 16 --enable-expert-parallel ";
const std::string kLow = kVllm + "--enable-dbo --all2all-backend deepep_low_latency ";
const std::string kHigh = kVllm + "--enable-dbo --all2all-backend deepep_high_throughput ";

}  // namespace

TEST_CASE("serve_command: words are split as a shell does") {
  ServeCommand command(
      "A=1 B='two words' vllm serve \"my model\" \\\n --enable_dbo --compilation-config "
      "'{\"cudagraph_mode\": \"FULL\", \"n\": [1, 2]}' --dbo_decode_token_threshold=64 -cc.extra 7 -tp 2");
  CHECK(command.server() == Server::Vllm);
  CHECK(command.model() == "my model");
  CHECK(command.environment("A") == "1");
  CHECK(command.environment("B") == "two words");
  CHECK(!command.environment("C"));
  CHECK(command.has("enable-dbo"));
  CHECK(command.count({"dbo-decode-token-threshold"}) == 64);
  const Json object = command.object({"compilation-config", "cc"});
  CHECK(object.find("cudagraph_mode")->as_string() == "FULL");
  CHECK(object.find("n")->items().size() == 2);
  CHECK(object.find("extra")->as_int() == 7);
  CHECK(command.unread({"--enable-dbo, --dbo-decode-token-threshold", "A and --cc"}) ==
        std::vector<std::string>{"B", "-tp"});
  CHECK_THROWS_WITH_AS(ServeCommand("vllm serve 'x"), "the command has a quote ' that is not closed", InputError);
  CHECK_THROWS_AS(ServeCommand("python3 train.py"), InputError);
  CHECK_THROWS_WITH_AS(ServeCommand("vllm serve m -dp x").count({"dp"}), "-dp: \"x\" is no whole number", InputError);
}

TEST_CASE("serve_command: the last option counts, and a model may follow a switch") {
  ServeCommand command("vllm serve --enable-dbo some/model --enable-eplb --no-enable-eplb --dp 2 --dp 4");
  CHECK(command.model() == "some/model");
  CHECK(command.count({"dp", "data-parallel-size"}) == 4);
  CHECK(!command.has("enable-eplb"));
}

TEST_CASE("serve_command: an option takes as many words as its server has it take") {
  for (const char* line : {"vllm serve --port 8000 some/model --dp 4", "vllm serve --enabel-dbo some/model --dp 4",
                           "vllm serve --served-model-name a b --port=1 some/model --dp 4",
                           "vllm serve --dp 4 --some-new-option 7 some/model"}) {
    CAPTURE(line);
    ServeCommand command(line);
    CHECK(command.model() == "some/model");
    CHECK(command.count({"dp"}) == 4);
  }
  // The same name is a switch of vLLM's and takes a number in SGLang.
  ServeCommand vllm("vllm serve -ep some/model"), sglang("sglang serve --ep 16 --model-path some/model");
  CHECK(vllm.model() == "some/model");
  CHECK(sglang.model().empty());
  CHECK(sglang.count({"ep"}) == 16);
}

TEST_CASE("serve_command: what is not known but near an option that is says so") {
  const ServeCommand command("vllm serve m --enabel-dbo --quite-another-thing 3 --seed 1");
  CHECK(command.refused() == std::vector<std::string>{"--enabel-dbo is no option (did you mean --enable-dbo?)"});
  CHECK(command.unread({"--enabel-dbo"}) ==
        std::vector<std::string>{"--quite-another-thing (not in the version read)", "--seed"});
}

TEST_CASE("serve_command: an option is taken by a beginning that it alone has, and no other way than it is written") {
  struct Case {
    std::string line, words;
  };
  for (const Case& c :
       {Case{"vllm serve m --tp 2", "--tp is written -tp"}, Case{"vllm serve m -enable-dbo", "is written --enable-dbo"},
        Case{"vllm serve m --max-num-q 3", "--max-num-q may be --max-num-queued-reqs or --max-num-queued-tokens"},
        Case{"vllm serve m --disable", "is the beginning of"},
        Case{"vllm serve m --enable-dbo=false", "--enable-dbo takes no value, and is given \"false\""},
        Case{"vllm serve m --enable-dbo true", "\"true\" belongs to no option"},
        Case{"vllm serve m --no-headless", "--no-headless: vLLM's --headless has no --no-"},
        Case{"sglang serve m --pp 2", "--pp may be --pp-size, --pp-max-micro-batch-size or --pp-async-batch-depth"},
        Case{"sglang serve m --no-enable-two-batch-overlap", "has no --no-"}}) {
    CAPTURE(c.line);
    const ServeCommand command(c.line);
    REQUIRE(command.refused().size() == 1);
    CHECK(command.refused().front().find(c.words) != std::string::npos);
  }
  ServeCommand sglang("sglang serve m --tp 16 --dp 4 --enable-two --no-dllm-fdfo");
  CHECK(sglang.refused().empty());
  CHECK(sglang.count({"tp-size"}) == 16);
  CHECK(sglang.count({"dp-size"}) == 4);
  CHECK(sglang.has("enable-two-batch-overlap"));
  const ServeCommand vllm("vllm serve m -tp 2 -ep --no-enable-eplb -O3 --cuda-graph-sizes 8 16 -dpe");
  CHECK(vllm.refused().empty());
  REQUIRE(vllm.of_other_versions().size() == 1);
  CHECK(vllm.of_other_versions().front() ==
        "a version that still has --cuda-graph-sizes: it is gone from vLLM since (--cudagraph-capture-sizes)");
}

TEST_CASE("serve_command: counts may have a unit") {
  const auto count = [](const std::string& text) {
    return ServeCommand("vllm serve m --max-model-len " + text).readable_count({"max-model-len"});
  };
  CHECK(count("4096") == 4096);
  CHECK(count("25.6k") == 25600);
  CHECK(count("32K") == 32768);
  CHECK(count("1m") == 1000000);
  CHECK(count("2G") == std::int64_t{2} << 30);
  for (const char* text : {"1.5K", "k", "12x", "1e3k", "9999T"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(count(text), InputError);
  }
}

TEST_CASE("serve_options: options are those of the files read, and none is listed twice") {
  for (const Server server : {Server::Vllm, Server::Sglang}) {
    std::vector<std::string_view> names = option_names(server);
    CHECK(names.size() > 250);
    for (const std::string_view name : names) {
      CAPTURE(std::string(name));
      CHECK(find_option(server, name));
      CHECK(!gone_option(server, name));
    }
    std::sort(names.begin(), names.end());
    CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  }
  // Checked by hand against the declarations: the same name, and what follows it.
  CHECK(find_option(Server::Vllm, "enable-dbo") == Takes::Nothing);
  CHECK(find_option(Server::Vllm, "no-enable-dbo") == Takes::Nothing);
  CHECK(!find_option(Server::Vllm, "no-headless"));
  CHECK(find_option(Server::Vllm, "ubatch-size") == Takes::Value);
  CHECK(find_option(Server::Vllm, "allowed-origins") == Takes::Value);  // JSON in one word
  CHECK(find_option(Server::Vllm, "api-key") == Takes::Values);
  CHECK(find_option(Server::Vllm, "show-hidden-metrics-for-version") == Takes::Value);
  CHECK(find_option(Server::Sglang, "ep") == Takes::Value);
  CHECK(find_option(Server::Sglang, "tbo-token-distribution-threshold") == Takes::Value);
  CHECK(find_option(Server::Sglang, "cuda-graph-bs-decode") == Takes::Values);
  CHECK(!find_option(Server::Sglang, "no-enable-two-batch-overlap"));
  CHECK(gone_option(Server::Sglang, "enable-deepep-moe") == "--moe-a2a-backend deepep");
}

TEST_CASE("from_serve: a quantised checkpoint or cache sets the precision, and says so") {
  const std::string rest = " -dp 16 -ep";
  const auto model = [&](const std::string& line) { return config_of(line + rest).model; };
  const std::string plain = "vllm serve Qwen/Qwen3-235B-A22B";
  CHECK(model(plain).weights == Precision::Bf16);
  CHECK(model(plain).dispatch == Precision::Bf16);
  for (const std::string& line :
       std::vector<std::string>{plain + "-FP8", plain + "-Instruct-2507-FP8", plain + " --quantization fp8",
                                plain + " -q modelopt", "vllm serve --quantization=fp8 Qwen/Qwen3-235B-A22B"}) {
    CAPTURE(line);
    CHECK(model(line).weights == Precision::Fp8);
    CHECK(model(line).expert_weights == Precision::Fp8);
    CHECK(model(line).dispatch == Precision::Fp8);
    CHECK(model(line).kv_cache == Precision::Bf16);
    CHECK(model(line).name == "qwen3-235b-a22b");
    CHECK(says(from_serve(line + rest, {}).took, "fp8 weights"));
  }
  CHECK(model(plain + "-NVFP4").expert_weights == Precision::Fp4);
  CHECK(model(plain + "-NVFP4").weights == Precision::Bf16);
  CHECK(model(plain + " --kv-cache-dtype fp8_e4m3").kv_cache == Precision::Fp8);
  CHECK(model(plain + " --kv-cache-dtype fp8_e4m3").weights == Precision::Bf16);
  CHECK(model("vllm serve deepseek-ai/DeepSeek-V3-bf16").weights == Precision::Bf16);
  CHECK(says(from_serve(plain + "-AWQ" + rest, {}).assumed, "awq of"));
  CHECK(says(from_serve(plain + " -q awq" + rest, {}).assumed, "--quantization awq is not modelled"));
  // A preset that has the precision already stays a name.
  CHECK(
      from_serve("vllm serve deepseek-ai/DeepSeek-V3 --quantization fp8" + rest, {}).config.find("model")->is_string());
}

TEST_CASE("from_serve: every option and variable is taken, assumed about, refused or passed over") {
  const std::string vllm =
      "VLLM_USE_DEEP_GEMM=1 VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve --port 8000 deepseek-ai/DeepSeek-V3 "
      "--data-parallel-size 16 --tensor-parallel-size 1 --data-parallel-size-local 8 --enable-expert-parallel "
      "--enable-dbo --dbo-decode-token-threshold 16 --max-num-seqs 64 --max-model-len 32K --kv-cache-dtype fp8 "
      "--max-num-batched-tokens 512 --gpu-memory-utilization 0.9 --quantization fp8 --enable-eplb "
      "--num-redundant-experts 32 --speculative-config.num_speculative_tokens 1 --trust-remote-code --enabel-foo";
  const std::string sglang =
      "SGLANG_ENABLE_JIT_DEEPGEMM=1 python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 16 "
      "--dp-size 16 --ep 16 --nnodes 2 --node-rank 0 --enable-dp-attention --enable-two-batch-overlap "
      "--moe-a2a-backend deepep --deepep-mode low_latency --context-length 65536 --max-running-requests 2048 "
      "--cuda-graph-bs 64 128 --chunked-prefill-size 8192 --ep-num-redundant-experts 32 --mem-fraction-static 0.8 "
      "--speculative-algorithm EAGLE --speculative-num-draft-tokens 2 --kv-cache-dtype fp8_e4m3 "
      "--disaggregation-mode decode --tbo-token-distribution-threshold 0.4";
  for (const std::string& line : {vllm, vllm + " --enforce-eager", vllm + " --all2all-backend deepep_high_throughput",
                                  sglang, sglang + " --disaggregation-mode prefill --deepep-mode normal"}) {
    CAPTURE(line);
    const FromServe r = from_serve(line, {});
    std::vector<std::string> all = r.took;
    for (const auto* list : {&r.assumed, &r.refused, &r.unread}) all.insert(all.end(), list->begin(), list->end());
    for (std::size_t begin = 0; begin < line.size();) {
      const std::size_t end = std::min(line.find(' ', begin), line.size());
      std::string word = line.substr(begin, end - begin);
      begin = end + 1;
      const bool variable = word.find("=") != std::string::npos;
      if (!variable && !word.starts_with("--")) continue;
      word = word.substr(0, word.find_first_of("=."));
      if (word == "--ep") word = "--ep-size";
      CAPTURE(word);
      CHECK((word == "--model-path" || says(all, word)));
    }
    CHECK(says(r.took, "32768 tokens (--max-model-len)") == (line.find("vllm") != std::string::npos));
    CHECK(!says(r.unread, "--kv-cache-dtype"));
  }
  CHECK(says(from_serve(sglang, {}).took, "2 nodes (--nnodes)"));
  CHECK(says(from_serve(sglang, {}).took, "65536 tokens (--context-length)"));
}

TEST_CASE("from_serve: a model that no preset fits is refused, and --model names another") {
  CHECK_THROWS_AS(from_serve("vllm serve nosuch/model --enable-dbo", {}), InputError);
  ServeHints hints;
  hints.model = "kimi-k2";
  CHECK(config_of("vllm serve ./weights -dp 16 -ep", hints).model.name == "kimi-k2");
}

TEST_CASE("from_serve: vLLM's options become a config") {
  const FromServe r = from_serve(
      "VLLM_DBO_COMM_SMS=16 " + kHigh +
          "-tp 2 --data-parallel-size-local 4 --dbo-prefill-token-threshold 1024 --max-num-batched-tokens 16384 "
          "--max-model-len 2048 --enable-eplb --eplb-config '{\"num_redundant_experts\": 32}' --seed 1",
      {});
  CHECK(r.refused.empty());
  CHECK(r.unread == std::vector<std::string>{"--seed"});
  const Config c = config_of(r);
  CHECK(c.model.name == "deepseek-v3");
  CHECK(c.parallel == ParallelConfig{16, 32, 2, 32});
  CHECK(c.cluster.gpus_per_node == 8);
  CHECK(c.cluster.nodes == 4);
  CHECK(c.overlap.schedule == "vllm-ht");
  CHECK(c.overlap.transport == Transport::Ht);
  CHECK(c.overlap.ubatches == 2);
  CHECK(c.overlap.comm_sms == 16);
  CHECK(c.overlap.decode_token_threshold == 32);
  CHECK(c.overlap.prefill_token_threshold == 1024);
  CHECK(c.workload.uniform->phase == Phase::Prefill);
  CHECK(c.workload.uniform->prefill_tokens == 16384);
  CHECK(c.workload.uniform->context_tokens == 2048);
  CHECK(c.execution.mode == Execution::Eager);  // high throughput has no graphs
}

TEST_CASE("from_serve: low latency sets no SMs aside, and its graphs are the server's") {
  const Config c =
      config_of("VLLM_DBO_COMM_SMS=24 " + kLow + "--max-num-seqs 8 --speculative-config.num_speculative_tokens 1");
  CHECK(c.overlap.schedule == "vllm-ll");
  CHECK(c.workload.uniform->decode_tokens == 16);
  CHECK(c.workload.uniform->query_tokens == 2);
  // 1, 2, 4, then every 8 up to 2 x 8 requests x 2 tokens.
  CHECK(*c.execution.graph_sizes == std::vector<std::int64_t>{1, 2, 4, 8, 16, 24, 32});
  CHECK(config_of(kLow + "--enforce-eager").execution.mode == Execution::Eager);
  CHECK(config_of(kLow + "-O.cudagraph_mode PIECEWISE").execution.mode == Execution::Eager);
  CHECK(config_of(kLow + "-cc.cudagraph_mode full").execution.mode == Execution::Graph);
  CHECK(config_of(kLow + "-cc.cudagraph_mode FULL --enforce-eager").execution.mode == Execution::Eager);
  CHECK(config_of(kLow + "-O3").execution.mode == Execution::Graph);
  CHECK(config_of(kLow + "-O0").execution.mode == Execution::Eager);
  CHECK(says(from_serve(kLow + "-O7", {}).refused, "from 0 to 3"));
  CHECK(*config_of(kLow + "--cudagraph-capture-sizes 64 32").execution.graph_sizes ==
        std::vector<std::int64_t>{32, 64});
  CHECK(config_of("VLLM_USE_V2_MODEL_RUNNER=1 " + kLow).overlap.coordination == Coordination::Mrv2);
}

TEST_CASE("from_serve: what vLLM refuses is named, and a config of the nearest command is made all the same") {
  struct Case {
    std::string line, words;
  };
  for (const Case& c : {Case{kVllm + "--enable-dbo", "ubatches need deepep_low_latency"},
                        Case{kVllm + "--enable-dbo --all2all-backend pplx",
                             "all-to-all backend pplx (--all2all-backend), which falls back to"},
                        Case{kVllm + "--enable-dbo --all2all-backend deepep", "all-to-all backend \"deepep\""},
                        Case{kLow + "--dbo-decode-token-threshold 1", "is below the 2 ubatches"},
                        Case{"VLLM_DBO_COMM_SMS=19 " + kHigh, "is odd"},
                        Case{"VLLM_DBO_COMM_SMS=132 " + kHigh, "leaves none of the 132 SMs"},
                        Case{kLow + "--num-redundant-experts 16", "without --enable-eplb"},
                        Case{kLow + "--data-parallel-size-local 32", "is more than --data-parallel-size"},
                        Case{kLow + "--data-parallel-rank 16", "is not below --data-parallel-size 16"},
                        Case{kLow + "-pcp 2", "with data-parallel ranks"},
                        Case{kLow + "-tp 2 -dcp 4", "is no multiple of --decode-context-parallel-size"},
                        Case{kLow + "--enabel-dbo", "did you mean --enable-dbo?"},
                        Case{kVllm + "--ubatch-size 3 --all2all-backend deepep_low_latency", "keeps 2 handles"}}) {
    CAPTURE(c.line);
    const FromServe r = from_serve(c.line, {});
    CHECK(r.refused.size() == 1);
    CHECK(says(r.refused, c.words));
    CHECK(config_of(r).overlap.ubatches == 2);
  }
  CHECK(from_serve(kLow, {}).refused.empty());
  CHECK(from_serve(kVllm, {}).refused.empty());  // nothing is split, so any all-to-all will do
  CHECK(config_of(kVllm).overlap.ubatches == 1);
}

TEST_CASE("from_serve: numbers that no server starts with are refused, also where they say nothing of a step") {
  const std::string sglang = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 16 ";
  const std::pair<std::string, const char*> nonsense[] = {
      {kLow + "--gpu-memory-utilization 17", "--gpu-memory-utilization 17 is not above 0 to 1"},
      {kLow + "--gpu-memory-utilization -1", "--gpu-memory-utilization -1 is not above 0 to 1"},
      {kLow + "--block-size 0", "--block-size 0 is not from 1 on"},
      {kLow + "--pipeline-parallel-size -2", "--pipeline-parallel-size -2 is not from 1 on"},
      {kLow + "--data-parallel-size-local -3", "--data-parallel-size-local -3 is not from 0 on"},
      {kLow + "--num-redundant-experts -3", "--num-redundant-experts -3 is not from 0 on"},
      {kLow + R"(--enable-eplb --eplb-config '{"num_redundant_experts": -3}')",
       "num_redundant_experts -3 of --eplb-config"},
      {kLow + R"(--speculative-config '{"num_speculative_tokens": -2}')",
       "num_speculative_tokens -2 of --speculative-config"},
      {kLow + "--port 70000", "--port 70000 is not from 0 to 65535"},
      {sglang + "--mem-fraction-static 1.5", "--mem-fraction-static 1.5 is not above 0 to 1"},
      {sglang + "--page-size -16", "--page-size -16 is not from 1 on"}};
  for (const auto& each : nonsense) {
    const FromServe r = from_serve(each.first, {});
    CAPTURE(std::string(each.second));
    CHECK(says(r.refused, each.second));
    config_of(r);  // of the nearest command
  }
  CHECK(from_serve(kLow + "--gpu-memory-utilization 0.9 --block-size 64 --port 8000 --seed -1", {}).refused.empty());
  CHECK_THROWS_AS(from_serve(kLow + "--block-size many", {}), InputError);
}

TEST_CASE("from_serve: SGLang's options become a config") {
  const std::string base =
      "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp-size 32 --dp-size 32 "
      "--enable-dp-attention --enable-two-batch-overlap --nnodes 4 ";
  const FromServe r = from_serve(base +
                                     "--moe-a2a-backend deepep --disaggregation-mode prefill --chunked-prefill-size "
                                     "131072 --ep-num-redundant-experts 32 --tbo-token-distribution-threshold 0.4 "
                                     "--deepep-config '{\"normal_dispatch\": {\"num_sms\": 24}}'",
                                 {});
  CHECK(r.refused.empty());
  const Config c = config_of(r);
  CHECK(c.parallel == ParallelConfig{32, 32, 1, 32});
  CHECK(c.cluster.nodes == 4);
  CHECK(c.overlap.schedule == "sglang-prefill");
  CHECK(c.overlap.transport == Transport::Ht);
  CHECK(c.overlap.coordination == Coordination::Sglang);
  CHECK(c.overlap.token_distribution_threshold == 0.4);
  CHECK(c.overlap.comm_sms == 24);
  CHECK(c.overlap.comm_sms_created == 24);
  CHECK(c.workload.uniform->prefill_tokens == 4096);  // 131072 over 32 ranks
  const Config decode = config_of(base + "--moe-a2a-backend deepep --max-running-requests 4096");
  CHECK(decode.overlap.schedule == "sglang-decode");
  CHECK(decode.workload.uniform->decode_tokens == 128);  // 4096 over 32 ranks
  // Ranks with attention of their own may split without an all-to-all, which is not modelled.
  CHECK(from_serve(base, {}).refused.empty());
  CHECK(says(from_serve(base, {}).assumed, "splitting over none's gather and scatter is not modelled"));
  const std::string apart = "sglang serve --model-path deepseek-v3 --tp 16 --enable-two-batch-overlap ";
  CHECK(says(from_serve(apart, {}).refused, "--moe-a2a-backend none (its default) and no --enable-dp-attention"));
  CHECK(says(from_serve(base + "--moe-a2a-backend deepep --tbo-token-distribution-threshold 0.8", {}).refused,
             "must be 0 to 0.5"));
  CHECK(says(from_serve(base + "--moe-a2a-backend depep", {}).refused, "did you mean \"deepep\"?"));
  CHECK(says(from_serve(base + "--moe-a2a-backend deepep_v2", {}).refused, "--moe-a2a-backend deepep_v2 with"));
  CHECK(says(from_serve(base + "--moe-a2a-backend deepep --moe-dense-tp-size 4", {}).refused, "it is 1 or"));
  CHECK(says(from_serve("sglang serve --model-path deepseek-v3 --tp 16 --dp 2 --nnodes 2", {}).refused,
             "without --enable-dp-attention"));
  // Each phase has graphs of its own, by three ways of saying so; splitting has none for prompts.
  const std::string graphs = base + "--moe-a2a-backend deepep --deepep-mode low_latency ";
  const auto mode = [&](const std::string& rest) { return config_of(graphs + rest).execution.mode; };
  CHECK(mode("") == Execution::Graph);
  CHECK(mode("--disable-decode-cuda-graph") == Execution::Eager);
  CHECK(mode("--disable-prefill-cuda-graph") == Execution::Graph);
  CHECK(mode("--disable-cuda-graph --cuda-graph-backend-decode full") == Execution::Graph);
  CHECK(mode("--cuda-graph-backend-decode full --cuda-graph-config '{\"decode\": {\"backend\": \"disabled\"}}'") ==
        Execution::Eager);
  CHECK(mode("--disaggregation-mode prefill") == Execution::Eager);
  CHECK(*config_of(graphs + "--cuda-graph-bs-decode 64 128").execution.graph_sizes ==
        std::vector<std::int64_t>{64, 128});
  // Attention is cut among the GPUs that do not have batches of their own.
  const Config cut = config_of("sglang serve --model-path deepseek-v3 --tp 16 --dp 4 --enable-dp-attention");
  CHECK(cut.parallel.data == 4);
  CHECK(cut.parallel.tensor == 4);
}

TEST_CASE("from_serve: reads back the flags that a sweep advises") {
  const Config config = config_of(kLow);
  Advice advice;
  advice.on = true;
  for (const bool high : {false, true}) {
    for (const char* server : {"vLLM", "SGLang"}) {
      CAPTURE(server);
      advice.server = server;
      const bool vllm = advice.server == "vLLM";
      TunePoint s;
      s.gpus = 16;
      s.tokens = 256;
      s.ubatches = 2;
      s.transport = high ? Transport::Ht : Transport::Ll;
      s.comm_sms = high ? 16 : 0;
      s.schedule = vllm ? (high ? "vllm-ht" : "vllm-ll") : (high ? "sglang-prefill" : "sglang-decode");
      advice.setting = s;
      advice.crossovers = {{Phase::Decode, 57, false, {}}, {Phase::Prefill, 300, false, {}}};
      ServeHints hints;
      hints.model = "deepseek-v3";
      const FromServe r = from_serve(serving_flags(config, advice).line(), hints);
      CHECK(r.refused.empty());
      CHECK(r.unread.empty());
      const Config again = config_of(r);
      CHECK(again.cluster.gpus() == 16);
      CHECK(again.overlap.schedule == s.schedule);
      CHECK(again.overlap.transport == s.transport);
      CHECK(again.overlap.ubatches == 2);
      if (high) CHECK(again.overlap.comm_sms == 16);
      if (vllm) CHECK(again.overlap.decode_token_threshold == 57);
      if (vllm) CHECK(again.overlap.prefill_token_threshold == 300);
    }
  }
}
