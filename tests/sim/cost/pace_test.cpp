#include "sim/cost/pace.h"

#include <doctest/doctest.h>

#include "sim/cost/analytical.h"
#include "sim/model/presets.h"
#include "sim/sched/schedule.h"

using namespace dbo;

namespace {

/// One decode ubatch of DeepSeek-V3 on `ranks` GPUs.
Plan decode_plan(int ranks, int tensor = 1) {
  ScheduleSpec spec;
  spec.shape = model_preset("deepseek-v3");
  spec.world = {.ranks = ranks, .ranks_per_node = 8};
  spec.transport = Transport::Ll;
  spec.ubatches = 1;
  spec.tensor_parallel = tensor;
  UbatchLoad load;
  load.token_end = load.padded = 64;
  for (std::int32_t r = 0; r <= 64; ++r) load.query_start_loc.push_back(r);
  load.seq_lens.assign(64, 4096);
  spec.loads = {{{load}}};
  spec.classes = {{{{0, ranks}}, 0}};
  return make_plan("sequential", spec);
}

CostTable priced(const Plan& plan, std::vector<Straggler> stragglers, bool flows = false) {
  MachineSpec machine{.gpu = gpu_preset("h100-sxm"), .fabric = fabric_preset("cx7-400g"), .host = {}};
  machine.stragglers = std::move(stragglers);
  machine.flows = flows;
  return analytical_costs(plan, machine);
}

const OpCost& cost_of(const Plan& plan, const CostTable& table, std::string_view op, int rank) {
  return table.at(table.group_of_rank()[static_cast<std::size_t>(rank)], table.layer_class(10), 0, *plan.find_op(op));
}

}  // namespace

TEST_CASE(
    "pace: ranks with equal factors are of one kind; a tensor-parallel group computes at its slowest rank's pace") {
  const Pace pace({{{2, 5}, 1.5, 1}, {{7}, 1, 3}}, 8, 2);
  CHECK_FALSE(pace.even());
  CHECK(Pace({}, 8, 2).even());
  CHECK(pace.kind(0) == pace.kind(1));
  CHECK(pace.kind(2) == pace.kind(5));
  CHECK(pace.kind(3) == pace.kind(4));
  CHECK(pace.kind(3) != pace.kind(0));  // waits for rank 2 in attention
  CHECK(pace.compute(OpKind::A1, 3) == 1.5);
  CHECK(pace.compute(OpKind::MLP, 3) == 1);
  CHECK(pace.compute(OpKind::S, 2) == 1.5);
  CHECK(pace.compute(OpKind::A1, 7) == 1);
  CHECK(pace.wire(7) == 3);
  CHECK(pace.slowest_wire() == 3);
  CHECK(slower(Ns{1002}, 1.25) == Ns{1253});  // 1252.5
  CHECK(slower(Ns{(std::int64_t{1} << 53) + 1}, 1) == Ns{(std::int64_t{1} << 53) + 1});
}

TEST_CASE("pace: analytical costs scale compute ops, and ports for everybody who waits for them") {
  const Plan plan = decode_plan(16);
  const CostTable even = priced(plan, {}), table = priced(plan, {{{3}, 1.25, 1}, {{9}, 1, 2}});
  CHECK(even.groups() == 1);
  CHECK(table.groups() == 3);
  for (const std::string_view op : {"A0", "A1", "MLP", "S", "HEAD"}) {
    CAPTURE(op);
    CHECK(cost_of(plan, table, op, 3).time == slower(cost_of(plan, even, op, 3).time, 1.25));
    CHECK(cost_of(plan, table, op, 9) == cost_of(plan, even, op, 9));
  }
  // The wire of all waits for rank 9's NIC: what rank 0 waits beyond its own is what rank 9 takes beyond rank 0's.
  const OpCost &before = cost_of(plan, even, "D.recv", 0), &now = cost_of(plan, table, "D.recv", 0);
  CHECK(now.wire > before.wire);
  CHECK(std::abs((now.for_peers - (now.wire - before.wire)).count()) <= 1);
  CHECK(now.slowest == 9);
  CHECK(cost_of(plan, table, "D.recv", 9).for_peers == Ns{0});
  CHECK(cost_of(plan, table, "D.recv", 9).slowest == -1);
  // Its own stores over NVLink, at half the rate: all but the kernel's floor takes twice as long.
  CHECK(cost_of(plan, table, "D.send", 9).time > cost_of(plan, even, "D.send", 9).time);
  CHECK(cost_of(plan, table, "D.send", 3) == cost_of(plan, even, "D.send", 3));
}

TEST_CASE("pace: skewed routing alone makes nobody a straggler") {
  Plan plan = decode_plan(16);
  plan.routing.kind = RoutingKind::Zipf;
  plan.routing.alpha = 0.8;
  const CostTable table = priced(plan, {});
  for (int rank = 0; rank < 16; ++rank) CHECK(cost_of(plan, table, "D.recv", rank).for_peers == Ns{0});
}

TEST_CASE("pace: assumptions name the ranks, and say what they are slow at") {
  const std::vector<std::string> text =
      straggler_sentences({{{3}, 1.25, 1}, {{4, 5}, 1, 2}, {{0, 1, 2, 6, 7, 8, 9, 10, 11}, 1.5, 1.5}});
  CHECK(text[0] == "Rank 3 is slow: its compute ops take 1.25 times as long.");
  CHECK(text[1] == "Ranks 4, 5 are slow: their ports take 2 times as long.");
  CHECK(
      text[2] ==
      "Ranks 0, 1, 2, 6, 7, 8, 9, 10 and 1 more are slow: their compute ops take 1.5 times as long, ports 1.5 times.");
}

TEST_CASE("pace: with pairwise flows a slow port is slower, and each rank its own") {
  const Plan plan = decode_plan(16);
  const CostTable even = priced(plan, {}, true), table = priced(plan, {{{9}, 1, 2}}, true);
  CHECK(even.groups() == 1);
  CHECK(even.flows.ports.size() == 4);
  CHECK(table.groups() == 16);
  CHECK(table.flows.ports.size() == 64);
  // Scale-up out, scale-up in, NIC out, NIC in.
  CHECK(table.flows.ports[32 + 9] == (table.flows.ports[32] + 1) / 2);
  CHECK(table.flows.ports[16 + 9] == (table.flows.ports[16] + 1) / 2);
  // 8 far ranks a rank; near data is the send kernel's. The rank's load is the sum of its flows.
  const std::vector<PairFlow>& flows = table.call_flows(table.layer_class(10), 0, true);
  CHECK(flows.size() == 16 * 8);
  std::int64_t out = 0;
  for (const PairFlow& f : flows) {
    CHECK(f.from / 8 != f.to / 8);
    CHECK(f.out == 32 + f.from);
    CHECK(f.in == 48 + f.to);
    if (f.from == 0) out += f.work;
  }
  const std::vector<PairFlow>& load = even.call_flows(even.layer_class(10), 0, true);
  REQUIRE(load.size() == 1);
  CHECK(std::abs(load[0].work - out) <= 8);
}

TEST_CASE("pace: more ranks that differ than flows are kept for are an error that says what to use") {
  Plan plan = decode_plan(512);
  plan.routing.redundant = 256;
  CHECK(priced(plan, {}, true).groups() == 1);
  CHECK_THROWS_WITH(priced(plan, {{{9}, 1, 2}}, true),
                    "pairwise flows are for at most 256 ranks that differ, not 512: use \"network\": \"ports\"");
}
