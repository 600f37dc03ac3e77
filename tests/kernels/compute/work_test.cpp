#include "kernels/compute/work.h"

#include <doctest/doctest.h>

using namespace dbo;
using namespace dbo::kernels;

namespace {

AttentionShape mla(int heads, int q_lora) {
  AttentionShape s;
  s.kind = AttentionKind::Mla;
  s.heads = s.kv_heads = heads;
  s.q_lora_rank = q_lora;
  s.kv_lora_rank = 512;
  s.qk_nope_head_dim = 128;
  s.qk_rope_head_dim = 64;
  s.v_head_dim = 128;
  return s;
}

AttentionShape gqa(int heads, int kv_heads) {
  AttentionShape s;
  s.kind = AttentionKind::Gqa;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = 128;
  return s;
}

}  // namespace

TEST_CASE("work: a product counts 2 m n k operations, weights once, activations in and out") {
  const Work w = gemm_work(3, 5, 7);
  CHECK(w.flops == 210);
  CHECK(w.weight_bytes == 70);
  CHECK(w.activation_bytes == 3 * 7 * 2 + 3 * 5 * 2);
  CHECK(gemm_work(3, 5, 7, 4).activation_bytes == 3 * 7 * 2 + 3 * 5 * 4);
  CHECK(gemm_work(0, 5, 7) == Work{});
}

TEST_CASE("work: a causal query range sees the keys before it and its own triangle") {
  AttentionLoad load;
  load.add(4, 4);  // 1 + 2 + 3 + 4
  CHECK(load.pairs == 10);
  load.add(2, 10);  // 9 + 10
  CHECK(load.pairs == 29);
  CHECK(load.tokens == 6);
  CHECK(load.keys == 14);
}

TEST_CASE("work: MLA decode multiplies 576 columns for scores and 512 for values, and reads the cache once") {
  AttentionLoad load;
  for (int r = 0; r < 128; ++r) load.add(1, 4096);
  const Work w = mla_decode_work(mla(128, 1536), load);
  CHECK(w.flops == 2ll * 128 * 128 * 4096 * (576 + 512));
  CHECK(w.kv_bytes == 128ll * 4096 * 576 * 2);
  CHECK(w.activation_bytes == 128ll * 128 * (576 + 512) * 2);
}

TEST_CASE("work: GQA heads share the cache") {
  AttentionLoad load;
  load.add(1, 1000);
  const Work w = gqa_decode_work(gqa(64, 4), load);
  CHECK(w.flops == 4ll * 64 * 1000 * 128);
  CHECK(w.kv_bytes == 1000ll * 2 * 4 * 128 * 2);
}

TEST_CASE("work: A0 of DeepSeek-V3 is its projections; only decode tokens pay for the absorbed query") {
  const AttentionShape s = mla(128, 1536);
  BatchLoad decode, prefill;
  decode.decode.tokens = prefill.prefill.tokens = 10;  // no context beyond: nothing to project up
  const std::int64_t projections = 2ll * 10 * (7168 * (1536 + 576) + 1536 * 128 * 192);
  CHECK(a0_work(s, 7168, decode, 2).flops == projections + 2ll * 10 * 128 * 128 * 512);
  CHECK(a0_work(s, 7168, prefill, 2).flops == projections);
  CHECK(a0_work(s, 7168, decode, 2).kv_bytes == 10 * 576 * 2);
  CHECK(a0_work(s, 7168, prefill, 0).weight_bytes == 2ll * (7168 * (1536 + 576) + 1536 * 128 * 192));
}

TEST_CASE("work: A0 without a low-rank query has one product") {
  BatchLoad load;
  load.prefill.tokens = 7;
  CHECK(a0_work(mla(16, 0), 2048, load, 0).flops == 2ll * 7 * 2048 * (16 * 192 + 576));
}

TEST_CASE("work: A1 adds output projection and gate; a dense layer has no gate") {
  MoeShape moe;
  moe.routed_experts = 128;
  moe.top_k = 8;
  BatchLoad load;
  load.decode.add(1, 100);
  const std::int64_t core = 4ll * 32 * 100 * 128, out = 2ll * 2048 * 32 * 128;
  CHECK(a1_work(gqa(32, 4), moe, 2048, load).flops == core + out + 2ll * 128 * 2048);
  moe.routed_experts = 0;
  CHECK(a1_work(gqa(32, 4), moe, 2048, load).flops == core + out);
}

TEST_CASE("work: unabsorbed prefill projects every cached token up again") {
  MoeShape dense;
  BatchLoad load;
  load.prefill.add(8, 64);
  const std::int64_t pairs = 8 * 56 + 36;
  const std::int64_t core = 2ll * 16 * pairs * (192 + 128), up = 2ll * 64 * 16 * 256 * 512,
                     out = 2ll * 8 * 2048 * 16 * 128;
  CHECK(a1_work(mla(16, 0), dense, 2048, load).flops == core + out);
  CHECK(a0_work(mla(16, 0), 2048, load, 0).flops == up + 2ll * 8 * 2048 * (16 * 192 + 576));
}

TEST_CASE("work: experts read their three matrices once each, whatever their rows") {
  MoeShape moe;
  moe.intermediate = 2048;
  const Work w = mlp_work(moe, 7168, 100, 160, 4, true);
  CHECK(w.flops == 6ll * 160 * 7168 * 2048);
  CHECK(w.weight_bytes == 4ll * 3 * 7168 * 2048 * 2);
  CHECK(w.activation_bytes == 2ll * 160 * (7168 + 2048) * 2 + 2 * (160ll + 100) * 7168 * 2);
  CHECK(mlp_work(moe, 7168, 160, 160, 4, false).activation_bytes ==
        2ll * 160 * (7168 + 2048) * 2 + 2ll * 160 * 7168 * 2);
}

TEST_CASE("work: a SwiGLU block is three matrices") {
  CHECK(swiglu_work(5, 64, 32).flops == 6ll * 5 * 64 * 32);
  CHECK(swiglu_work(5, 64, 32).weight_bytes == 3ll * 64 * 32 * 2);
  CHECK(head_work(3, 64, 1000, 2).flops == 2ll * 3 * 64 * 1000);
}
