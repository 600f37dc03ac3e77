#include "kernels/compute/layer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/compute/hash.h"
#include "kernels/compute/limits.h"

using namespace dbo;
using namespace dbo::kernels;

namespace {

LayerDims v3(int experts_per_rank) {
  LayerDims d;
  d.hidden = 7168;
  d.attention.kind = AttentionKind::Mla;
  d.attention.heads = d.attention.kv_heads = 128;
  d.attention.q_lora_rank = 1536;
  d.attention.kv_lora_rank = 512;
  d.attention.qk_nope_head_dim = 128;
  d.attention.qk_rope_head_dim = 64;
  d.attention.v_head_dim = 128;
  d.moe.routed_experts = 256;
  d.moe.top_k = 8;
  d.moe.intermediate = d.moe.shared_intermediate = 2048;
  d.moe.shared_experts = 1;
  d.experts_per_rank = experts_per_rank;
  d.dense_intermediate = 18432;
  d.vocab = 129280;
  d.router_bias = true;
  return d;
}

std::int64_t elements(const WeightLayout& layout) {
  std::int64_t sum = 0;
  for (const TensorPlace& p : layout.place) sum += p.count;
  return sum;
}

}  // namespace

TEST_CASE("layer: the weights of a DeepSeek-V3 layer add up to the published counts") {
  // Attention 187.105 M, one expert 44.04 M, gate 256 x 7168 (models.json); norms and the bias come on top.
  const WeightLayout layout = weight_layout(v3(256), WeightSet::MoeLayer);
  const std::int64_t attention = 7168 * (1536 + 576) + 1536 * 128 * 192 + 128 * 256 * 512 + 7168 * 128 * 128;
  const std::int64_t expert = 3 * 7168 * 2048, norms = 2 * 7168 + 1536 + 512;
  CHECK(attention == 187105280);
  CHECK(expert == 44040192);
  CHECK(elements(layout) == attention + 257 * expert + 256 * 7168 + norms + 256);
  CHECK(layout[Tensor::ExpertUp].per_expert == 2 * expert / 3);
  CHECK(layout[Tensor::DenseUp].count == 0);
}

TEST_CASE("layer: e4m3 experts take a byte a weight and a scale for each 128 x 128") {
  LayerDims d = v3(4);
  d.fp8_experts = true;
  CHECK(find_unsupported(d) == nullptr);
  const WeightLayout layout = weight_layout(d, WeightSet::MoeLayer);
  const TensorPlace &up = layout[Tensor::ExpertUp], &scale = layout[Tensor::ExpertUpScale];
  CHECK(up.count == 4 * 4096 * 7168);
  CHECK(number_bytes(up.type) == 1);
  CHECK(scale.count == 4 * 32 * 56);
  CHECK(scale.per_expert == 32 * 56);
  CHECK(scale.columns == 56);
  CHECK(layout[Tensor::ExpertDownScale].count == 4 * 56 * 16);
  CHECK(weight_layout(v3(4), WeightSet::MoeLayer)[Tensor::ExpertUpScale].count == 0);
  const auto published = std::int64_t{3} * 4 * 7168 * 2048;
  CHECK(weight_layout(v3(4), WeightSet::MoeLayer).bytes - layout.bytes > published - (2 << 20));
  d.moe.intermediate = 72;
  CHECK(find_unsupported(d) ==
        doctest::String("fp8 experts need hidden to be a multiple of 128 and intermediate of 16"));
}

TEST_CASE("layer: tensors do not overlap, start on 256 bytes and end inside the set") {
  for (const WeightSet set : {WeightSet::MoeLayer, WeightSet::DenseLayer, WeightSet::Model}) {
    const WeightLayout layout = weight_layout(v3(4), set);
    std::int64_t end = 0;
    for (const TensorPlace& p : layout.place) {
      if (p.count == 0) continue;
      CHECK(p.offset_bytes % 256 == 0);
      CHECK(p.offset_bytes >= end);
      end = p.offset_bytes + p.count * number_bytes(p.type);
    }
    CHECK(end <= layout.bytes);
    CHECK(layout.bytes % (1 << 20) == 0);
  }
}

TEST_CASE("layer: placed weights point into the set, absent ones are null") {
  const WeightLayout layout = weight_layout(v3(4), WeightSet::DenseLayer);
  std::vector<unsigned char> memory(1);
  const LayerWeights w = place_weights(layout, memory.data());
  CHECK(w[Tensor::AttentionNorm] == memory.data());
  CHECK(w[Tensor::ExpertUp] == nullptr);
  CHECK(w[Tensor::DenseUp] != nullptr);
}

TEST_CASE("layer: a ring exceeds three L2, has at least two sets, and no more than layers or memory") {
  const std::int64_t mib = 1 << 20;
  CHECK(ring_sets(58, 30 * mib, 60 * mib, 1000 * mib) == 6);
  CHECK(ring_sets(58, 400 * mib, 60 * mib, 8000 * mib) == 2);
  CHECK(ring_sets(1, 400 * mib, 60 * mib, 8000 * mib) == 1);
  CHECK(ring_sets(58, 30 * mib, 60 * mib, 100 * mib) == 3);
  CHECK(ring_sets(58, 400 * mib, 60 * mib, 100 * mib) == 0);
}

TEST_CASE("layer: an absent rank's expert is played with the player's weights of the same local index") {
  CHECK(stand_in_expert(5, 4, 2, 1) == 5);   // rank 1 is there
  CHECK(stand_in_expert(13, 4, 2, 1) == 5);  // rank 3 is not: local index 1 of rank 1
  CHECK(stand_in_expert(13, 4, 1, 0) == 1);
  CHECK(tensor_seed(7, Tensor::ExpertUp, 3) != tensor_seed(7, Tensor::ExpertUp, 4));
  CHECK(tensor_seed(7, Tensor::ExpertUp, 3) != tensor_seed(7, Tensor::ExpertDown, 3));
}

TEST_CASE("layer: carved pieces are aligned and disjoint, and a dry run gives the same size") {
  const LayerDims d = v3(16);
  Carver dry(nullptr);
  const UbatchBuffers none = carve_ubatch(d, 33, 0, dry);
  CHECK(none.residual == nullptr);
  std::vector<unsigned char> memory(static_cast<std::size_t>(dry.used()));
  Carver carver(memory.data());
  const UbatchBuffers b = carve_ubatch(d, 33, 0, carver);
  CHECK(carver.used() == dry.used());
  const auto offset = [&](const void* p) { return static_cast<const unsigned char*>(p) - memory.data(); };
  CHECK(offset(b.residual) == 0);
  CHECK(offset(b.normed) == 33 * 7168 * 2);
  CHECK(offset(b.q) == 2 * 33 * 7168 * 2);
  CHECK(offset(b.q_absorbed) - offset(b.q) == 33 * 128 * 192 * 2);
  CHECK(offset(b.expert) % 256 == 0);
  CHECK(offset(b.routed) + 33 * 7168 * 2 <= carver.used());
}

TEST_CASE("layer: a ubatch needs memory for projected keys only when something prefills") {
  const LayerDims d = v3(16);
  Carver decode(nullptr), mixed(nullptr), a1(nullptr);
  (void)carve_ubatch(d, 64, 0, decode);
  (void)carve_ubatch(d, 64, 1000, mixed);
  CHECK(mixed.used() - decode.used() == 1000 * 576 * 2 + 1000ll * 128 * 256 * 2);
  (void)carve_a1(d, {.tokens = 64, .decode_tokens = 64, .sms = 132}, a1);
  CHECK(a1.used() >= 4 * mla_decode_partials(132).o);
  CHECK(mla_decode_partials(132).o == 2ll * 132 * 64 * 512);
}

TEST_CASE("layer: at most one row a token and choice, and no token twice in an expert") {
  MoeDims moe;
  moe.ranks = 4;
  moe.max_tokens = 100;
  moe.top_k = 8;
  moe.experts_per_rank = 2;
  CHECK(most_rows(moe) == 800);
  moe.experts_per_rank = 64;
  CHECK(most_rows(moe) == 3200);
}

TEST_CASE("layer: what the kernels cannot do is refused by name") {
  LayerDims d = v3(16);
  CHECK(find_unsupported(d) == nullptr);
  d.attention.index_heads = 64;
  CHECK(std::string(find_unsupported(d)) == "sparse attention has no kernel");
  d = v3(16);
  d.attention.kind = AttentionKind::Gqa;
  d.attention.head_dim = 64;
  CHECK(std::string(find_unsupported(d)) == "GQA kernels are built for heads of 128");
}

TEST_CASE("hash: values are even over [-1, 1) and repeatable") {
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float u = uniform(42, i);
    CHECK_UNARY(u >= -1.0f && u < 1.0f);
    sum += u;
    squares += static_cast<double>(u) * u;
  }
  CHECK(uniform(42, 17) == uniform(42, 17));
  CHECK(uniform(42, 17) != uniform(43, 17));
  // Mean 0 with a standard error of 0.0018, mean square 1/3 with one of 0.0009.
  CHECK(sum / 100000 == doctest::Approx(0).epsilon(0.01).scale(1));
  CHECK(squares / 100000 == doctest::Approx(1.0 / 3).epsilon(0.01).scale(1));
}
