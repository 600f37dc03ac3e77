#include "sim/model/presets.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"

using namespace dbo;

namespace {

JsonRef object(std::string_view text) {
  return JsonRef(json_document(text, "m.json"));
}

ModelShape from_text(std::string_view text) {
  return model_from_object(object(text));
}

std::string error_of(std::string_view text) {
  try {
    from_text(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("presets: every embedded file reads, and the names are sorted") {
  CHECK(model_names() == std::vector<std::string_view>{"deepseek-r1", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3",
                                                       "deepseek-v3.2", "glm-4.5", "glm-4.6", "gpt-oss-120b", "kimi-k2",
                                                       "llama-4-maverick", "minimax-m2", "mixtral-8x7b",
                                                       "qwen3-235b-a22b", "qwen3-30b-a3b"});
  for (const std::string_view name : model_names()) {
    const ModelShape shape = model_preset(name);
    CHECK(shape.name == name);
    CHECK(shape.has_dims());
    CHECK(shape.moe_layers() > 0);
  }
  CHECK(gpu_names() == std::vector<std::string_view>{"a100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "h100-sxm",
                                                     "h20", "h200-sxm", "h800-sxm", "mi300x", "mi355x"});
  for (const std::string_view name : gpu_names()) {
    const GpuSpec gpu = gpu_preset(name);
    CHECK(gpu.name == name);
    CHECK(gpu.sms > 0);
    CHECK_FALSE(gpu.source.empty());
  }
  CHECK(fabric_names() == std::vector<std::string_view>{"cx7-400g", "nvl72"});
}

TEST_CASE("presets: DeepSeek-V3 has its published dimensions") {
  const ModelShape v3 = model_preset("deepseek-v3");
  CHECK(v3.layers == 61);
  CHECK(v3.dense_layers == 3);
  CHECK(v3.moe_layers() == 58);
  CHECK(v3.hidden == 7168);
  CHECK(v3.attention.kind == AttentionKind::Mla);
  CHECK(v3.attention.heads == 128);
  CHECK(v3.attention.q_lora_rank == 1536);
  CHECK(v3.moe.routed_experts == 256);
  CHECK(v3.moe.top_k == 8);
  CHECK(v3.moe.groups == 8);
  CHECK(v3.moe.group_top_k == 4);
  CHECK(v3.moe.shared_intermediate == 2048);
  CHECK(v3.has_shared());
  CHECK(v3.dispatch == Precision::Fp8);
  CHECK(v3.combine == Precision::Bf16);
  CHECK(model_preset("deepseek-v3.2").attention.index_top_k == 2048);
}

TEST_CASE("presets: layers with a window and MoE layers follow their period") {
  const ModelShape gpt = model_preset("gpt-oss-120b");
  CHECK(gpt.attention.has_window(0));
  CHECK_FALSE(gpt.attention.has_window(1));
  CHECK(gpt.expert_weights == Precision::Fp4);
  CHECK(gpt.weights == Precision::Bf16);
  const ModelShape llama = model_preset("llama-4-maverick");
  CHECK(llama.moe_layers() == 24);
  CHECK_FALSE(llama.is_moe_layer(0));
  CHECK(llama.is_moe_layer(1));
  CHECK(llama.attention.has_window(2));
  CHECK_FALSE(llama.attention.has_window(3));
  CHECK_FALSE(model_preset("deepseek-v3").attention.has_window(0));
}

TEST_CASE("presets: GPU rates are bytes and flops per second") {
  const GpuSpec h200 = gpu_preset("h200-sxm");
  CHECK(h200.sms == 132);
  CHECK(h200.bf16_flops == 989e12);
  CHECK(h200.hbm_bytes_per_s == 4800e9);
  CHECK(h200.hbm_bytes == 141LL << 30);
  CHECK(h200.l2_bytes == 62914560);
  CHECK(h200.peer_link_bytes_per_s == 450e9);
  const GpuSpec mi300x = gpu_preset("mi300x");
  CHECK(mi300x.amd);
  CHECK(mi300x.link_bytes_per_s == 448e9);
  CHECK(mi300x.peer_link_bytes_per_s == 64e9);
  CHECK(gpu_preset("a100-sxm").green_context_minimum == 4);
  const FabricSpec nvl72 = fabric_preset("nvl72");
  CHECK(nvl72.link_domain == 72);
  CHECK(nvl72.nic_bytes_per_s == 0);
  CHECK(fabric_preset("cx7-400g").nic_bytes_per_s == 50e9);
}

TEST_CASE("presets: an unknown name lists the known ones and the nearest") {
  CHECK_THROWS_WITH_AS(gpu_preset("h20-sxm"),
                       "unknown gpu \"h20-sxm\" (known: a100-sxm, b200-sxm, b300-sxm, gb200-nvl72, h100-sxm, h20, "
                       "h200-sxm, h800-sxm, mi300x, mi355x; did you mean \"h200-sxm\"?)",
                       InputError);
  CHECK_THROWS_AS(model_preset("deepseek-v33"), InputError);
  CHECK_THROWS_AS(fabric_preset("ib"), InputError);
}

TEST_CASE("model object: layer counts alone are a model for fixed costs") {
  const ModelShape shape = from_text(R"({"layers": 4, "dense_layers": 1})");
  CHECK(shape.layers == 4);
  CHECK(shape.moe_layers() == 3);
  CHECK(shape.has_shared());
  CHECK_FALSE(shape.has_dims());
  CHECK(shape.moe.routed_experts == 0);
}

TEST_CASE("model object: keys over a preset replace only what they name") {
  const ModelShape shape =
      from_text(R"({"preset": "deepseek-v3", "layers": 4, "moe": {"top_k": 4}, "precision": {"dispatch": "bf16"}})");
  ModelShape expected = model_preset("deepseek-v3");
  expected.layers = 4;
  expected.moe.top_k = 4;
  expected.dispatch = Precision::Bf16;
  CHECK(shape == expected);
  CHECK(from_text("\"kimi-k2\"") == model_preset("kimi-k2"));
}

TEST_CASE("model object: \"weights\" alone is the experts' precision too") {
  CHECK(from_text(R"({"preset": "gpt-oss-120b", "precision": {"weights": "fp8"}})").expert_weights == Precision::Fp8);
  CHECK(from_text(R"({"preset": "gpt-oss-120b", "precision": {"kv_cache": "fp8"}})").expert_weights == Precision::Fp4);
}

TEST_CASE("model object: a whole shape needs every dimension that costs time") {
  constexpr std::string_view whole = R"({"name": "tiny", "layers": 2, "hidden": 256,
    "attention": {"kind": "gqa", "heads": 8, "kv_heads": 2, "head_dim": 32},
    "moe": {"routed_experts": 16, "top_k": 2, "intermediate": 128, "shared_experts": 2}, "vocab": 1000})";
  const ModelShape shape = from_text(whole);
  CHECK(shape.name == "tiny");
  CHECK(shape.moe.shared_intermediate == 256);
  CHECK(shape.weights == Precision::Bf16);
  CHECK(error_of(R"({"layers": 2, "hidden": 256})") == "m.json: /: missing key \"attention\"");
  CHECK(error_of(R"({"hidden": 256})") == "m.json: /: missing key \"layers\"");
}

TEST_CASE("presets: a model's name on Hugging Face tells its preset, and other models of the family have none") {
  CHECK(preset_of_model("deepseek-ai/DeepSeek-V3-0324") == "deepseek-v3");
  CHECK(preset_of_model("deepseek-ai/DeepSeek-V3.1") == "deepseek-v3");
  CHECK(preset_of_model("deepseek-ai/DeepSeek-V3.2-Exp") == "deepseek-v3.2");
  CHECK(preset_of_model("deepseek-ai/DeepSeek-V2-Lite-Chat") == "deepseek-v2-lite");
  CHECK(preset_of_model("moonshotai/Kimi-K2-Instruct") == "kimi-k2");
  CHECK(!preset_of_model("deepseek-ai/DeepSeek-R1-Distill-Llama-70B"));
  CHECK(!preset_of_model("zai-org/GLM-4.5-Air"));
  // Not taken for it without being asked: what the checkpoint is quantised to may differ.
  CHECK(error_of(R"({"preset": "deepseek-ai/DeepSeek-V3-0324"})").ends_with("did you mean \"deepseek-v3\"?)"));
}

TEST_CASE("model object: errors name the place and what is allowed") {
  CHECK(error_of(R"({"preset": "deepseek-v33"})").starts_with("m.json: /preset: unknown model \"deepseek-v33\""));
  CHECK(error_of(R"({"preset": "kimi-k2", "lyers": 4})").starts_with("m.json: /lyers: unknown key \"lyers\""));
  CHECK(error_of(R"({"layers": 2.5})") == "m.json: /layers: must be a whole number from 1 to 65536, is 2.5");
  CHECK(error_of(R"({"layers": 2, "dense_layers": 3})") == "m.json: /dense_layers: must be at most the 2 layers, is 3");
  CHECK(error_of(R"({"preset": "deepseek-v3", "layers": 2})") ==
        "m.json: /: \"dense_layers\" must be at most the 2 layers, is 3");
  CHECK(error_of(R"({"preset": "deepseek-v3", "moe": {"top_k": 300}})") ==
        "m.json: /moe/top_k: must be at most the 256 routed experts, is 300");
  CHECK(error_of(R"({"preset": "deepseek-v3", "moe": {"groups": 7}})") ==
        "m.json: /moe/groups: must divide the 256 routed experts, is 7");
  CHECK(error_of(R"({"preset": "qwen3-30b-a3b", "attention": {"kv_heads": 5}})") ==
        "m.json: /attention/kv_heads: must divide the 32 heads, is 5");
  CHECK(error_of(R"({"preset": "kimi-k2", "precision": {"weights": "fp7"}})")
            .starts_with("m.json: /precision/weights: unknown precision \"fp7\" (known: fp4, fp8, bf16, fp32"));
  CHECK(error_of(R"({"preset": "kimi-k2", "hf_config": "x"})").starts_with("m.json: /hf_config: "));
  CHECK(error_of("[]") == "m.json: /: must be the name of a model or an object, is []");
}

TEST_CASE("gpu and fabric objects: a preset with keys over it, or all keys") {
  const GpuSpec cut = gpu_from_object(object(R"({"preset": "h200-sxm", "sms": 100})"));
  CHECK(cut.sms == 100);
  CHECK(cut.hbm_bytes_per_s == 4800e9);
  const GpuSpec own = gpu_from_object(
      object(R"({"sms": 10, "bf16_tflops": 1, "hbm_gb_per_s": 100, "hbm_gib": 1, "link_gb_per_s": 20})"));
  CHECK(own.peer_link_bytes_per_s == 20e9);
  CHECK(own.fp8_flops == 0);
  CHECK_THROWS_WITH_AS(gpu_from_object(object(R"({"sms": 10})")), "m.json: /: missing key \"bf16_tflops\"", InputError);
  const FabricSpec fabric = fabric_from_object(object(R"({"preset": "cx7-400g", "nic_gb_per_s": 25})"));
  CHECK(fabric.nic_bytes_per_s == 25e9);
}
