#include "sim/cost/work.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sim/model/presets.h"

using namespace dbo;

namespace {

UbatchLoad requests(std::initializer_list<std::pair<int, int>> query_and_seq) {
  UbatchLoad load;
  load.query_start_loc.push_back(0);
  for (const auto& [query, seq] : query_and_seq) {
    load.query_start_loc.push_back(load.query_start_loc.back() + query);
    load.seq_lens.push_back(seq);
  }
  load.token_end = load.padded = load.query_start_loc.back();
  return load;
}

OpContext context(const ModelShape& shape, const UbatchLoad& load) {
  OpContext c;
  c.shape = &shape;
  c.tokens = c.share_tokens = static_cast<double>(load.padded);
  c.attention = attention_load(load, 0);
  return c;
}

const KernelWork* find(const std::vector<KernelWork>& kernels, std::string_view name) {
  for (const KernelWork& kernel : kernels)
    if (kernel.name == name) return &kernel;
  return nullptr;
}

}  // namespace

TEST_CASE("work: parameters of the shapes add up to the published sizes") {
  // Billions, total and active, from the shapes in the way of the published model cards' own sums.
  const struct {
    std::string_view model;
    double total, active;
  } expected[] = {
      {"deepseek-v2-lite", 15.71, 2.66},  {"deepseek-v2", 235.74, 21.38},      {"deepseek-v3", 671.03, 37.55},
      {"deepseek-v3.2", 671.88, 38.4},    {"kimi-k2", 1026.41, 32.86},         {"qwen3-30b-a3b", 30.53, 3.35},
      {"qwen3-235b-a22b", 235.09, 22.19}, {"glm-4.5", 352.8, 33.63},           {"gpt-oss-120b", 116.79, 5.71},
      {"mixtral-8x7b", 46.7, 12.88},      {"llama-4-maverick", 400.71, 17.18}, {"minimax-m2", 228.69, 11.03}};
  for (const auto& e : expected) {
    CAPTURE(e.model);
    const ParameterCounts p = parameter_counts(model_preset(e.model));
    CHECK(std::abs(p.total / 1e9 - e.total) < 0.006);
    CHECK(std::abs(p.active / 1e9 - e.active) < 0.006);
  }
}

TEST_CASE("work: bytes of a token on the wire and in the cache") {
  const ModelShape v3 = model_preset("deepseek-v3");
  CHECK(dispatch_bytes(v3) == 7392);  // 7168 fp8 values and 56 fp32 scales
  CHECK(combine_bytes(v3) == 14336);
  CHECK(kv_bytes_per_token(v3) == 1152);
  CHECK(dispatch_bytes(model_preset("qwen3-235b-a22b")) == 8192);
  CHECK(kv_bytes_per_token(model_preset("qwen3-235b-a22b")) == 2048);
  CHECK(dispatch_bytes(model_preset("minimax-m2")) == 3168);
}

TEST_CASE("work: attention counts causal pairs, request by request") {
  // Decode of 1 and 2 tokens, a prompt of 10, a chunk of 10 after 20.
  const AttentionLoad load = attention_load(requests({{1, 100}, {2, 50}, {10, 10}, {10, 30}}), 0);
  CHECK(load.decode_requests == 2);
  CHECK(load.decode_tokens == 3);
  CHECK(load.decode_pairs == 100 + 49 + 50);
  CHECK(load.decode_cache == 150);
  CHECK(load.prefill_requests == 2);
  CHECK(load.prefill_pairs == 55 + (10 * 20 + 55));
  CHECK(load.prefill_context == 40);
}

TEST_CASE("work: a window caps what each query sees") {
  // Queries of a 6-token prompt see 1 2 3 4 4 4 with a window of 4; a decode at 100 sees 4; a chunk of 4 after 2 sees
  // 3 4 4 4.
  CHECK(attention_load(requests({{9, 9}}), 4).prefill_pairs == 1 + 2 + 3 + 4 * 6);
  CHECK(attention_load(requests({{1, 100}}), 4).decode_pairs == 4);
  CHECK(attention_load(requests({{1, 100}}), 4).decode_cache == 4);
  CHECK(attention_load(requests({{9, 11}}), 4).prefill_pairs == 3 + 4 * 8);
  CHECK(attention_load(requests({{1, 3}}), 4).decode_pairs == 3);
}

TEST_CASE("work: MLA decode is absorbed, prefill is not") {
  const ModelShape v3 = model_preset("deepseek-v3");
  // 128 requests over 4096 tokens: 128 heads * (576 + 512) * 2 flops a pair, 1152 bytes a cached token.
  std::vector<std::pair<int, int>> many(128, {1, 4096});
  UbatchLoad decode = requests({});
  for (const auto& [q, s] : many) {
    decode.query_start_loc.push_back(decode.query_start_loc.back() + q);
    decode.seq_lens.push_back(s);
  }
  decode.token_end = decode.padded = 128;
  const std::vector<KernelWork> second = op_work(OpKind::A1, context(v3, decode));
  const KernelWork* core = find(second, "attention");
  REQUIRE(core != nullptr);
  CHECK(core->kind == KernelWork::Kind::DecodeCore);
  CHECK(core->flops == 128.0 * 4096 * 128 * 2 * 1088);
  CHECK(core->weight_bytes == 128.0 * 4096 * 1152);
  CHECK(find(second, "v up") != nullptr);
  const std::vector<KernelWork> first = op_work(OpKind::A0, context(v3, decode));
  CHECK(find(first, "absorb") != nullptr);
  CHECK(find(first, "kv_b") == nullptr);

  const UbatchLoad prompt = requests({{4096, 4096}});
  const std::vector<KernelWork> prefill = op_work(OpKind::A1, context(v3, prompt));
  CHECK(find(prefill, "attention")->flops == 4096.0 * 4097 / 2 * 128 * 2 * 320);
  CHECK(find(prefill, "v up") == nullptr);
  CHECK(find(op_work(OpKind::A0, context(v3, prompt)), "kv_b")->m == 4096);
  // A later chunk needs keys of the tokens before it too.
  CHECK(find(op_work(OpKind::A0, context(v3, requests({{1024, 5120}}))), "kv_b")->m == 5120);
}

TEST_CASE("work: sparse attention caps the core, not the indexer") {
  const ModelShape v32 = model_preset("deepseek-v3.2");
  const UbatchLoad load = requests({{1, 8192}, {1, 1000}});
  OpContext c = context(v32, load);
  c.sparse = sparse_attention_load(load, v32.attention.index_top_k);
  const std::vector<KernelWork> first = op_work(OpKind::A0, c), second = op_work(OpKind::A1, c);
  CHECK(find(first, "index scores")->flops == 9192.0 * 64 * 128 * 2);
  CHECK(find(second, "attention")->flops == (2048.0 + 1000) * 128 * 2 * 1088);
}

TEST_CASE("work: experts without rows read no weights, and the gate belongs to MoE layers") {
  const ModelShape v3 = model_preset("deepseek-v3");
  OpContext c = context(v3, requests({{1, 10}}));
  const std::vector<double> rows = {4, 0, 2};
  c.expert_rows = rows;
  c.expert_major = true;
  const std::vector<KernelWork> mlp = op_work(OpKind::MLP, c);
  REQUIRE(mlp.size() == 3);
  CHECK(mlp[0].kind == KernelWork::Kind::MaskedGemm);
  CHECK(mlp[0].flops == 6.0 * 2 * 7168 * 4096);
  CHECK(mlp[0].weight_bytes == doctest::Approx(2.0 * 7168 * 4096).epsilon(0.001));
  c.expert_major = false;
  c.received = 5;
  const std::vector<KernelWork> contiguous = op_work(OpKind::MLP, c);
  CHECK(contiguous.size() == 6);
  CHECK(contiguous[2].kind == KernelWork::Kind::GroupedGemm);
  CHECK(find(op_work(OpKind::A1, c), "router") != nullptr);
  c.moe_layer = false;
  CHECK(find(op_work(OpKind::A1, c), "router") == nullptr);
  c.expert_rows = {};
  CHECK(op_work(OpKind::MLP, c).empty());
  CHECK(op_work(OpKind::D, c).empty());
}

TEST_CASE("work: tensor parallelism cuts heads and widths, not the latent projections") {
  const ModelShape v3 = model_preset("deepseek-v3");
  OpContext c = context(v3, requests({{1, 4096}}));
  c.tensor_parallel = 4;
  const std::vector<KernelWork> first = op_work(OpKind::A0, c);
  CHECK(find(first, "q_b")->n == 24576.0 / 4);
  CHECK(find(first, "qkv_a")->n == 2112);
  CHECK(first.front().kind == KernelWork::Kind::TensorGather);
  CHECK(find(op_work(OpKind::A1, c), "reduce o") != nullptr);
  CHECK(find(op_work(OpKind::FFN, c), "gate, up")->n == 2 * 18432.0 / 4);
  // Qwen3 has 4 key-value heads: 8 GPUs hold a copy each.
  const ModelShape qwen = model_preset("qwen3-235b-a22b");
  OpContext q = context(qwen, requests({{1, 100}}));
  q.tensor_parallel = 8;
  CHECK(find(op_work(OpKind::A0, q), "qkv")->n == (8 + 2) * 128);
}
