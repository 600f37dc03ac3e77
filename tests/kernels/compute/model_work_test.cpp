// Our kernels do the work that the cost model prices: every op's operations are equal, and its bytes but for the list
// in kernels/compute/work.h.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/compute/work.h"
#include "sim/cost/work.h"
#include "sim/model/presets.h"

using namespace dbo;

namespace {

struct Request {
  int query, seq;
};

/// A batch as both sides describe it.
struct Batch {
  kernels::BatchLoad ours;
  AttentionLoad model;
  std::int64_t prompts = 0;

  explicit Batch(const std::vector<Request>& requests) {
    UbatchLoad load;
    load.query_start_loc.push_back(0);
    for (const Request& r : requests) {
      load.query_start_loc.push_back(load.query_start_loc.back() + r.query);
      load.seq_lens.push_back(r.seq);
      const bool decodes = r.query <= kDecodeQueries && (r.seq > r.query || r.query == 1);
      (decodes ? ours.decode : ours.prefill).add(r.query, r.seq);
      prompts += !decodes;
    }
    model = attention_load(load, 0);
  }
};

struct Total {
  std::int64_t flops = 0, bytes = 0;
};

Total total(const std::vector<KernelWork>& kernels) {
  double flops = 0, bytes = 0;
  for (const KernelWork& k : kernels) {
    flops += k.flops;
    bytes += k.weight_bytes + k.act_bytes;
  }
  return {static_cast<std::int64_t>(flops), static_cast<std::int64_t>(bytes)};
}

/// The preset with every precision bf16, as our kernels are.
ModelShape bf16(const char* preset) {
  ModelShape s = model_preset(preset);
  s.weights = s.expert_weights = s.kv_cache = s.dispatch = s.combine = Precision::Bf16;
  return s;
}

OpContext context(const ModelShape& shape, const Batch& batch) {
  OpContext c;
  c.shape = &shape;
  c.tokens = c.share_tokens = static_cast<double>(batch.ours.tokens());
  c.attention = batch.model;
  return c;
}

/// `difference` in elements of two bytes, ours minus the model's.
void check_equal(const std::string& what, const kernels::Work& ours, const Total& model, std::int64_t difference) {
  CAPTURE(what);
  CHECK(ours.flops == model.flops);
  CHECK(ours.bytes() - model.bytes == difference * 2);
}

const std::vector<std::vector<Request>> kBatches = {
    {{1, 4096}, {1, 1}, {1, 777}},              // decode
    {{3, 900}, {3, 3000}},                      // decode with draft tokens
    {{4096, 4096}},                             // one prompt
    {{1000, 1000}, {700, 5000}, {9, 9}},        // prompts, one behind a cached prefix
    {{1, 300}, {1, 4000}, {512, 2048}, {3, 3}}  // both
};
constexpr const char* kModels[] = {"deepseek-v2-lite", "deepseek-v3", "kimi-k2", "qwen3-30b-a3b", "qwen3-235b-a22b"};

}  // namespace

TEST_CASE("model work: attention ops equal the cost model's, for MLA and GQA, decode and prefill") {
  for (const char* name : kModels) {
    const ModelShape shape = bf16(name);
    const AttentionShape& a = shape.attention;
    const bool mla = a.kind == AttentionKind::Mla;
    const std::int64_t hidden = shape.hidden, heads = a.heads;
    for (std::size_t i = 0; i < kBatches.size(); ++i) {
      const Batch batch(kBatches[i]);
      const OpContext c = context(shape, batch);
      const std::string what = std::string(name) + ", batch " + std::to_string(i);
      const std::int64_t tokens = batch.ours.tokens(), keys = batch.ours.prefill.keys;

      for (const int adds : {0, 1, 2}) {
        std::int64_t difference = adds == 0 ? -2 * hidden * tokens : adds == 2 ? hidden * tokens : 0;
        if (mla) difference += -2 * 576 * tokens + 2 * 576 * keys - heads * 192 * keys;
        check_equal(what + ", A0 with " + std::to_string(adds) + " summands",
                    kernels::a0_work(a, hidden, batch.ours, adds), total(op_work(OpKind::A0, c)), difference);
      }
      std::int64_t difference = tokens * (shape.moe.routed_experts + 4 * shape.moe.top_k);
      if (mla) difference += -batch.ours.decode.tokens * heads * 512 * 3 / 2 - keys * (heads - 1) * 64;
      check_equal(what + ", A1", kernels::a1_work(a, shape.moe, hidden, batch.ours), total(op_work(OpKind::A1, c)),
                  difference);
      OpContext dense = c;
      dense.moe_layer = false;
      check_equal(what + ", A1 of a dense layer", kernels::a1_work(a, MoeShape{}, hidden, batch.ours),
                  total(op_work(OpKind::A1, dense)),
                  difference - tokens * (shape.moe.routed_experts + 4 * shape.moe.top_k));

      const std::int64_t logits = batch.ours.decode.tokens + batch.prompts;
      for (const int adds : {0, 1, 2}) {
        check_equal(what + ", HEAD", kernels::head_work(logits, hidden, shape.vocab, adds),
                    total(op_work(OpKind::HEAD, c)), (2 + adds) * hidden * logits - 4 * hidden * tokens);
      }
    }
  }
}

TEST_CASE("model work: the experts' ops equal the cost model's, for both layouts of received rows") {
  const std::vector<std::vector<double>> counts = {{64, 64, 64, 64}, {1, 0, 300, 4096}, {0, 0, 0, 7}};
  for (const char* name : kModels) {
    const ModelShape shape = bf16(name);
    const std::int64_t hidden = shape.hidden, width = shape.moe.intermediate;
    for (const std::vector<double>& rows_of : counts) {
      std::int64_t rows = 0, used = 0;
      for (const double r : rows_of) {
        rows += static_cast<std::int64_t>(r);
        used += r > 0;
      }
      OpContext c;
      c.shape = &shape;
      c.expert_rows = rows_of;
      c.received = static_cast<double>((rows + 1) / 2);
      check_equal(std::string(name) + ", MLP rank-major",
                  kernels::mlp_work(shape.moe, hidden, (rows + 1) / 2, rows, used, true),
                  total(op_work(OpKind::MLP, c)), -4 * width * rows);
      c.expert_major = true;
      check_equal(std::string(name) + ", MLP expert-major",
                  kernels::mlp_work(shape.moe, hidden, rows, rows, used, false), total(op_work(OpKind::MLP, c)),
                  (2 * hidden - 4 * width) * rows);
    }
  }
}

TEST_CASE("model work: e4m3 experts equal the cost model's when the dispatch is e4m3 too") {
  ModelShape shape = model_preset("deepseek-v3");
  REQUIRE(shape.expert_weights == Precision::Fp8);
  shape.dispatch = Precision::Fp8;
  const std::int64_t hidden = shape.hidden, width = shape.moe.intermediate;
  for (const std::vector<double>& rows_of : {std::vector<double>{64, 64, 64, 64}, {1, 0, 300, 4096}, {0, 0, 0, 7}}) {
    std::int64_t rows = 0, used = 0;
    for (const double r : rows_of) {
      rows += static_cast<std::int64_t>(r);
      used += r > 0;
    }
    OpContext c;
    c.shape = &shape;
    c.expert_rows = rows_of;
    c.received = static_cast<double>((rows + 1) / 2);
    check_equal("MLP rank-major", kernels::mlp_work(shape.moe, hidden, (rows + 1) / 2, rows, used, true, true),
                total(op_work(OpKind::MLP, c)), -2 * width * rows);
    c.expert_major = true;
    check_equal("MLP expert-major", kernels::mlp_work(shape.moe, hidden, rows, rows, used, false, true),
                total(op_work(OpKind::MLP, c)), (hidden + hidden / 32 - 2 * width) * rows);
  }
}

TEST_CASE("model work: shared expert, dense feed-forward and embedding equal the cost model's") {
  for (const char* name : kModels) {
    const ModelShape shape = bf16(name);
    for (const std::vector<Request>& requests : kBatches) {
      const Batch batch(requests);
      const OpContext c = context(shape, batch);
      const std::int64_t tokens = batch.ours.tokens(), hidden = shape.hidden;
      if (shape.moe.shared_experts > 0) {
        check_equal(std::string(name) + ", S", kernels::swiglu_work(tokens, hidden, shape.moe.shared_intermediate),
                    total(op_work(OpKind::S, c)), 0);
      }
      check_equal(std::string(name) + ", FFN", kernels::swiglu_work(tokens, hidden, shape.dense_intermediate),
                  total(op_work(OpKind::FFN, c)), 0);
      check_equal(std::string(name) + ", EMB", kernels::embed_work(tokens, hidden), total(op_work(OpKind::EMB, c)), 0);
    }
  }
}
