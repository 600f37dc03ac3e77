#include "sim/cost/flows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "sim/base/hash.h"
#include "sim/cost/analytical.h"
#include "sim/model/presets.h"
#include "sim/sched/schedule.h"

using namespace dbo;

namespace {

constexpr std::int32_t kA = 0, kB = 1, kC = 2, kX = 3, kY = 4;

std::vector<std::size_t> all_of(const std::vector<Flow>& flows) {
  std::vector<std::size_t> open(flows.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  return open;
}

/// Flows among `ports` senders and as many receivers.
std::vector<Flow> random_flows(int ports, int count, std::uint64_t seed) {
  std::vector<Flow> flows;
  for (int i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t what, int below) {
      return static_cast<std::int32_t>(
          mix_below(seed, static_cast<std::uint64_t>(i) * 4 + what, static_cast<std::uint64_t>(below)));
    };
    flows.push_back({draw(0, ports), ports + draw(1, ports), 1.0 + draw(2, 1000)});
  }
  return flows;
}

std::vector<double> random_rates(int ports, std::uint64_t seed) {
  std::vector<double> rates;
  for (int p = 0; p < ports; ++p)
    rates.push_back(1.0 + static_cast<double>(mix_below(seed, 1000 + static_cast<std::uint64_t>(p), 50)));
  return rates;
}

/// DeepSeek-V3 experts over `ranks`, one ubatch of decode or prefill tokens.
Plan exchange_plan(int ranks, Transport transport, RoutingKind routing, std::int64_t tokens) {
  ScheduleSpec spec;
  spec.shape = model_preset("deepseek-v3");
  spec.world = {.ranks = ranks, .ranks_per_node = 8};
  spec.transport = transport;
  spec.ubatches = 1;
  spec.routing.kind = routing;
  spec.routing.alpha = 0.7;
  UbatchLoad load;
  load.token_end = load.padded = tokens;
  load.query_start_loc = {0, static_cast<std::int32_t>(tokens)};
  load.seq_lens = {static_cast<std::int32_t>(tokens)};
  spec.loads = {{{load}}};
  spec.classes = {{{{0, ranks}}, 0}};
  return make_plan("sequential", spec);
}

CostTable priced(const Plan& plan, bool flows) {
  MachineSpec machine{.gpu = gpu_preset("h100-sxm"), .fabric = fabric_preset("cx7-400g"), .host = {}};
  machine.flows = flows;
  return analytical_costs(plan, machine);
}

const OpCost& cost_of(const Plan& plan, const CostTable& table, std::string_view op, int rank) {
  return table.at(table.group_of_rank()[static_cast<std::size_t>(rank)], table.layer_class(10), 0, *plan.find_op(op));
}

}  // namespace

TEST_CASE("flows: shares of a full port are equal, and what one cannot use the others get") {
  // X takes 9 from three senders: 3 each, all that A and B ask for. C sends 10: 3 to X and the other 7 to Y.
  const std::vector<Flow> flows = {{kA, kX, 30}, {kB, kX, 30}, {kC, kX, 60}, {kC, kY, 70}};
  const std::vector<double> rates = {10, 10, 10, 9, 100};
  CHECK(fair_rates(flows, all_of(flows), rates) == std::vector<double>{3, 3, 3, 7});
  // After 10 s three are done. C's flow to X has 30 bytes left and X's 9 a second to itself.
  const std::vector<double> ends = flow_ends(flows, rates);
  CHECK(ends[0] == doctest::Approx(10));
  CHECK(ends[1] == doctest::Approx(10));
  CHECK(ends[3] == doctest::Approx(10));
  CHECK(ends[2] == doctest::Approx(10 + 30.0 / 9));
}

TEST_CASE("flows: ports without limit hold nobody up") {
  const std::vector<double> ends = flow_ends({{kA, kX, 50}, {kB, kX, 50}, {kA, kY, 50}}, {0, 10, 0, 0, 5});
  CHECK(ends == std::vector<double>{0, 5, 10});
}

TEST_CASE("flows: rates fit every port, and each flow has a full port on which none is faster") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Flow> flows = random_flows(6, 40, seed);
    const std::vector<double> rates = random_rates(12, seed);
    const std::vector<double> given = fair_rates(flows, all_of(flows), rates);
    std::vector<double> used(12, 0), fastest(12, 0);
    for (std::size_t f = 0; f < flows.size(); ++f)
      for (const std::int32_t port : {flows[f].from, flows[f].to}) {
        used[static_cast<std::size_t>(port)] += given[f];
        fastest[static_cast<std::size_t>(port)] = std::max(fastest[static_cast<std::size_t>(port)], given[f]);
      }
    int over = 0, without_reason = 0;
    for (std::size_t p = 0; p < 12; ++p) over += used[p] > rates[p] * (1 + 1e-9) ? 1 : 0;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      bool held = false;
      for (const std::int32_t port : {flows[f].from, flows[f].to}) {
        const auto p = static_cast<std::size_t>(port);
        held = held || (used[p] >= rates[p] * (1 - 1e-9) && given[f] >= fastest[p] * (1 - 1e-9));
      }
      without_reason += held ? 0 : 1;
    }
    CAPTURE(seed);
    CHECK(over == 0);
    CHECK(without_reason == 0);
  }
}

TEST_CASE("flows: no flow beats its ports alone, and no port its load") {
  for (std::uint64_t seed = 100; seed < 130; ++seed) {
    const std::vector<Flow> flows = random_flows(8, 64, seed);
    const std::vector<double> rates = random_rates(16, seed);
    const std::vector<double> ends = flow_ends(flows, rates);
    std::vector<double> load(16, 0), last(16, 0);
    int fast = 0;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      double rate = 1e9;
      for (const std::int32_t port : {flows[f].from, flows[f].to}) {
        const auto p = static_cast<std::size_t>(port);
        load[p] += flows[f].bytes;
        last[p] = std::max(last[p], ends[f]);
        rate = std::min(rate, rates[p]);
      }
      fast += ends[f] < flows[f].bytes / rate * (1 - 1e-9) ? 1 : 0;
    }
    // Flows ended in one step with others may free their port a little early for those.
    for (std::size_t p = 0; p < 16; ++p) fast += last[p] < load[p] / rates[p] * (1 - 0.01) ? 1 : 0;
    CAPTURE(seed);
    CHECK(fast == 0);
  }
}

TEST_CASE("flows: an exchange of equal ranks takes what its ports' loads say, by every transport") {
  for (const Transport transport :
       {Transport::Ht, Transport::Ll, Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine, Transport::Nccl}) {
    for (const int ranks : {8, 32}) {
      const Plan plan = exchange_plan(ranks, transport, RoutingKind::Balanced, 512);
      const CostTable ports = priced(plan, false), flows = priced(plan, true);
      CHECK(flows.groups() == 1);
      for (OpId op = 0; op < plan.ops.size(); ++op) {
        CAPTURE(plan.ops[op].name);
        CAPTURE(ranks);
        const OpCost &a = ports.at(0, 1, 0, op), &b = flows.at(0, 1, 0, op);
        CHECK(std::abs((a.time + a.wire - b.time - b.wire).count()) <= 2);
      }
    }
  }
}

TEST_CASE("flows: under skew a rank waits for its own senders; the busiest port still takes its load") {
  const Plan plan = exchange_plan(32, Transport::Ll, RoutingKind::Zipf, 256);
  const CostTable ports = priced(plan, false), flows = priced(plan, true);
  Ns slowest_ports{}, slowest_flows{}, least = Ns::max();
  for (int rank = 0; rank < 32; ++rank) {
    // From the start of the sends.
    const auto arrival = [&](const CostTable& table) {
      return cost_of(plan, table, "D.send", rank).time + cost_of(plan, table, "D.recv", rank).wire;
    };
    slowest_flows = std::max(slowest_flows, arrival(flows));
    least = std::min(least, arrival(flows));
    slowest_ports = std::max(slowest_ports, arrival(ports));
    // By port loads everybody waits for the busiest port of all.
    const Ns first = cost_of(plan, ports, "D.send", 0).time + cost_of(plan, ports, "D.recv", 0).wire;
    CHECK(std::abs((arrival(ports) - first).count()) <= 1);
  }
  CHECK(least < slowest_ports * 9 / 10);
  // A fair order may leave the busiest port idle for a while; it never beats its load (flows step by 1/512).
  CHECK(slowest_flows >= slowest_ports * 98 / 100);
}

TEST_CASE("flows: more ranks than pairs are kept for are an error that says what to use") {
  const Plan plan = exchange_plan(2048, Transport::Ll, RoutingKind::Balanced, 8);
  CHECK_THROWS_WITH(priced(plan, true), doctest::Contains("at most 1024 ranks, not 2048: use \"network\": \"ports\""));
}
