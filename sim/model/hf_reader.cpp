// Hugging Face config.json files of the MoE families we know. A file is read by its `model_type`: the same key means
// different things in different families (`intermediate_size` is an expert's width in gpt_oss, a dense layer's in
// glm4_moe).
#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/model/shape_check.h"

namespace dbo {
namespace {

constexpr std::int64_t kMaxDim = 1 << 24;

/// The keys of one object. Null counts as absent, as in these files it means "use the default".
class HfObject {
 public:
  explicit HfObject(JsonRef ref) : ref_(std::move(ref)) {
    if (!ref_.value().is_object()) ref_.fail_type("an object: a Hugging Face config.json");
  }

  const JsonRef& ref() const { return ref_; }

  std::optional<JsonRef> find(std::string_view key) const {
    const Json* value = ref_.value().find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return JsonRef(ref_, *value);
  }

  JsonRef require(std::string_view key) const {
    if (auto value = find(key)) return *value;
    ref_.fail("missing key \"" + std::string(key) + "\"");
  }

  int dim(std::string_view key) const { return static_cast<int>(require(key).integer(1, kMaxDim)); }
  int dim(std::string_view key, int otherwise, std::int64_t low = 0) const {
    const auto value = find(key);
    return value ? static_cast<int>(value->integer(low, kMaxDim)) : otherwise;
  }
  bool flag(std::string_view key, bool otherwise) const {
    const auto value = find(key);
    return value ? value->boolean() : otherwise;
  }
  double number(std::string_view key, double otherwise) const {
    const auto value = find(key);
    return value ? value->number(0, 1e6) : otherwise;
  }

 private:
  JsonRef ref_;
};

/// Fails unless the layers for which `special` holds are the last of each period; returns the period, 0 when no layer
/// is special and 1 when all are.
int period_of(const JsonRef& ref, const std::vector<bool>& special, std::string_view what) {
  std::size_t period = 0;
  while (period < special.size() && !special[period]) ++period;
  if (period == special.size()) return 0;
  ++period;
  for (std::size_t i = 0; i < special.size(); ++i)
    if (special[i] != (i % period == period - 1))
      ref.fail("is not understood: " + std::string(what) + " must be the last of each group of layers, layer " +
               std::to_string(i) + " is not");
  return static_cast<int>(period);
}

Scoring scoring_of(const HfObject& c, Scoring otherwise) {
  const auto value = c.find("scoring_func");
  if (!value) return otherwise;
  return value->one_of({"softmax", "sigmoid"}, "scoring_func") == 0 ? Scoring::Softmax : Scoring::Sigmoid;
}

void read_gqa(const HfObject& c, ModelShape& shape) {
  AttentionShape& a = shape.attention;
  a.kind = AttentionKind::Gqa;
  a.heads = c.dim("num_attention_heads");
  a.kv_heads = c.dim("num_key_value_heads", a.heads, 1);
  a.head_dim = c.dim("head_dim", 0, 1);
  if (a.head_dim == 0) {
    if (shape.hidden % a.heads != 0)
      c.ref().fail("missing key \"head_dim\" (the " + std::to_string(a.heads) + " heads do not divide hidden_size)");
    a.head_dim = shape.hidden / a.heads;
  }
  a.qkv_bias = c.flag("attention_bias", false);
  a.qk_norm = c.flag("use_qk_norm", false);
}

/// `layer_types`: "sliding_attention" or "full_attention" a layer.
void read_layer_types(const HfObject& c, ModelShape& shape) {
  shape.attention.sliding_window = c.dim("sliding_window", 0);
  if (shape.attention.sliding_window == 0) return;
  const auto types = c.find("layer_types");
  if (!types) {
    shape.attention.window_period = 2;  // the family's default: window first, then everything, in turn
    return;
  }
  std::vector<bool> full;
  for (const JsonRef& type : types->items())
    full.push_back(type.one_of({"sliding_attention", "full_attention"}, "layer type") == 1);
  const int period = period_of(*types, full, "layers with full attention");
  shape.attention.window_period = period;
  if (period == 1) shape.attention.sliding_window = shape.attention.window_period = 0;
}

void read_mla(const HfObject& c, ModelShape& shape) {
  AttentionShape& a = shape.attention;
  a.kind = AttentionKind::Mla;
  a.heads = a.kv_heads = c.dim("num_attention_heads");
  a.q_lora_rank = c.dim("q_lora_rank", 0);
  a.kv_lora_rank = c.dim("kv_lora_rank");
  a.qk_nope_head_dim = c.dim("qk_nope_head_dim");
  a.qk_rope_head_dim = c.dim("qk_rope_head_dim");
  a.v_head_dim = c.dim("v_head_dim");
  a.qkv_bias = c.flag("attention_bias", false);
}

void read_groups(const HfObject& c, MoeShape& m) {
  // "greedy" picks over all experts whatever the group keys say.
  const auto method = c.find("topk_method");
  if (method && method->one_of({"greedy", "group_limited_greedy", "noaux_tc"}, "topk_method") == 0) return;
  m.groups = c.dim("n_group", 1, 1);
  m.group_top_k = m.groups > 1 ? c.dim("topk_group") : 1;
}

/// What the DeepSeek-like families name alike.
void read_deepseek_moe(const HfObject& c, ModelShape& shape, Scoring scoring) {
  MoeShape& m = shape.moe;
  m.routed_experts = c.dim("n_routed_experts");
  m.top_k = c.dim("num_experts_per_tok");
  m.intermediate = c.dim("moe_intermediate_size");
  m.shared_experts = c.dim("n_shared_experts", 0);
  m.shared_intermediate = m.shared_experts * m.intermediate;
  m.scoring = scoring_of(c, scoring);
  m.norm_top_k = c.flag("norm_topk_prob", true);
  m.scaling = c.number("routed_scaling_factor", 1.0);
  read_groups(c, m);
  shape.dense_layers = c.dim("first_k_dense_replace", 0);
  shape.dense_intermediate = shape.dense_layers > 0 ? c.dim("intermediate_size") : 0;
  if (const auto period = c.find("moe_layer_freq"); period && period->integer(1, kMaxDim) != 1)
    period->fail("is not understood: past the dense layers every layer must be MoE (1)");
  shape.mtp_layers = c.dim("num_nextn_predict_layers", 0);
}

void read_deepseek(const HfObject& c, ModelShape& shape) {
  const bool v2 = c.require("model_type").string() == "deepseek_v2";
  read_mla(c, shape);
  read_deepseek_moe(c, shape, v2 ? Scoring::Softmax : Scoring::Sigmoid);
  if (v2) shape.moe.norm_top_k = c.flag("norm_topk_prob", false);
  if (c.find("index_topk")) {
    shape.attention.index_heads = c.dim("index_n_heads");
    shape.attention.index_head_dim = c.dim("index_head_dim");
    shape.attention.index_top_k = c.dim("index_topk");
  }
}

void read_glm4(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  read_deepseek_moe(c, shape, Scoring::Sigmoid);
}

void read_qwen3(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  shape.attention.qk_norm = true;
  if (const auto window = c.find("use_sliding_window"); window && window->boolean())
    window->fail("is not understood: must be false for qwen3_moe");
  MoeShape& m = shape.moe;
  m.routed_experts = c.dim("num_experts");
  m.top_k = c.dim("num_experts_per_tok");
  m.intermediate = c.dim("moe_intermediate_size");
  m.norm_top_k = c.flag("norm_topk_prob", false);
  shape.moe_period = c.dim("decoder_sparse_step", 1, 1);
  if (const auto dense = c.find("mlp_only_layers")) {
    const std::vector<std::int64_t> layers = dense->integers(0, kMaxDim);
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (layers[i] != static_cast<std::int64_t>(i) || shape.moe_period > 1)
        dense->fail("is not understood: dense layers must be the leading ones, with decoder_sparse_step 1");
    shape.dense_layers = static_cast<int>(layers.size());
  }
  if (shape.dense_layers > 0 || shape.moe_period > 1) shape.dense_intermediate = c.dim("intermediate_size");
}

/// gpt_oss, mixtral and minimax_m2: every layer is MoE and `intermediate_size` is an expert's width.
void read_local_experts(const HfObject& c, MoeShape& m, Scoring scoring) {
  m.routed_experts = c.dim("num_local_experts");
  m.top_k = c.dim("num_experts_per_tok");
  m.intermediate = c.dim("intermediate_size");
  m.scoring = scoring_of(c, scoring);
}

void read_gpt_oss(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  shape.attention.qkv_bias = c.flag("attention_bias", true);
  read_layer_types(c, shape);
  read_local_experts(c, shape.moe, Scoring::SoftmaxOverTopK);
}

void read_mixtral(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  shape.attention.sliding_window = c.dim("sliding_window", 0);
  read_local_experts(c, shape.moe, Scoring::SoftmaxOverTopK);
}

void read_minimax(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  read_local_experts(c, shape.moe, Scoring::Sigmoid);
  if (const auto types = c.find("attn_type_list"))
    for (const JsonRef& type : types->items())
      if (type.integer(0, 1) != 1) types->fail("is not understood: linear attention (0) in some layer");
  if (const auto shared = c.find("shared_intermediate_size"); shared && shared->integer(0, kMaxDim) > 0) {
    shape.moe.shared_experts = 1;
    shape.moe.shared_intermediate = static_cast<int>(shared->integer(0, kMaxDim));
  }
  shape.mtp_layers = c.dim("num_mtp_modules", 0) * c.dim("mtp_transformer_layers", 1);
}

void read_llama4(const HfObject& c, ModelShape& shape) {
  read_gqa(c, shape);
  read_local_experts(c, shape.moe, Scoring::Sigmoid);
  shape.moe.norm_top_k = false;
  shape.moe.shared_experts = 1;  // every MoE layer of the family has one, as wide as a routed expert
  shape.moe.shared_intermediate = shape.moe.intermediate;
  shape.moe_period = c.dim("interleave_moe_layer_step", 1, 1);
  if (shape.moe_period > 1) shape.dense_intermediate = c.dim("intermediate_size_mlp");
  if (const auto layers = c.find("moe_layers"); layers && !layers->items().empty()) {
    std::vector<bool> moe(static_cast<std::size_t>(shape.layers), false);
    for (const std::int64_t layer : layers->integers(0, shape.layers - 1)) moe[static_cast<std::size_t>(layer)] = true;
    shape.moe_period = period_of(*layers, moe, "MoE layers");
  }
  // Layers without rope see everything, the others their chunk only.
  shape.attention.sliding_window = c.dim("attention_chunk_size", 0);
  if (shape.attention.sliding_window == 0) return;
  shape.attention.window_period = c.dim("no_rope_layer_interval", 4, 1);
  if (const auto rope = c.find("no_rope_layers"); rope && !rope->items().empty()) {
    std::vector<bool> full;
    for (const std::int64_t has_rope : rope->integers(0, 1)) full.push_back(has_rope == 0);
    shape.attention.window_period = period_of(*rope, full, "layers without rope");
  }
}

void set_precision(ModelShape& shape, Precision weights, Precision experts) {
  shape.weights = weights;
  shape.expert_weights = experts;
  // Tokens travel as the experts' GEMM reads them, except that fp4 experts take wider activations.
  shape.dispatch = weights == Precision::Fp8 ? Precision::Fp8 : Precision::Bf16;
  shape.kv_cache = shape.combine = Precision::Bf16;
}

void read_precision(const HfObject& c, ModelShape& shape) {
  auto dtype = c.find("torch_dtype");
  if (!dtype) dtype = c.find("dtype");
  Precision plain = Precision::Bf16;
  if (dtype && dtype->one_of({"bfloat16", "float16", "float32"}, "dtype") == 2) plain = Precision::Fp32;
  set_precision(shape, plain, plain);
  const auto config = c.find("quantization_config");
  if (!config) return;
  const HfObject quantization(*config);
  const JsonRef method = quantization.require("quant_method");
  switch (method.one_of({"fp8", "mxfp4", "modelopt"}, "quantisation")) {
    case 0:
      set_precision(shape, Precision::Fp8, Precision::Fp8);
      return;
    case 1:
      set_precision(shape, plain, Precision::Fp4);
      return;
    default: {
      const JsonRef algorithm = quantization.require("quant_algo");
      const bool fp8 = algorithm.one_of({"FP8", "NVFP4"}, "quantisation") == 0;
      set_precision(shape, fp8 ? Precision::Fp8 : plain, fp8 ? Precision::Fp8 : Precision::Fp4);
    }
  }
}

struct Family {
  std::string_view name;
  void (*read)(const HfObject&, ModelShape&);
};

constexpr Family kFamilies[] = {
    {"deepseek_v2", read_deepseek}, {"deepseek_v3", read_deepseek}, {"deepseek_v32", read_deepseek},
    {"kimi_k2", read_deepseek},     {"qwen3_moe", read_qwen3},      {"glm4_moe", read_glm4},
    {"gpt_oss", read_gpt_oss},      {"mixtral", read_mixtral},      {"llama4", read_llama4},
    {"llama4_text", read_llama4},   {"minimax_m2", read_minimax},
};

}  // namespace

std::vector<std::string_view> hf_families() {
  std::vector<std::string_view> out;
  for (const Family& family : kFamilies) out.push_back(family.name);
  return out;
}

ModelShape model_from_hf(const std::string& path) {
  const HfObject file{JsonRef(load_json(path))};
  const Family& family = kFamilies[file.require("model_type").one_of(hf_families(), "model_type")];
  // Multi-modal files keep the language model in a part of its own.
  const auto text = file.find("text_config");
  const HfObject c = text ? HfObject(*text) : file;
  ModelShape shape;
  shape.name = path;
  shape.layers = c.dim("num_hidden_layers");
  shape.hidden = c.dim("hidden_size");
  shape.vocab = c.dim("vocab_size");
  shape.max_position = c.dim("max_position_embeddings", 0);
  shape.tie_embeddings = c.flag("tie_word_embeddings", false);
  read_precision(file, shape);
  family.read(c, shape);
  check_shape(c.ref(), shape);
  return shape;
}

}  // namespace dbo
