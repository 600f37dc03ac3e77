// A model from an object with the keys of the preset files.
#include <filesystem>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/model/shape_check.h"

namespace dbo {
namespace {

constexpr std::int64_t kMaxDim = 1 << 24;

void read_int(ObjectReader& reader, std::string_view key, int& field, std::int64_t low) {
  if (const auto value = reader.find(key)) field = static_cast<int>(value->integer(low, kMaxDim));
}

void read_bool(ObjectReader& reader, std::string_view key, bool& field) {
  if (const auto value = reader.find(key)) field = value->boolean();
}

Precision read_precision(const JsonRef& ref) {
  return static_cast<Precision>(ref.one_of(precision_names(), "precision"));
}

/// `fresh`: the object stands alone, so every dimension it needs must be there.
void read_attention(const JsonRef& ref, AttentionShape& a, bool fresh) {
  ObjectReader reader(ref, "an object that describes attention");
  if (const auto kind = reader.find("kind")) {
    a.kind = kind->one_of({"mla", "gqa"}, "attention kind") == 0 ? AttentionKind::Mla : AttentionKind::Gqa;
  } else if (fresh) {
    reader.require("kind");
  }
  const bool mla = a.kind == AttentionKind::Mla;
  const auto dimension = [&](std::string_view key, int& field) {
    if (fresh) reader.require(key);
    read_int(reader, key, field, 1);
  };
  dimension("heads", a.heads);
  if (mla) {
    read_int(reader, "q_lora_rank", a.q_lora_rank, 0);
    dimension("kv_lora_rank", a.kv_lora_rank);
    dimension("qk_nope_head_dim", a.qk_nope_head_dim);
    dimension("qk_rope_head_dim", a.qk_rope_head_dim);
    dimension("v_head_dim", a.v_head_dim);
    a.kv_heads = a.heads;
    if (const auto index = reader.find("sparse_index")) {
      ObjectReader indexer(*index, "an object that describes the sparse index");
      indexer.require("heads");
      indexer.require("head_dim");
      indexer.require("top_k");
      read_int(indexer, "heads", a.index_heads, 1);
      read_int(indexer, "head_dim", a.index_head_dim, 1);
      read_int(indexer, "top_k", a.index_top_k, 1);
      indexer.done();
    }
  } else {
    dimension("kv_heads", a.kv_heads);
    dimension("head_dim", a.head_dim);
    read_bool(reader, "qk_norm", a.qk_norm);
    read_int(reader, "sliding_window", a.sliding_window, 0);
    read_int(reader, "window_period", a.window_period, 0);
  }
  read_bool(reader, "qkv_bias", a.qkv_bias);
  reader.done();
}

void read_moe(const JsonRef& ref, MoeShape& m, bool fresh) {
  ObjectReader reader(ref, "an object that describes the experts");
  const auto dimension = [&](std::string_view key, int& field) {
    if (fresh) reader.require(key);
    read_int(reader, key, field, 1);
  };
  dimension("routed_experts", m.routed_experts);
  dimension("top_k", m.top_k);
  dimension("intermediate", m.intermediate);
  read_int(reader, "shared_experts", m.shared_experts, 0);
  read_int(reader, "shared_intermediate", m.shared_intermediate, 0);
  if (m.shared_experts == 0 && !reader.has("shared_intermediate")) m.shared_intermediate = 0;
  if (m.shared_experts > 0 && m.shared_intermediate == 0) m.shared_intermediate = m.shared_experts * m.intermediate;
  read_int(reader, "groups", m.groups, 1);
  read_int(reader, "group_top_k", m.group_top_k, 1);
  if (const auto scoring = reader.find("scoring"))
    m.scoring = static_cast<Scoring>(scoring->one_of({"softmax", "sigmoid", "softmax_over_top_k"}, "scoring"));
  read_bool(reader, "norm_top_k", m.norm_top_k);
  if (const auto scaling = reader.find("scaling")) m.scaling = scaling->number(0, 1e6);
  reader.done();
}

void read_precisions(const JsonRef& ref, ModelShape& shape) {
  ObjectReader reader(ref, "an object of precisions");
  if (const auto value = reader.find("weights")) shape.weights = shape.expert_weights = read_precision(*value);
  if (const auto value = reader.find("expert_weights")) shape.expert_weights = read_precision(*value);
  if (const auto value = reader.find("kv_cache")) shape.kv_cache = read_precision(*value);
  if (const auto value = reader.find("dispatch")) shape.dispatch = read_precision(*value);
  if (const auto value = reader.find("combine")) shape.combine = read_precision(*value);
  reader.done();
}

/// Any key that says more than how many layers there are.
bool names_dims(const ObjectReader& reader) {
  for (const std::string_view key : {"hidden", "attention", "moe", "moe_period", "dense_intermediate", "vocab",
                                     "mtp_layers", "max_position", "tie_embeddings", "precision"})
    if (reader.has(key)) return true;
  return false;
}

void read_dims(ObjectReader& reader, ModelShape& shape, bool fresh) {
  const auto part = [&](std::string_view key) {
    return fresh ? std::optional<JsonRef>(reader.require(key)) : reader.find(key);
  };
  if (const auto value = part("hidden")) shape.hidden = static_cast<int>(value->integer(1, kMaxDim));
  if (const auto value = part("attention")) {
    // A new kind of attention shares no dimension with the one it replaces.
    const Json* kind = value->value().find("kind");
    const std::string_view now = shape.attention.kind == AttentionKind::Mla ? "mla" : "gqa";
    const bool replaced = fresh || (kind != nullptr && kind->is_string() && kind->as_string() != now);
    if (replaced) shape.attention = {};
    read_attention(*value, shape.attention, replaced);
  }
  if (const auto value = part("moe")) read_moe(*value, shape.moe, fresh);
  if (const auto value = part("vocab")) shape.vocab = static_cast<int>(value->integer(1, kMaxDim));
  read_int(reader, "moe_period", shape.moe_period, 1);
  read_int(reader, "dense_intermediate", shape.dense_intermediate, 0);
  read_int(reader, "mtp_layers", shape.mtp_layers, 0);
  if (const auto value = reader.find("max_position")) shape.max_position = value->count(0);
  read_bool(reader, "tie_embeddings", shape.tie_embeddings);
  if (const auto value = reader.find("precision")) read_precisions(*value, shape);
}

/// The preset that `ref` names.
ModelShape named_model(const JsonRef& ref) {
  const std::string& name = ref.string();
  // A checkpoint may be quantised otherwise than the preset: its name on Hugging Face is not taken for it.
  if (const auto near = preset_of_model(name); near && *near != name)
    ref.fail("unknown model \"" + name + "\" " + known_names(*near, model_names()));
  return model_preset(model_names()[ref.one_of(model_names(), "model")]);
}

ModelShape base_of(ObjectReader& reader, bool& fresh) {
  const auto preset = reader.find("preset");
  const auto hf = reader.find("hf_config");
  fresh = !preset && !hf;
  if (preset && hf) hf->fail("a model has a \"preset\" or a \"hf_config\", not both");
  if (preset) return named_model(*preset);
  if (hf) {
    // A config travels with the files it names.
    const std::filesystem::path folder = std::filesystem::path(hf->file()).parent_path();
    return model_from_hf((folder / hf->string()).string());
  }
  return {};
}

}  // namespace

std::string_view precision_name(Precision precision) {
  return precision_names()[static_cast<std::size_t>(precision)];
}

std::vector<std::string_view> precision_names() {
  return {"fp4", "fp8", "bf16", "fp32"};
}

ModelShape model_from_object(const JsonRef& ref) {
  if (ref.value().is_string()) return named_model(ref);
  ObjectReader reader(ref, "the name of a model or an object");
  bool fresh = false;
  ModelShape shape = base_of(reader, fresh);
  if (const auto value = reader.find("name")) shape.name = value->string();
  for (const std::string_view key : {"source", "note"})
    if (const auto value = reader.find(key)) value->string();
  if (fresh) reader.require("layers");
  if (const auto value = reader.find("layers")) shape.layers = static_cast<int>(value->integer(1, 1 << 16));
  if (const auto value = reader.find("dense_layers")) shape.dense_layers = static_cast<int>(value->integer(0, 1 << 16));
  const bool layers_only = fresh && !names_dims(reader);
  if (layers_only) shape.moe.shared_experts = 1;
  read_dims(reader, shape, fresh && !layers_only);
  reader.done();
  check_shape(ref, shape);
  return shape;
}

}  // namespace dbo
