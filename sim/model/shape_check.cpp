#include "sim/model/shape_check.h"

namespace dbo {
namespace {

[[noreturn]] void fail_at(const JsonRef& ref, std::string_view key, const std::string& message) {
  if (const Json* value = ref.value().find(key)) JsonRef(ref, *value).fail(message);
  ref.fail("\"" + std::string(key) + "\" " + message);
}

std::string number(int value) {
  return std::to_string(value);
}

void check_attention(const JsonRef& ref, const AttentionShape& a) {
  const Json* member = ref.value().find("attention");
  const JsonRef at = member != nullptr ? JsonRef(ref, *member) : ref;
  if (a.kind == AttentionKind::Gqa && a.heads % a.kv_heads != 0)
    fail_at(at, "kv_heads", "must divide the " + number(a.heads) + " heads, is " + number(a.kv_heads));
  if (a.window_period > 0 && a.sliding_window == 0)
    fail_at(at, "window_period", "says which layers have a window, but there is no \"sliding_window\"");
}

void check_moe(const JsonRef& ref, const MoeShape& m) {
  const Json* member = ref.value().find("moe");
  const JsonRef at = member != nullptr ? JsonRef(ref, *member) : ref;
  if (m.top_k > m.routed_experts)
    fail_at(at, "top_k", "must be at most the " + number(m.routed_experts) + " routed experts, is " + number(m.top_k));
  if (m.routed_experts % m.groups != 0)
    fail_at(at, "groups", "must divide the " + number(m.routed_experts) + " routed experts, is " + number(m.groups));
  if (m.group_top_k > m.groups)
    fail_at(at, "group_top_k", "must be at most the " + number(m.groups) + " groups, is " + number(m.group_top_k));
  if (m.top_k > m.group_top_k * (m.routed_experts / m.groups))
    fail_at(
        at, "group_top_k",
        number(m.group_top_k) + " of " + number(m.groups) + " groups hold fewer than " + number(m.top_k) + " experts");
  if ((m.shared_experts > 0) != (m.shared_intermediate > 0))
    fail_at(at, "shared_intermediate", "goes with \"shared_experts\": both above 0 or neither");
}

}  // namespace

void check_shape(const JsonRef& ref, const ModelShape& shape) {
  if (shape.dense_layers > shape.layers)
    fail_at(ref, "dense_layers",
            "must be at most the " + number(shape.layers) + " layers, is " + number(shape.dense_layers));
  if (!shape.has_dims()) return;
  check_attention(ref, shape.attention);
  check_moe(ref, shape.moe);
  const bool has_dense = shape.dense_layers > 0 || shape.moe_period > 1;
  if (has_dense && shape.dense_intermediate == 0)
    fail_at(ref, "dense_intermediate", "is needed: the model has dense layers");
}

}  // namespace dbo
