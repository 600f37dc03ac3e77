#include <doctest/doctest.h>

#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"

using namespace dbo;

namespace {

/// The text as a file of its own, removed with the object.
struct TempFile {
  std::string path;
  explicit TempFile(std::string_view text) {
    static int counter = 0;
    path = (std::filesystem::temp_directory_path() / ("dbo_hf_test_" + std::to_string(counter++) + ".json")).string();
    write_file(path, text);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::filesystem::remove(path); }
};

ModelShape read(std::string_view text) {
  const TempFile file(text);
  ModelShape shape = model_from_hf(file.path);
  shape.name.clear();
  return shape;
}

/// A preset without its name, to compare with what a file of the same model says.
ModelShape preset(std::string_view name) {
  ModelShape shape = model_preset(name);
  shape.name.clear();
  return shape;
}

/// The message without the file's name.
std::string error_of(std::string_view text) {
  const TempFile file(text);
  try {
    model_from_hf(file.path);
  } catch (const InputError& error) {
    return error.pointer() + ": " + error.message();
  }
  return "no error";
}

constexpr std::string_view kDeepSeekV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
  "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "weight_block_size": [128, 128]},
  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280})";

}  // namespace

TEST_CASE("hf: an MLA file gives the preset of the same model") {
  CHECK(read(kDeepSeekV3) == preset("deepseek-v3"));
}

TEST_CASE("hf: DeepSeek-V2-Lite has no low-rank q and picks greedily") {
  CHECK(read(R"({"model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
    "v_head_dim": 128, "vocab_size": 102400})") == preset("deepseek-v2-lite"));
}

TEST_CASE("hf: the sparse index of deepseek_v32 is read") {
  std::string text(kDeepSeekV3);
  text.replace(text.find("deepseek_v3\""), 12, "deepseek_v32\"");
  text.insert(1, R"("index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, )");
  CHECK(read(text) == preset("deepseek-v3.2"));
}

TEST_CASE("hf: kimi_k2 has one group") {
  CHECK(read(R"({"model_type": "kimi_k2", "first_k_dense_replace": 1, "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8"}, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
    "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 163840})") == preset("kimi-k2"));
}

TEST_CASE("hf: qwen3_moe keeps a dense width that no layer uses out of the shape") {
  CHECK(read(R"({"model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 151936})") == preset("qwen3-235b-a22b"));
}

TEST_CASE("hf: glm4_moe") {
  CHECK(read(R"({"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 3, "head_dim": 128,
    "hidden_size": 5120, "intermediate_size": 12288, "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 160, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 92,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5, "topk_group": 1,
    "torch_dtype": "bfloat16", "use_qk_norm": true, "vocab_size": 151552})") == preset("glm-4.5"));
}

TEST_CASE("hf: gpt_oss has fp4 experts and a window on alternate layers") {
  std::string types;
  for (int i = 0; i < 36; ++i)
    types += std::string(i > 0 ? ", " : "") + (i % 2 == 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  const std::string head = R"({"model_type": "gpt_oss", "attention_bias": true, "head_dim": 64, "hidden_size": 2880,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"}, "sliding_window": 128, "vocab_size": 201088)";
  CHECK(read(head + ", \"layer_types\": [" + types + "]}") == preset("gpt-oss-120b"));
  CHECK(read(head + "}") == preset("gpt-oss-120b"));
  CHECK(error_of(head + R"(, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]})") ==
        "/layer_types: is not understood: layers with full attention must be the last of each group of layers, "
        "layer 1 is not");
}

TEST_CASE("hf: mixtral derives the head size") {
  CHECK(read(R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "sliding_window": null, "torch_dtype": "bfloat16",
    "vocab_size": 32000})") == preset("mixtral-8x7b"));
}

TEST_CASE("hf: llama4 keeps its language model in text_config") {
  CHECK(read(R"({"model_type": "llama4", "text_config": {"attention_bias": false, "attention_chunk_size": 8192,
    "head_dim": 128, "hidden_size": 5120, "interleave_moe_layer_step": 2, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576, "model_type": "llama4_text",
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 128, "torch_dtype": "bfloat16", "use_qk_norm": false, "vocab_size": 202048},
    "torch_dtype": "bfloat16"})") == preset("llama-4-maverick"));
}

TEST_CASE("hf: minimax_m2") {
  CHECK(read(R"({"model_type": "minimax_m2", "attn_type_list": [1, 1], "head_dim": 128, "hidden_size": 3072,
    "intermediate_size": 1536, "max_position_embeddings": 196608, "mtp_transformer_layers": 1,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
    "num_local_experts": 256, "num_mtp_modules": 3, "quantization_config": {"quant_method": "fp8"},
    "scoring_func": "sigmoid", "shared_intermediate_size": 0, "tie_word_embeddings": false, "use_qk_norm": true,
    "vocab_size": 200064})") == preset("minimax-m2"));
}

TEST_CASE("hf: what is not understood is an error that says so") {
  CHECK(error_of(R"({"model_type": "qwen3_mo"})")
            .starts_with("/model_type: unknown model_type \"qwen3_mo\" (known: deepseek_v2, "));
  CHECK(error_of(R"({"model_type": "mixtral"})") == "/: missing key \"num_hidden_layers\"");
  CHECK(error_of("[1]") == "/: must be an object: a Hugging Face config.json, is [1]");
  std::string text(kDeepSeekV3);
  text.replace(text.find("\"fp8\""), 5, "\"awq\"");
  CHECK(error_of(text).starts_with("/quantization_config/quant_method: unknown quantisation \"awq\" (known: fp8, "));
  text = kDeepSeekV3;
  text.replace(text.find("\"moe_layer_freq\": 1"), 19, "\"moe_layer_freq\": 2");
  CHECK(error_of(text) == "/moe_layer_freq: is not understood: past the dense layers every layer must be MoE (1)");
  text = kDeepSeekV3;
  text.replace(text.find("\"hidden_size\": 7168"), 19, "\"hidden_size\": -168");
  CHECK(error_of(text) == "/hidden_size: must be a whole number from 1 to 16777216, is -168");
}

TEST_CASE("hf: a config finds the file beside itself and may put keys over it") {
  const TempFile file(kDeepSeekV3);
  const std::filesystem::path path(file.path);
  const std::string config = R"({"hf_config": ")" + path.filename().string() + R"(", "layers": 5})";
  const ModelShape shape = model_from_object(
      JsonRef(json_document(std::string_view(config), (path.parent_path() / "config.json").string())));
  CHECK(shape.layers == 5);
  CHECK(shape.moe.routed_experts == 256);
}
