#include "sim/plan/shape_json.h"

#include <cmath>

namespace dbo {
namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 30;
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 16;  ///< as in a config: costs are laid out layer by layer
const std::vector<std::string_view> kPrecisions = {"fp4", "fp8", "bf16", "fp32"};
const std::vector<std::string_view> kScorings = {"softmax", "sigmoid", "softmax_over_top_k"};
const std::vector<std::string_view> kAttentionKinds = {"mla", "gqa"};

/// Visits every member of the shape as (key, field), so that writing and reading cannot drift apart.
template <class Attention, class Visit>
void visit_attention(Attention& a, Visit&& visit) {
  visit("heads", a.heads);
  visit("kv_heads", a.kv_heads);
  visit("head_dim", a.head_dim);
  visit("q_lora_rank", a.q_lora_rank);
  visit("kv_lora_rank", a.kv_lora_rank);
  visit("qk_nope_head_dim", a.qk_nope_head_dim);
  visit("qk_rope_head_dim", a.qk_rope_head_dim);
  visit("v_head_dim", a.v_head_dim);
  visit("qk_norm", a.qk_norm);
  visit("qkv_bias", a.qkv_bias);
  visit("sliding_window", a.sliding_window);
  visit("window_period", a.window_period);
  visit("index_heads", a.index_heads);
  visit("index_head_dim", a.index_head_dim);
  visit("index_top_k", a.index_top_k);
}

template <class Moe, class Visit>
void visit_moe(Moe& m, Visit&& visit) {
  visit("routed_experts", m.routed_experts);
  visit("top_k", m.top_k);
  visit("intermediate", m.intermediate);
  visit("shared_experts", m.shared_experts);
  visit("shared_intermediate", m.shared_intermediate);
  visit("groups", m.groups);
  visit("group_top_k", m.group_top_k);
  visit("norm_top_k", m.norm_top_k);
}

template <class Shape, class Visit>
void visit_shape(Shape& s, Visit&& visit) {
  visit("layers", s.layers);
  visit("dense_layers", s.dense_layers);
  visit("moe_period", s.moe_period);
  visit("hidden", s.hidden);
  visit("dense_intermediate", s.dense_intermediate);
  visit("vocab", s.vocab);
  visit("mtp_layers", s.mtp_layers);
  visit("tie_embeddings", s.tie_embeddings);
}

template <class Shape, class Visit>
void visit_precisions(Shape& s, Visit&& visit) {
  visit("weights", s.weights);
  visit("expert_weights", s.expert_weights);
  visit("kv_cache", s.kv_cache);
  visit("dispatch", s.dispatch);
  visit("combine", s.combine);
}

struct Write {
  Json& out;
  void operator()(std::string_view key, int value) const { out.set(key, value); }
  void operator()(std::string_view key, bool value) const { out.set(key, value); }
  void operator()(std::string_view key, Precision value) const {
    out.set(key, kPrecisions[static_cast<std::size_t>(value)]);
  }
};

struct Read {
  ObjectReader& in;
  void operator()(std::string_view key, int& value) const {
    const bool layers = key == "layers" || key == "dense_layers" || key == "mtp_layers" || key == "moe_period";
    value = static_cast<int>(in.require(key).integer(0, layers ? kMaxLayers : kMaxDim));
  }
  void operator()(std::string_view key, bool& value) const { value = in.require(key).boolean(); }
  void operator()(std::string_view key, Precision& value) const {
    value = static_cast<Precision>(in.require(key).one_of(kPrecisions, "precision"));
  }
};

// Hashes are taken over integers only: the routing scale is stored in millionths.
constexpr double kScalingUnit = 1e6;

}  // namespace

Json shape_to_json(const ModelShape& shape) {
  Json out = Json::object();
  out.set("name", shape.name);
  visit_shape(shape, Write{out});
  Json attention = Json::object();
  attention.set("kind", kAttentionKinds[static_cast<std::size_t>(shape.attention.kind)]);
  visit_attention(shape.attention, Write{attention});
  out.set("attention", std::move(attention));
  Json moe = Json::object();
  visit_moe(shape.moe, Write{moe});
  moe.set("scoring", kScorings[static_cast<std::size_t>(shape.moe.scoring)]);
  moe.set("scaling_millionths", static_cast<std::int64_t>(std::llround(shape.moe.scaling * kScalingUnit)));
  out.set("moe", std::move(moe));
  Json precision = Json::object();
  visit_precisions(shape, Write{precision});
  out.set("precision", std::move(precision));
  out.set("max_position", shape.max_position);
  return out;
}

ModelShape shape_from_json(const JsonRef& ref) {
  ModelShape shape;
  ObjectReader reader(ref, "an object with the model's dimensions");
  shape.name = reader.require("name").string();
  visit_shape(shape, Read{reader});
  ObjectReader attention(reader.require("attention"));
  shape.attention.kind =
      static_cast<AttentionKind>(attention.require("kind").one_of(kAttentionKinds, "attention kind"));
  visit_attention(shape.attention, Read{attention});
  attention.done();
  ObjectReader moe(reader.require("moe"));
  visit_moe(shape.moe, Read{moe});
  shape.moe.scoring = static_cast<Scoring>(moe.require("scoring").one_of(kScorings, "scoring"));
  shape.moe.scaling = static_cast<double>(moe.require("scaling_millionths").integer(0, kMaxDim)) / kScalingUnit;
  moe.done();
  ObjectReader precision(reader.require("precision"));
  visit_precisions(shape, Read{precision});
  precision.done();
  shape.max_position = reader.require("max_position").count();
  reader.done();
  if (shape.moe_period < 1) JsonRef(ref, *ref.value().find("moe_period")).fail_type("a whole number of at least 1");
  return shape;
}

}  // namespace dbo
