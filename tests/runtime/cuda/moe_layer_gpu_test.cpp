// MoE layers of a replay against a layer in fp64: every transport, split and un-split, on one GPU and on two, with
// ranks that are there and with played ones. Every rank has data of its own, so that a row from the wrong rank is
// found.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "runtime/cuda/check.h"
#include "runtime/cuda/moe_table.h"
#include "runtime/moe_batch.h"
#include "sim/plan/routing.h"
#include "tests/kernels/cuda/compute_support.h"
#include "tests/kernels/cuda/layer_reference.h"
#include "tests/runtime/cuda/gpu_rig.h"

using namespace dbo;
using namespace dbo::runtime;
using namespace dbo::compute_test;

namespace {

constexpr int kLayers = 2;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Widths that no tile divides, but the blocks of the wire's scales do.
ModelShape odd_model(AttentionKind kind) {
  const bool mla = kind == AttentionKind::Mla;
  ModelShape m;
  m.name = "odd";
  m.layers = kLayers;
  m.hidden = 384;
  m.attention.kind = kind;
  m.attention.heads = mla ? 5 : 6;
  m.attention.kv_heads = mla ? 5 : 2;
  m.attention.head_dim = 128;
  m.attention.q_lora_rank = mla ? 96 : 0;
  m.attention.kv_lora_rank = mla ? 512 : 0;
  m.attention.qk_nope_head_dim = 128;
  m.attention.qk_rope_head_dim = 64;
  m.attention.v_head_dim = 128;
  m.attention.qk_norm = !mla;
  m.attention.qkv_bias = !mla;
  m.moe.routed_experts = 16;
  m.moe.top_k = 3;
  m.moe.intermediate = 144;
  m.moe.shared_experts = 1;
  m.moe.shared_intermediate = 72;
  m.moe.scaling = 1.5;
  m.vocab = 1000;
  return m;
}

struct Request {
  std::int32_t query, seq;
};

/// A rank's batch and where a split step cuts it.
struct Scene {
  std::string name;
  ModelShape model;
  std::vector<Request> requests;
  std::int64_t cut;  ///< tokens of the first ubatch
  std::int64_t padding;
  double routed_bound = 2e-2;  ///< each step rounds to bf16 (2^-9); e4m3 is off by 2^-5 on average

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const Request& r : requests) sum += r.query;
    return sum;
  }
  /// Tokens [begin, end) of the batch; a request that reaches past them is cut.
  UbatchLoad part(std::int64_t begin, std::int64_t end) const {
    UbatchLoad load{begin, end, end - begin + padding, {0}, {}};
    std::int64_t first = 0;
    for (const Request& r : requests) {
      const std::int64_t from = std::max(begin, first), to = std::min(end, first + r.query);
      if (from < to) {
        load.query_start_loc.push_back(static_cast<std::int32_t>(to - begin));
        load.seq_lens.push_back(r.seq - r.query + static_cast<std::int32_t>(to - first));
      }
      first += r.query;
    }
    return load;
  }
};

std::vector<Scene> scenes() {
  std::vector<Scene> all;
  std::vector<Request> decode, mixed;
  for (int r = 0; r < 37; ++r) decode.push_back({1, 1 + 11 * r});
  for (int r = 0; r < 9; ++r) mixed.push_back({1, 30 + 23 * r});
  mixed.push_back({70, 170});  // cut after 31 of its tokens
  mixed.push_back({25, 25});
  all.push_back({"MLA decode", odd_model(AttentionKind::Mla), decode, 19, 3});
  all.push_back({"GQA mixed, a request cut", odd_model(AttentionKind::Gqa), mixed, 40, 2});
  all.push_back({"MLA mixed, fp8 dispatch", odd_model(AttentionKind::Mla), mixed, 40, 0, 8e-2});
  all.back().model.dispatch = Precision::Fp8;
  all.push_back({"GQA decode, e4m3 experts", odd_model(AttentionKind::Gqa), decode, 19, 3, 1e-1});
  all.back().model.expert_weights = Precision::Fp8;
  all.push_back({"MLA mixed, e4m3 experts and dispatch", odd_model(AttentionKind::Mla), mixed, 40, 0, 1e-1});
  all.back().model.expert_weights = all.back().model.dispatch = Precision::Fp8;
  return all;
}

Plan make_scene_plan(const Scene& scene, bool split, bool low_latency, Transport transport, int ranks) {
  ScheduleSpec spec;
  spec.shape = scene.model;
  spec.world = {ranks, ranks};
  spec.transport = transport;
  spec.ubatches = split ? 2 : 1;
  spec.embed_and_head = false;
  Load load;
  if (split) {
    load.ubatches = {scene.part(0, scene.cut), scene.part(scene.cut, scene.tokens())};
  } else {
    load.ubatches = {scene.part(0, scene.tokens())};
  }
  spec.loads = {load};
  spec.classes = {{{{0, ranks}}, 0}};
  Plan plan = split ? make_plan(low_latency ? "vllm-ll" : "vllm-ht", spec) : make_baseline(spec, low_latency, false);
  plan.execution = Execution::Graph;
  return plan;
}

std::uint64_t seed_of_gpu(int gpu) {
  return 40 + static_cast<std::uint64_t>(gpu);
}

/// Who holds what: rank r of the plan is GPU r where all ranks are there. Else every GPU is rank 0, and GPUs play the
/// other ranks of each other in pairs, with their own local experts.
struct Cast {
  int ranks, gpus;

  bool all_there() const { return ranks == gpus; }
  int plan_rank(int gpu) const { return all_there() ? gpu : 0; }
  int holder(int gpu, int expert, int experts_per_rank) const {
    const int rank = expert / experts_per_rank;
    if (all_there()) return rank;
    return rank == 0 || (gpu ^ 1) >= gpus ? gpu : gpu ^ 1;
  }
};

struct LayerOutputs {
  Vec residual, routed, shared;  ///< [tokens][hidden], of the last layer
};

/// The batch as one: rows, the requests they belong to, and their place in the cache.
LayerInput batch_of(const MoeBatch& rows) {
  LayerInput in;
  in.positions = rows.positions;
  for (int r = 0; r < rows.decode_requests; ++r) {
    in.request_of.insert(in.request_of.end(), z(rows.query_tokens), r);
  }
  for (int r = 0; r < rows.prefill_requests; ++r) {
    const int count = rows.query_start[z(r + 1)] - rows.query_start[z(r)];
    in.request_of.insert(in.request_of.end(), z(count), rows.decode_requests + r);
  }
  in.request_of.resize(rows.positions.size(), -1);
  in.cache_row = [&rows](int request, int key) {
    const int page = rows.block_table[z(std::int64_t{request} * rows.max_pages + key / kCachePageTokens)];
    return std::int64_t{page} * kCachePageTokens + key % kCachePageTokens;
  };
  return in;
}

Vec filled(std::uint64_t seed, std::int64_t first, std::int64_t count) {
  Vec v(z(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = kernels::uniform(seed, static_cast<std::uint64_t>(first + i));
    v[z(i)] = static_cast<double>(to_float(to_bf16(static_cast<double>(x))));
  }
  return v;
}

/// The routed experts' sum for rows of `normed`, as the plan routes them, with the weights of the experts that the gate
/// would have chosen. `held[g]`: weights as GPU g has them.
Vec route(const Scene& scene, const Cast& cast, int gpu, const Router& router, int layer, const MoeBatch& rows,
          const Vec& normed, const std::vector<HostWeights>& held) {
  const MoeShape& moe = scene.model.moe;
  const int hidden = scene.model.hidden, each = moe.routed_experts / cast.ranks;
  std::vector<int> chosen(z(scene.tokens() * moe.top_k));
  router.experts_of_tokens(cast.plan_rank(gpu), layer, {0, scene.tokens()}, chosen.data());
  const Vec logits = multiply(normed, held[z(gpu)][kernels::Tensor::Gate], moe.routed_experts, hidden);
  Vec out(normed.size());
  parallel(static_cast<std::int64_t>(rows.token_of_row.size()), [&](std::int64_t row) {
    const std::int64_t token = rows.token_of_row[z(row)];
    if (token < 0) return;
    const Vec weight = choose_experts(moe, logits.data() + row * moe.routed_experts, nullptr).weight;
    const Vec x(normed.begin() + row * hidden, normed.begin() + (row + 1) * hidden);
    for (int k = 0; k < moe.top_k; ++k) {
      const int expert = chosen[z(token * moe.top_k + k)];
      const HostWeights& w = held[z(cast.holder(gpu, expert, each))];
      const Vec y = swiglu_block(x, w[kernels::Tensor::ExpertUp], w[kernels::Tensor::ExpertDown], hidden,
                                 moe.intermediate, expert % each);
      for (int i = 0; i < hidden; ++i) out[z(row * hidden + i)] += weight[z(k)] * y[z(i)];
    }
  });
  return out;
}

/// All layers in fp64 for one GPU; rows of the result are tokens of the batch.
LayerOutputs reference(const Scene& scene, const Cast& cast, int gpu) {
  const kernels::LayerDims dims = kernels::layer_dims(scene.model, scene.model.moe.routed_experts / cast.ranks);
  const kernels::WeightLayout layout = kernels::weight_layout(dims, kernels::WeightSet::MoeLayer);
  const UbatchLoad whole = scene.part(0, scene.tokens());
  const RequestPages pages({whole});
  const MoeBatch rows = make_moe_batch(whole, pages);
  const Plan plan = make_scene_plan(scene, false, false, Transport::LsaHt, cast.ranks);
  const Router router(plan);
  const std::uint64_t seed = seed_of_gpu(gpu);
  const bool mla = dims.attention.kind == AttentionKind::Mla;
  const std::int64_t hidden = dims.hidden, cache_row = mla ? 576 : std::int64_t{dims.attention.kv_heads} * 128;
  LayerInput in = batch_of(rows);
  for (const std::int64_t token : rows.token_of_row) {
    const Vec row = filled(moe_initial_seed(seed), (token + 1) * hidden, hidden);
    in.x.insert(in.x.end(), row.begin(), row.end());
  }
  Vec residual, routed, shared;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<HostWeights> held;
    for (int g = 0; g < cast.gpus; ++g) {
      held.emplace_back(layout, moe_layer_seed(seed_of_gpu(g), layer), cast.plan_rank(g) * dims.experts_per_rank);
    }
    const HostWeights& own = held[z(gpu)];
    const std::int64_t elements = std::int64_t{pages.pages()} * kCachePageTokens * cache_row;
    in.cache_k = filled(moe_cache_seed(seed, layer), 0, elements);
    if (!mla) in.cache_v = filled(moe_cache_seed(seed, layer) + 1, 0, elements);
    const AttentionOutput attention = reference_attention(dims, own, in);
    residual = attention.residual;
    routed = route(scene, cast, gpu, router, layer, rows, attention.normed, held);
    shared = swiglu_block(attention.normed, own[kernels::Tensor::SharedUp], own[kernels::Tensor::SharedDown],
                          dims.hidden, dims.moe.shared_intermediate);
    in.x = plus(plus(residual, routed), shared);
  }
  LayerOutputs out;
  for (const auto& [from, to] : {std::pair{&residual, &out.residual}, {&routed, &out.routed}, {&shared, &out.shared}}) {
    to->resize(z(scene.tokens() * hidden));
    for (std::size_t row = 0; row < rows.token_of_row.size(); ++row) {
      if (rows.token_of_row[row] < 0) continue;
      std::copy_n(from->begin() + static_cast<std::int64_t>(row) * hidden, hidden,
                  to->begin() + rows.token_of_row[row] * hidden);
    }
  }
  return out;
}

/// What a replay's last step left in device memory, by token of the batch.
LayerOutputs read_outputs(const MoeMemory& memory, std::int64_t tokens) {
  const std::int64_t hidden = memory.dims().hidden;
  LayerOutputs out;
  for (Vec* v : {&out.residual, &out.routed, &out.shared}) v->assign(z(tokens * hidden), kNotANumber);
  for (int u = 0; u < memory.ubatches(); ++u) {
    const MoeUbatch& ubatch = memory.ubatch(u);
    const kernels::UbatchBuffers& b = ubatch.buffers;
    for (const auto& [from, to] :
         {std::pair{b.residual, &out.residual}, {b.routed, &out.routed}, {b.shared, &out.shared}}) {
      std::vector<Bf16> host(z(std::int64_t{ubatch.rows.tokens} * hidden));
      DBO_CUDA_CHECK(cudaMemcpy(host.data(), from, host.size() * 2, cudaMemcpyDeviceToHost));
      for (std::size_t row = 0; row < ubatch.rows.token_of_row.size(); ++row) {
        if (ubatch.rows.token_of_row[row] < 0) continue;
        for (std::int64_t i = 0; i < hidden; ++i) {
          (*to)[z(ubatch.rows.token_of_row[row] * hidden + i)] =
              static_cast<double>(to_float(host[z(static_cast<std::int64_t>(row) * hidden + i)]));
        }
      }
    }
  }
  return out;
}

/// Eager twice and by graph three times, all with the same bits, and those close to `want`.
void check_replay(HostGroup& group, NcclComm* comm, const Scene& scene, const Plan& plan, const Cast& cast,
                  const std::string& what, const LayerOutputs& want) {
  MoeOptions options;
  options.memory.seed = seed_of_gpu(group.rank());
  options.memory.whole = scene.part(0, scene.tokens());
  RankReplay replay(group, plan, cast.plan_rank(group.rank()), moe_source(comm, options), test::guard(),
                    test::on_gpu(group.rank()));
  const auto& table = dynamic_cast<const MoeTable&>(replay.source());
  const std::uint64_t first = table.output_hash();
  for (int step = 0; step < 5; ++step) {
    const bool graph = step >= 2;
    if (step == 2) replay.capture({});
    graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
    CHECK_MESSAGE(table.output_hash() == first,
                  what << ": other bits in " << (graph ? "graph" : "eager") << " step " << step);
  }
  const LayerOutputs got = read_outputs(table.memory(), scene.tokens());
  check_close(what + ": residual", got.residual, want.residual, scene.routed_bound / 2);
  check_close(what + ": routed experts", got.routed, want.routed, scene.routed_bound);
  check_close(what + ": shared expert", got.shared, want.shared, scene.routed_bound);
}

/// Every transport, un-split and split.
void check_scene(const Scene& scene, const Cast& cast) {
  std::vector<LayerOutputs> want;
  for (int gpu = 0; gpu < cast.gpus; ++gpu) want.push_back(reference(scene, cast, gpu));
  struct Way {
    Transport transport;
    bool low_latency;
  };
  std::vector<Way> ways{{Transport::LsaHt, false},
                        {Transport::LsaLl, true},
                        {Transport::CopyEngine, false},
                        {Transport::CopyEngine, true}};
  if (cast.all_there()) ways.push_back({Transport::Nccl, false});
  test::on_gpus(cast.gpus, [&](HostGroup& group) {
    start_gpu(group.rank());
    NcclComm comm;
    if (cast.gpus > 1 || cast.all_there()) comm = NcclComm::create(group);
    for (const Way& way : ways) {
      for (const bool split : {false, true}) {
        const std::string what = scene.name + ", " + std::to_string(cast.ranks) + " ranks, GPU " +
                                 std::to_string(group.rank()) + " of " + std::to_string(cast.gpus) + ", " +
                                 std::string(transport_info(way.transport).name) +
                                 (way.low_latency ? " low" : " high") + (split ? ", split" : ", un-split");
        const Plan plan = make_scene_plan(scene, split, way.low_latency, way.transport, cast.ranks);
        check_replay(group, comm ? &comm : nullptr, scene, plan, cast, what, want[z(group.rank())]);
      }
    }
  });
}

}  // namespace

TEST_CASE("moe layer one: every transport on one GPU equals the fp64 layer") {
  for (const Scene& scene : scenes()) check_scene(scene, {1, 1});
}

TEST_CASE("moe layer one: ranks that the GPU plays itself compute with its local experts") {
  for (const Scene& scene : scenes()) check_scene(scene, {4, 1});
}

TEST_CASE("moe layer two: every transport between two GPUs equals the fp64 layer") {
  if (test::gpu_count() < 2) {
    MESSAGE("skipped: one GPU");
    return;
  }
  for (const Scene& scene : scenes()) check_scene(scene, {2, 2});
}

TEST_CASE("moe layer two: ranks that two GPUs play for each other compute with the player's experts") {
  if (test::gpu_count() < 2) {
    MESSAGE("skipped: one GPU");
    return;
  }
  for (const Scene& scene : scenes()) check_scene(scene, {4, 2});
}
