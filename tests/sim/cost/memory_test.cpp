#include "sim/cost/memory.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sim/model/presets.h"

using namespace dbo;

namespace {

Plan v3(int ranks, Transport transport) {
  Plan plan;
  plan.shape = model_preset("deepseek-v3");
  plan.world = {.ranks = ranks, .ranks_per_node = 8};
  plan.transport = transport;
  return plan;
}

UbatchLoad part(std::vector<std::int32_t> query_start_loc, std::vector<std::int32_t> seq_lens) {
  UbatchLoad load;
  load.token_end = load.padded = query_start_loc.back();
  load.query_start_loc = std::move(query_start_loc);
  load.seq_lens = std::move(seq_lens);
  return load;
}

double gb(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace

TEST_CASE("memory: DeepEP's buffers have their published sizes") {
  // Low latency, hidden 7168, 128 tokens: 1.91 GB for 256 experts, 2.15 GB for 288.
  Plan ll = v3(72, Transport::Ll);
  ll.routing.redundant = 32;
  CHECK(std::abs(gb(exchange_buffer_bytes(ll, 128)) - 2.15) < 0.01);
  CHECK(std::abs(gb(exchange_buffer_bytes(v3(64, Transport::Ll), 128)) - 1.91) < 0.01);
  // High throughput on one node, 20 SMs: 336 MB for 8 ranks, 84 for 2; 403 with 24 SMs.
  CHECK(std::abs(gb(exchange_buffer_bytes(v3(8, Transport::Ht), 4096)) - 0.336) < 0.001);
  CHECK(std::abs(gb(exchange_buffer_bytes(v3(2, Transport::Ht), 4096)) - 0.084) < 0.001);
  Plan more = v3(8, Transport::Ht);
  more.sm.comm = 24;
  CHECK(std::abs(gb(exchange_buffer_bytes(more, 4096)) - 0.403) < 0.001);
  // Fixed slots: two calls of 8 ranks of 1024 rows of 14,336 bytes.
  CHECK(exchange_buffer_bytes(v3(8, Transport::LsaHt), 1024) == 2LL * 8 * 1024 * 14336);
}

TEST_CASE("memory: weights are the experts a rank holds and everything else once") {
  const GpuSpec gpu = gpu_preset("h200-sxm");
  Plan plan = v3(32, Transport::Ht);
  plan.loads = {{{part({0, 1}, {4096})}}};
  const MemoryUse few = memory_use(plan, gpu, 0, 0);
  plan.world.ranks = 64;
  const MemoryUse many = memory_use(plan, gpu, 0, 0);
  // 8 experts a layer against 4: 4 * 58 * 44.04 MB.
  CHECK(few.weights_bytes - many.weights_bytes == 4LL * 58 * 3 * 7168 * 2048);
  // Attention 61 * 187 MB and its absorbed copy, dense 3 * 396 MB, shared 58 * 44 MB, router, embeddings in bf16.
  CHECK(gb(few.weights_bytes) > 38);
  CHECK(gb(few.weights_bytes) < 43);
  CHECK(few.hbm_bytes == gpu.hbm_bytes);
  CHECK(few.fits());
}

TEST_CASE("memory: the cache holds every request once, cut ones too") {
  const GpuSpec gpu = gpu_preset("h200-sxm");
  Plan plan = v3(8, Transport::Ll);
  // Requests of 64, 96, 512 tokens; the last is cut: 507 after the first part.
  plan.loads = {{{part({0, 1, 2, 7}, {64, 96, 507}), part({0, 5, 6}, {512, 32})}}};
  CHECK(memory_use(plan, gpu, 0, 0).kv_cache_bytes == (64LL + 96 + 512 + 32) * 1152 * 61);
  // A window caps half of the layers of gpt-oss: 18 of 36 hold 128 tokens.
  plan.shape = model_preset("gpt-oss-120b");
  plan.loads = {{{part({0, 1}, {1000})}}};
  CHECK(memory_use(plan, gpu, 0, 0).kv_cache_bytes == 18LL * (1000 + 128) * 2048);
  plan.tensor_parallel = 4;
  CHECK(memory_use(plan, gpu, 0, 0).kv_cache_bytes == 18LL * (1000 + 128) * 2048 / 4);
}

TEST_CASE("memory: graphs and their twins count only where graphs run") {
  const GpuSpec gpu = gpu_preset("h200-sxm");
  Plan plan = v3(8, Transport::Ll);
  plan.loads = {{{part({0, 1}, {64})}}};
  CHECK(memory_use(plan, gpu, 51, 51).graph_bytes == 0);
  plan.execution = Execution::Graph;
  const MemoryUse use = memory_use(plan, gpu, 51, 51);
  CHECK(std::abs(static_cast<double>(use.twin_bytes) / (1 << 30) - 3.43) < 0.01);
  CHECK(use.total_bytes() > use.weights_bytes + use.twin_bytes);
}

TEST_CASE("memory: a model known by its layer counts alone has none") {
  Plan plan = v3(8, Transport::Ll);
  plan.shape = {};
  plan.shape.layers = 4;
  const MemoryUse use = memory_use(plan, gpu_preset("h200-sxm"), 1, 1);
  CHECK(use.total_bytes() == 0);
}
