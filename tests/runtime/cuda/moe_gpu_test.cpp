// Real kernels under the schedules: the same bits however a plan is run, and whatever the schedule's order.
#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <optional>

#include "runtime/cuda/moe_table.h"
#include "sim/base/error.h"
#include "tests/runtime/cuda/gpu_rig.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

/// A small model of the DeepSeek kind (MLA, a shared expert, one dense layer) or of the Qwen kind (GQA).
ModelShape small_model(AttentionKind kind) {
  ModelShape m;
  m.name = "small";
  m.layers = 4;
  m.dense_layers = 1;
  m.hidden = 512;
  m.attention.kind = kind;
  m.attention.heads = 16;
  m.attention.kv_heads = kind == AttentionKind::Mla ? 16 : 4;
  m.attention.head_dim = 128;
  m.attention.q_lora_rank = kind == AttentionKind::Mla ? 384 : 0;
  m.attention.kv_lora_rank = kind == AttentionKind::Mla ? 512 : 0;
  m.attention.qk_nope_head_dim = 128;
  m.attention.qk_rope_head_dim = 64;
  m.attention.v_head_dim = 128;
  m.moe.routed_experts = 16;
  m.moe.top_k = 4;
  m.moe.intermediate = 256;
  m.moe.shared_experts = 1;
  m.moe.shared_intermediate = 256;
  m.dense_intermediate = 1024;
  m.vocab = 2048;
  return m;
}

Plan small_moe_plan(const std::string& schedule, Transport transport, int ranks, AttentionKind kind) {
  ScheduleSpec spec;
  spec.shape = small_model(kind);
  spec.world = {ranks, ranks};
  spec.transport = transport;
  spec.ubatches = 2;
  spec.embed_and_head = true;
  Load load;
  for (int u = 0; u < 2; ++u) {
    // 24 requests that decode with contexts of 100 and more, and padding to 32 rows.
    UbatchLoad ubatch{24 * u, 24 * (u + 1), 32, {0}, {}};
    for (int r = 0; r < 24; ++r) {
      ubatch.query_start_loc.push_back(r + 1);
      ubatch.seq_lens.push_back(100 + 37 * r);
    }
    load.ubatches.push_back(ubatch);
  }
  spec.loads = {load};
  spec.classes = {{{{0, ranks}}, 0}};
  Plan plan = make_plan(schedule, spec);
  plan.execution = Execution::Graph;
  return plan;
}

/// Runs the plan eagerly and by graph, twice each, on `gpus` GPUs; the hash all runs of rank 0 agree on.
std::uint64_t run_moe(const Plan& plan, int gpus, bool poison = false) {
  MoeOptions options;
  options.poison = poison;
  std::uint64_t result = 0;
  test::on_gpus(gpus, [&](HostGroup& group) {
    start_gpu(group.rank());
    NcclComm comm;
    if (plan.transport == Transport::Nccl || gpus > 1) comm = NcclComm::create(group);
    const int plan_rank = gpus < plan.world.ranks ? 0 : group.rank();
    RankReplay replay(group, plan, plan_rank, moe_source(comm ? &comm : nullptr, options), test::guard(),
                      test::on_gpu(group.rank()));
    const auto& table = dynamic_cast<const MoeTable&>(replay.source());
    if (group.rank() == 0) MESSAGE(table.how());
    replay.set_trace(TraceMode::Light);
    const std::uint64_t first = table.output_hash();
    for (int step = 0; step < 4; ++step) {
      const bool graph = step >= 2;
      if (step == 2) replay.capture({});
      graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
      CAPTURE(step);
      CHECK(table.output_hash() == first);
      const Linear& linear = replay.linear();
      const auto findings =
          check_order(plan, measured_trace(plan, {&linear}, {replay.light_times()}), {Ns{3'000}, Ns{}, false, 5});
      CHECK(findings.empty());
      for (const OrderFinding& finding : findings) MESSAGE(finding.text);
    }
    if (group.rank() == 0) result = first;
  });
  return result;
}

/// All (schedule, transport) pairs whose results must be the same bits. None sets SMs aside: that would change how
/// attention splits its keys and which kernels cuBLAS picks.
void check_same_bits(const std::vector<std::pair<std::string, Transport>>& pairs, int ranks, int gpus,
                     AttentionKind kind) {
  std::optional<std::uint64_t> expected;
  for (const auto& [schedule, transport] : pairs) {
    const std::string name = schedule + " over " + std::string(transport_info(transport).name);
    CAPTURE(name);
    const std::uint64_t hash = run_moe(small_moe_plan(schedule, transport, ranks, kind), gpus);
    MESSAGE(name << ": " << hash);
    if (!expected) expected = hash;
    CHECK(hash == *expected);
  }
}

const std::vector<std::pair<std::string, Transport>> kHighThroughput{{"vllm-ht", Transport::LsaHt},
                                                                     {"sglang-prefill", Transport::LsaHt},
                                                                     {"deepseek-prefill", Transport::LsaHt},
                                                                     {"vllm-ht", Transport::CopyEngine},
                                                                     {"vllm-ll", Transport::CopyEngine}};
const std::vector<std::pair<std::string, Transport>> kLowLatency{{"vllm-ll", Transport::LsaLl},
                                                                 {"sglang-decode", Transport::LsaLl}};

}  // namespace

TEST_CASE("moe one: one rank, every schedule and transport of a class gives the same bits, eager and by graph") {
  for (const AttentionKind kind : {AttentionKind::Mla, AttentionKind::Gqa}) {
    check_same_bits(kHighThroughput, 1, 1, kind);
    check_same_bits(kLowLatency, 1, 1, kind);
  }
}

TEST_CASE("moe one: poisoning what is written anew changes nothing") {
  for (const auto& [schedule, transport] : {kHighThroughput[0], kLowLatency[0]}) {
    const Plan plan = small_moe_plan(schedule, transport, 1, AttentionKind::Mla);
    CHECK(run_moe(plan, 1, true) == run_moe(plan, 1, false));
  }
}

TEST_CASE("moe one: a captured step replayed 1000 times gives the same bits every time") {
  for (const auto& [schedule, transport] : {kHighThroughput[0], kLowLatency[0]}) {
    const Plan plan = small_moe_plan(schedule, transport, 1, AttentionKind::Mla);
    test::on_gpus(1, [&](HostGroup& group) {
      RankReplay replay(group, plan, 0, moe_source(nullptr, {}), test::guard(), test::on_gpu(0));
      const auto& table = dynamic_cast<const MoeTable&>(replay.source());
      const std::uint64_t eager = table.output_hash();
      replay.capture({});
      int differing = 0;
      for (int step = 0; step < 1000; ++step) {
        CHECK(replay.run_graph({}));
        differing += table.output_hash() == eager ? 0 : 1;
      }
      CHECK(differing == 0);
    });
  }
}

TEST_CASE("moe one: peers played by the GPU itself") {
  check_same_bits(kHighThroughput, 4, 1, AttentionKind::Mla);
  check_same_bits(kLowLatency, 4, 1, AttentionKind::Mla);
}

TEST_CASE("moe two: two ranks on two GPUs, and four played by two") {
  if (test::gpu_count() < 2) {
    MESSAGE("skipped: one GPU");
    return;
  }
  auto with_nccl = kHighThroughput;
  with_nccl.emplace_back("vllm-ht", Transport::Nccl);
  check_same_bits(with_nccl, 2, 2, AttentionKind::Mla);
  check_same_bits(kLowLatency, 2, 2, AttentionKind::Gqa);
  check_same_bits(kHighThroughput, 4, 2, AttentionKind::Gqa);
  check_same_bits(kLowLatency, 4, 2, AttentionKind::Mla);
}

TEST_CASE("moe one: what the kernels cannot run is refused with the reason") {
  const auto refused = [](const Plan& plan) {
    test::on_gpus(1, [&](HostGroup& group) {
      RankReplay replay(group, plan, 0, moe_source(nullptr, {}), test::guard(), test::on_gpu(0));
    });
  };
  CHECK_THROWS_AS(refused(small_moe_plan("vllm-ht", Transport::Ht, 1, AttentionKind::Mla)), InputError);
  CHECK_THROWS_AS(refused(small_moe_plan("vllm-ht", Transport::Nccl, 2, AttentionKind::Mla)), InputError);
  CHECK_THROWS_AS(refused(make_plan("vllm-ll", fakes::small_spec(2, 2, Transport::LsaLl))), InputError);
}
