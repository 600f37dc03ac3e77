#include "sim/cost/analytical.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/sched/schedule.h"

using namespace dbo;

namespace {

MachineSpec machine(std::string_view gpu = "h200-sxm") {
  return {.gpu = gpu_preset(gpu), .fabric = fabric_preset("cx7-400g"), .host = {}, .factors = nullptr};
}

UbatchLoad decode_load(int begin, int end, int seq, int padded = 0) {
  UbatchLoad load;
  load.token_begin = begin;
  load.token_end = end;
  load.padded = padded > 0 ? padded : end - begin;
  for (int t = begin; t <= end; ++t) load.query_start_loc.push_back(t - begin);
  load.seq_lens.assign(static_cast<std::size_t>(end - begin), seq);
  return load;
}

/// Decode on `ranks`, `tokens` requests a rank in `ubatches` equal parts.
ScheduleSpec decode_spec(int ranks, int tokens, int ubatches, Transport transport = Transport::Ll) {
  ScheduleSpec spec;
  spec.shape = model_preset("deepseek-v3");
  spec.world = {.ranks = ranks, .ranks_per_node = 8};
  spec.transport = transport;
  spec.ubatches = ubatches;
  Load load;
  for (int u = 0; u < ubatches; ++u)
    load.ubatches.push_back(decode_load(tokens * u / ubatches, tokens * (u + 1) / ubatches, 4096));
  spec.loads = {load};
  spec.classes = {{{{0, ranks}}, 0}};
  return spec;
}

Ns time_of(const Plan& plan, const CostTable& table, std::string_view op, int layer = 3, int ubatch = 0, int rank = 0) {
  const OpCost& cost = table.at(table.group_of_rank()[static_cast<std::size_t>(rank)], table.layer_class(layer), ubatch,
                                *plan.find_op(op));
  return cost.time + cost.wire;
}

}  // namespace

TEST_CASE("analytical: ranks with equal loads share a group, layers with equal ops a class") {
  const Plan plan = make_plan("vllm-ll", decode_spec(16, 128, 2));
  const CostTable table = analytical_costs(plan, machine());
  CHECK(table.groups() == 1);
  CHECK(table.layer_classes() == 2);
  CHECK(table.layer_class(2) != table.layer_class(3));
  CHECK(table.layer_class(3) == table.layer_class(60));
  CHECK(table.ubatches() == 2);
  // Dense layers have no gate.
  CHECK(time_of(plan, table, "A1", 0) < time_of(plan, table, "A1", 3));
  CHECK(time_of(plan, table, "FFN", 0) > Ns{0});
  CHECK(time_of(plan, table, "MLP", 3, 0) == time_of(plan, table, "MLP", 3, 1));
}

TEST_CASE("analytical: unequal loads and drawn routing tell ranks apart") {
  ScheduleSpec spec = decode_spec(16, 128, 2);
  spec.loads.push_back({{decode_load(0, 32, 4096), decode_load(32, 64, 4096)}});
  spec.classes = {{{{0, 8}}, 0}, {{{8, 16}}, 1}};
  const Plan unequal = make_plan("vllm-ll", spec);
  const CostTable table = analytical_costs(unequal, machine());
  CHECK(table.groups() == 2);
  CHECK(time_of(unequal, table, "A1", 3, 0, 0) > time_of(unequal, table, "A1", 3, 0, 8));
  // Experts receive from everybody, so they cost the same on both.
  CHECK(time_of(unequal, table, "MLP", 3, 0, 0) == time_of(unequal, table, "MLP", 3, 0, 8));

  ScheduleSpec drawn = decode_spec(16, 128, 2);
  drawn.routing.kind = RoutingKind::Zipf;
  drawn.routing.alpha = 1.0;
  CHECK(analytical_costs(make_plan("vllm-ll", drawn), machine()).groups() == 16);
}

TEST_CASE("analytical: two half batches read the weights twice") {
  const Plan split = make_plan("vllm-ll", decode_spec(64, 128, 2)),
             whole = make_plan("sequential", decode_spec(64, 128, 1));
  const CostTable halves = analytical_costs(split, machine()), one = analytical_costs(whole, machine());
  for (const std::string_view op : {"A0", "A1", "MLP", "S"}) {
    CAPTURE(op);
    const Ns both = time_of(split, halves, op, 3, 0) + time_of(split, halves, op, 3, 1);
    CHECK(both > time_of(whole, one, op) * 11 / 10);
  }
  // A large prefill hardly pays: its experts are bound by arithmetic.
  const OpCost& mlp = halves.at(0, halves.layer_class(3), 0, *split.find_op("MLP"));
  CHECK(mlp.demand.flops > 0);
  CHECK(mlp.demand.hbm_bytes > 4 * 44e6);  // four experts of 44 MB
  CHECK(mlp.demand.tiles > 0);
  CHECK(mlp.demand.sms == 132);
}

TEST_CASE("analytical: padding is computed on but not sent") {
  ScheduleSpec padded = decode_spec(16, 100, 1);
  padded.loads[0].ubatches[0].padded = 1024;
  const Plan a = make_plan("sequential", decode_spec(16, 100, 1)), b = make_plan("sequential", padded);
  const CostTable plain = analytical_costs(a, machine()), more = analytical_costs(b, machine());
  CHECK(time_of(b, more, "A0") > time_of(a, plain, "A0"));
  CHECK(time_of(b, more, "D.recv") == time_of(a, plain, "D.recv"));
  CHECK(time_of(b, more, "MLP") == time_of(a, plain, "MLP"));
}

TEST_CASE("analytical: more bandwidth never makes an op longer") {
  for (const auto& [schedule, transport] :
       {std::pair{"vllm-ll", Transport::Ll}, std::pair{"vllm-ht", Transport::Ht},
        std::pair{"vllm-ll", Transport::CopyEngine}, std::pair{"vllm-ht", Transport::Nccl}}) {
    const Plan plan = make_plan(schedule, decode_spec(16, 256, 2, transport));
    const CostTable slow = analytical_costs(plan, machine());
    MachineSpec quick = machine();
    quick.gpu.hbm_bytes_per_s *= 2;
    quick.gpu.link_bytes_per_s *= 2;
    quick.fabric.nic_bytes_per_s *= 2;
    const CostTable fast = analytical_costs(plan, quick);
    for (OpId op = 0; op < plan.ops.size(); ++op)
      for (int layer_class = 0; layer_class < slow.layer_classes(); ++layer_class) {
        const OpCost &s = slow.at(0, layer_class, 0, op), &f = fast.at(0, layer_class, 0, op);
        // A shorter send leaves more of a transfer to its wire, so the two count together on the receive side.
        if (!is_recv(plan.ops[op].kind)) CHECK(f.time <= s.time);
      }
    CHECK(time_of(plan, fast, transport_info(transport).host_blocks || transport == Transport::Nccl ? "D" : "D.recv") <=
          time_of(plan, slow, transport_info(transport).host_blocks || transport == Transport::Nccl ? "D" : "D.recv"));
  }
}

TEST_CASE("analytical: halves of a low-latency exchange, one kernel of a high-throughput one") {
  const Plan ll = make_plan("vllm-ll", decode_spec(64, 256, 2));
  const CostTable low = analytical_costs(ll, machine());
  const OpCost& recv = low.at(0, low.layer_class(3), 0, *ll.find_op("D.recv"));
  // 128 tokens on 8 nodes: 6.6 MB leave over a 50 GB/s port.
  CHECK(recv.wire > Ns{100000});
  CHECK(recv.demand.port_bytes == doctest::Approx(128 * 8 * 56.0 / 64 * 7392));
  CHECK(low.at(0, low.layer_class(3), 0, *ll.find_op("D.send")).wire == Ns{0});

  const Plan ht = make_plan("vllm-ht", decode_spec(32, 8192, 2, Transport::Ht));
  const CostTable high = analytical_costs(ht, machine());
  const OpCost& dispatch = high.at(0, high.layer_class(3), 0, *ht.find_op("D"));
  CHECK(dispatch.notify > Ns{0});
  CHECK(dispatch.time > dispatch.notify);
  CHECK(dispatch.demand.cooperative);
  CHECK(high.at(0, high.layer_class(3), 0, *ht.find_op("C")).notify == Ns{0});
  CHECK(high.at(0, high.layer_class(3), 0, *ht.find_op("C.copy")).time > Ns{0});
}

TEST_CASE("analytical: what ignores the SM limit is said") {
  const auto says = [](SmControl control) {
    ScheduleSpec spec = decode_spec(16, 512, 2, Transport::Ht);
    spec.sm = {control, 20, 112, 0};
    std::string found;
    for (const std::string& sentence : analytical_costs(make_plan("vllm-ht", spec), machine()).assumptions)
      if (sentence.find("ignore the SM limit") != std::string::npos) found = sentence;
    return found;
  };
  CHECK(
      says(SmControl::Limit) ==
      "Kernels that ignore the SM limit run on the whole GPU, and comm kernels wait for their blocks: EMB, A1, HEAD.");
  CHECK(says(SmControl::GreenContext).empty());
}

TEST_CASE("analytical: GPUs of one NVLink domain have no far peers") {
  MachineSpec nvl = machine("gb200-nvl72");
  nvl.fabric = fabric_preset("nvl72");
  CHECK(nvl.link_domain({.ranks = 64, .ranks_per_node = 4}) == 64);
  CHECK(nvl.link_domain({.ranks = 144, .ranks_per_node = 8}) == 72);
  CHECK(machine().link_domain({.ranks = 64, .ranks_per_node = 8}) == 8);
  CHECK(machine().link_domain({.ranks = 2, .ranks_per_node = 2}) == 2);
}

TEST_CASE("analytical: a board's scale-up links end with the node, a rack's and a stated fabric's do not") {
  CHECK(machine().link_domain({.ranks = 8, .ranks_per_node = 4}) == 4);
  CHECK(machine("mi300x").link_domain({.ranks = 16, .ranks_per_node = 2}) == 2);
  CHECK(machine("gb200-nvl72").link_domain({.ranks = 16, .ranks_per_node = 4}) == 16);
  MachineSpec cable = machine();
  cable.fabric.link_domain = 8;
  CHECK(cable.link_domain({.ranks = 8, .ranks_per_node = 4}) == 8);
}

TEST_CASE("analytical: a slower fabric's latency comes on top of the measured one") {
  const Plan plan = make_plan("vllm-ll", decode_spec(16, 128, 2));
  MachineSpec slow = machine();
  slow.fabric.latency_s += 7e-6;
  CHECK(time_of(plan, analytical_costs(plan, slow), "D.recv") ==
        time_of(plan, analytical_costs(plan, machine()), "D.recv") + Ns{7000});
}

TEST_CASE("analytical: the same plan gives the same table") {
  ScheduleSpec spec = decode_spec(16, 128, 2);
  spec.routing.kind = RoutingKind::Uniform;
  const Plan plan = make_plan("vllm-ll", spec);
  const CostTable a = analytical_costs(plan, machine()), b = analytical_costs(plan, machine());
  for (int group = 0; group < a.groups(); ++group)
    for (int layer_class = 0; layer_class < a.layer_classes(); ++layer_class)
      for (int ubatch = 0; ubatch < 2; ++ubatch)
        for (OpId op = 0; op < plan.ops.size(); ++op)
          CHECK(a.at(group, layer_class, ubatch, op) == b.at(group, layer_class, ubatch, op));
}

TEST_CASE("analytical: a model known by its layer counts alone needs fixed costs") {
  ScheduleSpec spec = decode_spec(2, 8, 2);
  spec.shape = {};
  spec.shape.layers = 4;
  spec.shape.moe.shared_experts = 1;
  CHECK_THROWS_AS(analytical_costs(make_plan("vllm-ll", spec), machine()), InputError);
}
