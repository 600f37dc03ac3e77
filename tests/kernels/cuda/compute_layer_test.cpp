// Whole ops, and a whole layer with a dispatch that only copies, against a layer in fp64.
#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/compute/ops.h"
#include "kernels/compute/pointwise.h"
#include "tests/kernels/cuda/compute_support.h"
#include "tests/kernels/cuda/layer_reference.h"

using namespace dbo;
using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

struct Request {
  int query, seq;
};

/// A small model and a batch: decode requests first, then prefill.
struct Setup {
  LayerDims dims;
  std::vector<Request> decode, prefill;
  int decode_query = 1;
  int padding = 0;
};

LayerDims small_dims(AttentionKind kind, int heads, int kv_heads, int q_lora) {
  LayerDims d;
  d.hidden = 256;
  d.attention.kind = kind;
  d.attention.heads = heads;
  d.attention.kv_heads = kv_heads;
  d.attention.head_dim = 128;
  d.attention.q_lora_rank = q_lora;
  d.attention.kv_lora_rank = 512;
  d.attention.qk_nope_head_dim = 128;
  d.attention.qk_rope_head_dim = 64;
  d.attention.v_head_dim = 128;
  d.attention.qk_norm = kind == AttentionKind::Gqa;
  d.attention.qkv_bias = kind == AttentionKind::Gqa;
  d.moe.routed_experts = 16;
  d.moe.top_k = 3;
  d.moe.intermediate = 72;
  d.moe.shared_experts = 1;
  d.moe.shared_intermediate = 136;
  d.moe.groups = 4;
  d.moe.group_top_k = 2;
  d.moe.scoring = kind == AttentionKind::Mla ? Scoring::Sigmoid : Scoring::Softmax;
  d.moe.scaling = 2.5;
  d.experts_per_rank = 16;
  d.dense_intermediate = 200;
  d.vocab = 1000;
  d.router_bias = kind == AttentionKind::Mla;
  return d;
}

/// A width that e4m3 can have, and that its blocks of 128 do not divide.
LayerDims with_fp8_experts(LayerDims dims) {
  dims.fp8_experts = true;
  dims.moe.intermediate = 144;
  return dims;
}

/// Everything on the device for one layer and one ubatch, with the ops issued one by one.
class LayerRun {
 public:
  explicit LayerRun(const Setup& s)
      : setup(s),
        dims(s.dims),
        layout(weight_layout(s.dims, WeightSet::MoeLayer)),
        host(layout, kSeed, kFirstExpert),
        paged(lens(s), 3) {
    REQUIRE(find_unsupported(dims) == nullptr);
    scratch = Device<unsigned char>(kDenseScratchBytes);
    DBO_TEST_CUDA(create_op_context(scratch.get(), context));
    weight_memory = Device<unsigned char>(z(layout.bytes));
    DBO_TEST_CUDA(launch_fill_weights(layout, weight_memory.get(), kSeed, kFirstExpert, stream.get()));
    weights = place_weights(layout, weight_memory.get());
    make_batch();
    make_buffers();
  }
  ~LayerRun() { destroy_op_context(context); }

  static constexpr std::uint64_t kSeed = 99;
  static constexpr int kFirstExpert = 32;

  void reset() const {
    copy_to_device(buffers.residual, residual_host.data(), residual_host.size() * 2);
    copy_to_device(k_cache.get(), k_cache_host.data(), k_cache_host.size() * 2);
    if (!v_cache_host.empty()) {
      copy_to_device(v_cache.get(), v_cache_host.data(), v_cache_host.size() * 2);
    }
  }

  cudaError_t a0(bool with_adds) {
    A0Args a;
    a.dims = &dims;
    a.weights = weights;
    a.buffers = buffers;
    a.scratch = a0_scratch;
    a.batch = batch;
    a.cache = cache;
    a.rope = rope.get();
    if (with_adds) {
      a.add[0] = buffers.routed;
      a.add[1] = buffers.shared;
    }
    return launch_a0(context, a, stream.get());
  }
  cudaError_t a1() {
    A1Args a;
    a.dims = &dims;
    a.weights = weights;
    a.buffers = buffers;
    a.scratch = a1_scratch;
    a.batch = batch;
    a.cache = cache;
    a.plan_expert = plan_expert.get();
    return launch_a1(context, a, stream.get());
  }
  cudaError_t shared() {
    SwiGluBlockArgs a;
    a.dims = &dims;
    a.up = weights[Tensor::SharedUp];
    a.down = weights[Tensor::SharedDown];
    a.width = dims.moe.shared_intermediate;
    a.in = buffers.normed;
    a.out = buffers.shared;
    a.scratch = swiglu_scratch;
    a.tokens = batch.tokens;
    return launch_swiglu_block(context, a, stream.get());
  }
  /// Dispatch on one rank is a copy: rows in the order of tokens.
  cudaError_t rank_major_mlp(Device<unsigned char>& memory, void* out, std::uint32_t* sm_ids = nullptr, int sms = 0) {
    MoeDims moe = moe_dims();
    Carver dry(nullptr);
    (void)carve_mlp(dims, moe, most_rows(moe), dry);
    if (memory.size() == 0) memory = Device<unsigned char>(z(dry.used()));
    Carver carver(memory.get());
    MlpArgs m;
    m.dims = &dims;
    m.weights = weights;
    m.moe = moe;
    m.rank_major.rows = buffers.normed;
    m.rank_major.expert = buffers.expert;
    m.rank_major.weight = buffers.weight;
    m.rank_major.count = token_count.get();
    m.out = out;
    m.scratch = carve_mlp(dims, moe, most_rows(moe), carver);
    m.max_rows = most_rows(moe);
    const int mean = batch.tokens * dims.moe.top_k / dims.experts_per_rank;
    m.choice =
        choose_mlp(std::vector<std::int32_t>(z(dims.experts_per_rank), mean), dims.hidden, dims.moe.intermediate,
                   sms > 0 ? sms : context.device_sms, dims.fp8_experts ? ElementType::Fp8E4m3 : ElementType::Bf16);
    m.sm_ids = sm_ids;
    m.sms = sms;
    return launch_mlp(context, m, stream.get());
  }
  MoeDims moe_dims() const {
    MoeDims moe;
    moe.experts_per_rank = dims.experts_per_rank;
    moe.top_k = dims.moe.top_k;
    moe.hidden = dims.hidden;
    moe.max_tokens = batch.tokens;
    return moe;
  }

  Vec read(const void* p, std::int64_t elements) const {
    std::vector<Bf16> v(z(elements));
    DBO_TEST_CUDA(cudaMemcpy(v.data(), p, v.size() * 2, cudaMemcpyDeviceToHost));
    return widen(v);
  }

  Setup setup;
  LayerDims dims;
  WeightLayout layout;
  HostWeights host;
  Paged paged;
  TestStream stream;
  OpContext context;
  Device<unsigned char> scratch, weight_memory, buffer_memory, scratch_memory;
  LayerWeights weights;
  UbatchBuffers buffers;
  A0Scratch a0_scratch;
  A1Scratch a1_scratch;
  SwiGluScratch swiglu_scratch;
  OpBatch batch;
  KvCache cache;
  Device<Bf16> k_cache, v_cache;
  Device<float> rope;
  Device<std::int32_t> positions, slots, seq_lens, prefill_lens, table, prefill_table, query_start, kv_start,
      plan_expert, token_count;
  std::vector<Bf16> residual_host, k_cache_host, v_cache_host;
  std::vector<std::int32_t> positions_host, request_of, plan_host;

 private:
  static std::vector<std::int32_t> lens(const Setup& s) {
    std::vector<std::int32_t> v;
    for (const Request& r : s.decode) v.push_back(r.seq);
    for (const Request& r : s.prefill) v.push_back(r.seq);
    return v;
  }

  void make_batch() {
    std::vector<std::int32_t> slot, starts{0}, kv_starts{0};
    const auto add = [&](int request, const Request& r) {
      for (int i = 0; i < r.query; ++i) {
        const int position = r.seq - r.query + i;
        positions_host.push_back(position);
        request_of.push_back(request);
        slot.push_back(static_cast<std::int32_t>(paged.row(request, position)));
      }
    };
    int request = 0, blocks = 0;
    for (const Request& r : setup.decode) add(request++, r);
    for (const Request& r : setup.prefill) {
      add(request++, r);
      starts.push_back(starts.back() + r.query);
      kv_starts.push_back(kv_starts.back() + r.seq);
      blocks += (r.query + 127) / 128;
    }
    for (int i = 0; i < setup.padding; ++i) {
      positions_host.push_back(0);
      request_of.push_back(-1);
      slot.push_back(-1);
    }
    const auto decodes = setup.decode.size();
    positions = Device<std::int32_t>(positions_host);
    slots = Device<std::int32_t>(slot);
    seq_lens = Device<std::int32_t>(paged.seq_lens);
    table = Device<std::int32_t>(paged.block_table);
    query_start = Device<std::int32_t>(starts);
    kv_start = Device<std::int32_t>(kv_starts);
    batch.tokens = static_cast<int>(positions_host.size());
    batch.decode = {seq_lens.get(), table.get(), paged.max_pages, static_cast<int>(decodes), setup.decode_query};
    batch.prefill = {query_start.get(),
                     seq_lens.get() + decodes,
                     kv_start.get(),
                     table.get() + decodes * z(paged.max_pages),
                     paged.max_pages,
                     static_cast<int>(setup.prefill.size()),
                     blocks};
    batch.prefill_tokens = starts.back();
    batch.prefill_keys = kv_starts.back();
    batch.positions = positions.get();
    batch.slot_mapping = slots.get();
    for (int t = 0; t < batch.tokens; ++t) {
      // The plan's routing: three neighbours from a random expert on; expert 5 gets nobody.
      const int first = pick(12, z(t), 16);
      for (int k = 0; k < dims.moe.top_k; ++k) {
        const int e = (first + 5 * k) % 16;
        plan_host.push_back(e == 5 ? 6 : e);
      }
      for (int k = 1; k < dims.moe.top_k; ++k) {
        for (int j = 0; j < k; ++j) {
          auto& e = plan_host[z(t * dims.moe.top_k + k)];
          if (e == plan_host[z(t * dims.moe.top_k + j)]) e = 7;
        }
      }
    }
    plan_expert = Device<std::int32_t>(plan_host);
    token_count = Device<std::int32_t>(std::vector<std::int32_t>{batch.tokens});
  }

  void make_buffers() {
    const int tokens = batch.tokens;
    Carver dry(nullptr), dry_scratch(nullptr);
    (void)carve_ubatch(dims, tokens, batch.prefill_keys, dry);
    buffer_memory = Device<unsigned char>(z(dry.used()));
    Carver carver(buffer_memory.get());
    buffers = carve_ubatch(dims, tokens, batch.prefill_keys, carver);
    const A1Limits limits{tokens, batch.decode_tokens(), context.device_sms};
    const auto carve_all = [&](Carver& c) {
      a0_scratch = carve_a0(dims, tokens, c);
      a1_scratch = carve_a1(dims, limits, c);
      swiglu_scratch = carve_swiglu(tokens, std::max(dims.moe.shared_intermediate, dims.dense_intermediate), c);
    };
    carve_all(dry_scratch);
    scratch_memory = Device<unsigned char>(z(dry_scratch.used()));
    Carver scratch_carver(scratch_memory.get());
    carve_all(scratch_carver);
    residual_host = random_bf16(z(tokens) * z(dims.hidden), 55, 1.7);
    const bool mla = dims.attention.kind == AttentionKind::Mla;
    const std::int64_t row = mla ? 576 : dims.attention.kv_heads * 128;
    k_cache_host = random_bf16(z(paged.pages * 64 * row), 56, 1.7);
    if (!mla) v_cache_host = random_bf16(k_cache_host.size(), 57, 1.7);
    k_cache = Device<Bf16>(k_cache_host);
    if (!mla) v_cache = Device<Bf16>(v_cache_host);
    cache = {k_cache.get(), v_cache.get(), paged.pages};
    rope = Device<float>(std::size_t{4096} * 128);
    DBO_TEST_CUDA(launch_rope_table({rope.get(), 4096, mla ? 64 : 128, 10000.0}, stream.get()));
    reset();
  }
};

/// The layer's input as the reference takes it.
LayerInput input_of(const LayerRun& run) {
  LayerInput in;
  in.x = widen(run.residual_host);
  in.positions = run.positions_host;
  in.request_of = run.request_of;
  in.cache_row = [&paged = run.paged](int request, int key) { return paged.row(request, key); };
  in.cache_k = widen(run.k_cache_host);
  in.cache_v = widen(run.v_cache_host);
  return in;
}

/// The routed experts' sum, with the weights that the router gave.
Vec reference_experts(const LayerRun& run, const Vec& normed, const std::vector<float>& weight) {
  const LayerDims& d = run.dims;
  Vec out(normed.size());
  for (int t = 0; t < run.batch.tokens; ++t) {
    const Vec x(normed.begin() + std::int64_t{t} * d.hidden, normed.begin() + std::int64_t{t + 1} * d.hidden);
    for (int k = 0; k < d.moe.top_k; ++k) {
      const std::size_t at = z(t * d.moe.top_k + k);
      const Vec y = swiglu_block(x, run.host[Tensor::ExpertUp], run.host[Tensor::ExpertDown], d.hidden,
                                 d.moe.intermediate, run.plan_host[at]);
      for (int i = 0; i < d.hidden; ++i)
        out[z(std::int64_t{t} * d.hidden + i)] += static_cast<double>(weight[at]) * y[z(i)];
    }
  }
  return out;
}

/// `routed_bound`: of what the experts add. Each step rounds activations to bf16 (2^-9), a handful of steps; e4m3 is
/// off by 2^-5 on average, for rows and again for what SwiGLU makes of them.
void check_layer(const std::string& what, const Setup& setup, double routed_bound = 2e-2) {
  LayerRun run(setup);
  const LayerDims& d = run.dims;
  const std::int64_t elements = std::int64_t{run.batch.tokens} * d.hidden;
  Device<unsigned char> mlp_memory;
  const auto layer = [&] {
    DBO_TEST_CUDA(run.a0(false));
    DBO_TEST_CUDA(run.a1());
    DBO_TEST_CUDA(run.rank_major_mlp(mlp_memory, run.buffers.routed));
    DBO_TEST_CUDA(run.shared());
  };
  layer();
  run.stream.wait();

  const AttentionOutput ref = reference_attention(d, run.host, input_of(run));
  // Each step rounds activations to bf16 (2^-9): a handful of steps apart, a percent is ample and a wrong term is not.
  const std::int64_t cache_elements = static_cast<std::int64_t>(run.k_cache_host.size());
  check_close(what + ": key cache", run.read(run.cache.k, cache_elements), ref.cache_k, 1e-2);
  if (!ref.cache_v.empty())
    check_close(what + ": value cache", run.read(run.cache.v, cache_elements), ref.cache_v, 1e-2);
  check_close(what + ": attention", run.read(run.a1_scratch.attention, static_cast<std::int64_t>(ref.attention.size())),
              ref.attention, 2e-2);
  check_close(what + ": residual", run.read(run.buffers.residual, elements), ref.residual, 1e-2);
  check_close(what + ": normed", run.read(run.buffers.normed, elements), ref.normed, 1e-2);

  std::vector<std::int32_t> expert(run.plan_host.size());
  std::vector<float> weight(expert.size());
  DBO_TEST_CUDA(cudaMemcpy(expert.data(), run.buffers.expert, expert.size() * 4, cudaMemcpyDeviceToHost));
  DBO_TEST_CUDA(cudaMemcpy(weight.data(), run.buffers.weight, weight.size() * 4, cudaMemcpyDeviceToHost));
  CHECK(expert == run.plan_host);
  const Vec routed = reference_experts(run, ref.normed, weight);
  const Vec shared = swiglu_block(ref.normed, run.host[Tensor::SharedUp], run.host[Tensor::SharedDown], d.hidden,
                                  d.moe.shared_intermediate);
  check_close(what + ": routed experts", run.read(run.buffers.routed, elements), routed, routed_bound);
  check_close(what + ": shared expert", run.read(run.buffers.shared, elements), shared, 2e-2);

  // The next layer's A0 adds both to the residual stream: the whole layer.
  DBO_TEST_CUDA(run.a0(true));
  run.stream.wait();
  check_close(what + ": the layer", run.read(run.buffers.residual, elements), plus(plus(ref.residual, routed), shared),
              routed_bound / 2);

  // The same bits again, eager and replayed.
  const Device<Bf16> result(z(elements));
  check_repeats(
      run.stream, result,
      [&] {
        layer();
        DBO_TEST_CUDA(run.a0(true));
        DBO_TEST_CUDA(cudaMemcpyAsync(result.get(), run.buffers.residual, z(elements) * 2, cudaMemcpyDeviceToDevice,
                                      run.stream.get()));
      },
      [&] { run.reset(); });
}

}  // namespace

TEST_CASE("layer: MLA with a low-rank query, decode only") {
  check_layer("MLA decode", {small_dims(AttentionKind::Mla, 4, 4, 96), {{1, 1}, {1, 70}, {1, 200}}, {}, 1, 0});
}

TEST_CASE("layer: MLA without a low-rank query, decode and prefill mixed, with padding") {
  check_layer("MLA mixed",
              {small_dims(AttentionKind::Mla, 3, 3, 0), {{2, 40}, {2, 2}}, {{5, 5}, {30, 90}, {129, 140}}, 2, 3});
}

TEST_CASE("layer: GQA with norms and bias, decode and prefill mixed") {
  check_layer("GQA mixed",
              {small_dims(AttentionKind::Gqa, 8, 2, 0), {{1, 33}, {1, 1}, {1, 150}}, {{7, 7}, {60, 130}}, 1, 2});
}

TEST_CASE("layer: MLA with e4m3 experts, decode and prefill mixed") {
  check_layer(
      "MLA, e4m3 experts",
      {with_fp8_experts(small_dims(AttentionKind::Mla, 3, 3, 0)), {{1, 40}, {1, 2}}, {{30, 90}, {129, 140}}, 1, 3},
      8e-2);
}

namespace {

void check_expert_major(const LayerDims& dims, double bound) {
  LayerRun run({dims, {{1, 1}}, {}, 1, 0});
  const LayerDims& d = run.dims;
  MoeDims moe;
  moe.ranks = 3;
  moe.rank = 1;
  moe.experts_per_rank = d.experts_per_rank;
  moe.top_k = d.moe.top_k;
  moe.hidden = d.hidden;
  moe.max_tokens = 20;
  std::vector<std::int32_t> count;
  std::int64_t total = 0;
  for (int i = 0; i < moe.experts_per_rank * moe.ranks; ++i) {
    count.push_back(i / 3 == 4 ? 0 : pick(8, z(i), 21));
    total += count.back();
  }
  const std::int64_t slots = std::int64_t{moe.experts_per_rank} * moe.ranks * moe.max_tokens;
  const std::vector<Bf16> rows_host = random_bf16(z(slots * d.hidden), 4, 1.7);
  const Device<Bf16> rows(rows_host), out(z(slots * d.hidden));
  const Device<std::int32_t> counts(count);
  Carver dry(nullptr);
  (void)carve_mlp(d, moe, total, dry);
  const Device<unsigned char> memory(z(dry.used()));
  Carver carver(memory.get());
  MlpArgs m;
  m.dims = &d;
  m.weights = run.weights;
  m.moe = moe;
  m.expert_major.rows = rows.get();
  m.expert_major.count = counts.get();
  m.out = out.get();
  m.scratch = carve_mlp(d, moe, total, carver);
  m.max_rows = total;
  check_repeats(run.stream, out, [&] { DBO_TEST_CUDA(launch_mlp(run.context, m, run.stream.get())); });
  const std::vector<Bf16> got = out.read();
  Vec have, want;
  int touched = 0;
  for (int g = 0; g < moe.experts_per_rank * moe.ranks; ++g) {
    for (int s = 0; s < moe.max_tokens; ++s) {
      const std::int64_t at = (std::int64_t{g} * moe.max_tokens + s) * d.hidden;
      if (s >= count[z(g)]) {
        for (int i = 0; i < d.hidden; ++i) touched += got[z(at + i)] != 0xffff;
        continue;
      }
      Vec x;
      for (int i = 0; i < d.hidden; ++i) {
        x.push_back(static_cast<double>(to_float(rows_host[z(at + i)])));
        have.push_back(static_cast<double>(to_float(got[z(at + i)])));
      }
      const Vec y = swiglu_block(x, run.host[Tensor::ExpertUp], run.host[Tensor::ExpertDown], d.hidden,
                                 d.moe.intermediate, g / moe.ranks);
      want.insert(want.end(), y.begin(), y.end());
    }
  }
  CHECK(touched == 0);
  check_close(dims.fp8_experts ? "expert-major MLP, e4m3" : "expert-major MLP", have, want, bound);
}

}  // namespace

TEST_CASE("layer: the MLP of an expert-major view leaves unweighted rows in their slots") {
  const LayerDims dims = small_dims(AttentionKind::Gqa, 2, 1, 0);
  check_expert_major(dims, 1e-2);
  check_expert_major(with_fp8_experts(dims), 8e-2);
}

TEST_CASE("layer: the MLP uses exactly the SMs it is given") {
  LayerRun run({small_dims(AttentionKind::Gqa, 2, 1, 0), {{1, 1}}, {{400, 400}}, 1, 0});
  run.reset();
  DBO_TEST_CUDA(run.a0(false));
  DBO_TEST_CUDA(run.a1());
  for (const int sms : {132, 112, 24}) {
    const Device<std::uint32_t> ids(z(2 * sms));
    Device<unsigned char> memory;
    DBO_TEST_CUDA(run.rank_major_mlp(memory, run.buffers.routed, ids.get(), sms));
    run.stream.wait();
    // Both products, each with a block on each of that many SMs.
    const std::vector<std::uint32_t> got = ids.read();
    for (const auto begin : {got.begin(), got.begin() + sms}) {
      const std::set<std::uint32_t> distinct(begin, begin + sms);
      CHECK(static_cast<int>(distinct.size()) == sms);
      CHECK(*distinct.rbegin() < static_cast<std::uint32_t>(run.context.device_sms));
    }
  }
}

TEST_CASE("layer: EMB, FFN and HEAD agree with fp64") {
  LayerRun run({small_dims(AttentionKind::Mla, 2, 2, 64), {{1, 1}, {1, 1}, {1, 1}}, {}, 1, 0});
  const LayerDims& d = run.dims;
  const WeightLayout dense_layout = weight_layout(d, WeightSet::DenseLayer),
                     model_layout = weight_layout(d, WeightSet::Model);
  const HostWeights dense_host(dense_layout, 5, 0), model_host(model_layout, 6, 0);
  const Device<unsigned char> dense_memory(z(dense_layout.bytes)), model_memory(z(model_layout.bytes));
  DBO_TEST_CUDA(launch_fill_weights(dense_layout, dense_memory.get(), 5, 0, run.stream.get()));
  DBO_TEST_CUDA(launch_fill_weights(model_layout, model_memory.get(), 6, 0, run.stream.get()));
  const LayerWeights dense = place_weights(dense_layout, dense_memory.get()),
                     model = place_weights(model_layout, model_memory.get());
  const Device<std::int32_t> ids(std::vector<std::int32_t>{999, 3, 0}), last(std::vector<std::int32_t>{2, 0});
  DBO_TEST_CUDA(
      launch_embed({model[Tensor::Embedding], ids.get(), run.buffers.residual, 3, d.hidden}, run.stream.get()));
  SwiGluBlockArgs ffn;
  ffn.dims = &d;
  ffn.up = dense[Tensor::DenseUp];
  ffn.down = dense[Tensor::DenseDown];
  ffn.width = d.dense_intermediate;
  ffn.in = run.buffers.residual;
  ffn.out = run.buffers.shared;
  ffn.scratch = run.swiglu_scratch;
  ffn.tokens = 3;
  DBO_TEST_CUDA(launch_swiglu_block(run.context, ffn, run.stream.get()));
  const Device<Bf16> normed(z(2 * d.hidden)), logits(z(2 * d.vocab));
  HeadArgs head;
  head.dims = &d;
  head.weights = model;
  head.residual = run.buffers.residual;
  head.add[0] = run.buffers.shared;
  head.row_index = last.get();
  head.rows = 2;
  head.normed = normed.get();
  head.logits = logits.get();
  DBO_TEST_CUDA(launch_head(run.context, head, run.stream.get()));
  run.stream.wait();
  Vec x;
  for (const int id : {999, 3, 0}) {
    const auto& table = model_host[Tensor::Embedding];
    x.insert(x.end(), table.begin() + std::int64_t{id} * d.hidden, table.begin() + std::int64_t{id + 1} * d.hidden);
  }
  const Vec f =
      swiglu_block(x, dense_host[Tensor::DenseUp], dense_host[Tensor::DenseDown], d.hidden, d.dense_intermediate);
  check_close("FFN", run.read(run.buffers.shared, 3 * d.hidden), f, 1e-2);
  const Vec sum = plus(x, f);
  Vec picked(sum.begin() + 2 * d.hidden, sum.end());
  picked.insert(picked.end(), sum.begin(), sum.begin() + d.hidden);
  check_close("HEAD", widen(logits.read()),
              multiply(norm(picked, model_host[Tensor::FinalNorm]), model_host[Tensor::Head], d.vocab, d.hidden), 1e-2);
}
