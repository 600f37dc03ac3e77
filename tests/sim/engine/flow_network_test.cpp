#include "sim/engine/flow_network.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "sim/base/hash.h"

using namespace dbo;

namespace {

constexpr std::int64_t kUnit = 1 << 20;

/// Flows with the instants at which they begin; tags count them.
struct Planned {
  PairFlow flow;
  std::int64_t at = 0;
};

/// One interval between two instants: the open flows with their rates.
using Watch = std::function<void(std::int64_t from, std::int64_t to, const FlowNetwork&)>;

std::vector<std::int64_t> ends_of(std::vector<Planned> planned, const std::vector<std::int64_t>& ports,
                                  const Watch& watch = {}) {
  FlowNetwork network(ports);
  std::vector<std::int64_t> ends(planned.size(), -1);
  std::vector<std::size_t> order(planned.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return planned[a].at < planned[b].at; });
  std::size_t next = 0;
  for (std::int64_t now = 0;;) {
    network.share(now);
    std::int64_t then = network.next();
    if (next < order.size()) then = std::min(then, planned[order[next]].at);
    if (then == INT64_MAX) return ends;
    if (watch && then > now) watch(now, then, network);
    now = then;
    std::vector<FlowNetwork::Ended> ended;
    network.advance(now, ended);
    for (const FlowNetwork::Ended& e : ended) ends[e.tag] = now;
    for (; next < order.size() && planned[order[next]].at == now; ++next)
      network.begin(static_cast<std::uint32_t>(order[next]), planned[order[next]].flow, now);
  }
}

std::vector<Planned> random_flows(int ports, int count, std::uint64_t seed, int spread) {
  std::vector<Planned> flows;
  for (int i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t what, int below) {
      return static_cast<std::int32_t>(
          mix_below(seed, static_cast<std::uint64_t>(i) * 4 + what, static_cast<std::uint64_t>(below)));
    };
    const std::int32_t out = draw(0, ports), in = ports + draw(1, ports);
    flows.push_back({{out, in, out, in, (1 + draw(2, 1000)) * 1000 * kUnit}, draw(3, spread)});
  }
  return flows;
}

std::vector<std::int64_t> random_ports(int ports, std::uint64_t seed) {
  std::vector<std::int64_t> rates;
  for (int p = 0; p < ports; ++p)
    rates.push_back(static_cast<std::int64_t>(1 + mix_below(seed, 1000 + static_cast<std::uint64_t>(p), 50)) * kUnit);
  return rates;
}

}  // namespace

TEST_CASE("flow network: shares of a full port are equal, and what one cannot use the others get") {
  // X takes 9 a ns from three senders, 3 each; C's other 7 go to Y. After 10 ns C's flow to X has X to itself: 30 more
  // at 9.
  constexpr std::int32_t kA = 0, kB = 1, kC = 2, kX = 3, kY = 4;
  const std::vector<std::int64_t> ends = ends_of({{{kA, kX, kA, kX, 30 * kUnit}, 0},
                                                  {{kB, kX, kB, kX, 30 * kUnit}, 0},
                                                  {{kC, kX, kC, kX, 60 * kUnit}, 0},
                                                  {{kC, kY, kC, kY, 70 * kUnit}, 0}},
                                                 {10 * kUnit, 10 * kUnit, 10 * kUnit, 9 * kUnit, 100 * kUnit});
  CHECK(ends == std::vector<std::int64_t>{10, 10, 14, 10});
}

TEST_CASE("flow network: a flow that begins later takes its share from then on") {
  // A has X to itself at 10 a ns until B begins at 60; then 5 each. A: 600 + 400 at 5, ends at 140; B: 400 by then, and
  // the other 600 alone at 10: 200.
  const std::vector<std::int64_t> ends = ends_of({{{0, 2, 0, 2, 1000 * kUnit}, 0}, {{1, 2, 1, 2, 1000 * kUnit}, 60}},
                                                 {10 * kUnit, 10 * kUnit, 10 * kUnit});
  CHECK(ends == std::vector<std::int64_t>{140, 200});
}

TEST_CASE("flow network: between two ports data keeps its order") {
  // Two of 40 from port 0 to port 2, one of 40 from 1 to 2 at 10. The second waits for the first, which has 30 left at
  // 10 and half the rate until 70; the other's 10 left end at 90 with 10 of the second, whose 30 left end at 120.
  CHECK(ends_of({{{0, 2, 0, 2, 40 * kUnit}, 0}, {{0, 2, 0, 2, 40 * kUnit}, 0}, {{1, 2, 1, 2, 40 * kUnit}, 10}},
                {kUnit, kUnit, kUnit}) == std::vector<std::int64_t>{70, 120, 90});
  // The same for any: of flows between the same ports the one that begins first ends first.
  for (std::uint64_t seed = 200; seed < 230; ++seed) {
    CAPTURE(seed);
    const std::vector<Planned> flows = random_flows(3, 60, seed, 100000);
    const std::vector<std::int64_t> ends = ends_of(flows, random_ports(6, seed));
    int disordered = 0;
    for (std::size_t a = 0; a < flows.size(); ++a)
      for (std::size_t b = 0; b < flows.size(); ++b)
        if (flows[a].flow.out == flows[b].flow.out && flows[a].flow.in == flows[b].flow.in && flows[a].at < flows[b].at)
          disordered += ends[a] < ends[b] ? 0 : 1;
    CHECK(disordered == 0);
  }
}

TEST_CASE("flow network: rates fit every port, and each flow has a full port on which none is faster") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    const std::vector<std::int64_t> ports = random_ports(12, seed);
    int over = 0, without_reason = 0;
    ends_of(random_flows(6, 40, seed, 20000), ports, [&](std::int64_t, std::int64_t, const FlowNetwork& network) {
      std::vector<std::int64_t> used(12, 0), fastest(12, 0), flows(12, 0);
      const auto rates = network.rates();
      for (const auto& [flow, rate] : rates)
        for (const std::int32_t port : {flow.out, flow.in}) {
          const auto p = static_cast<std::size_t>(port);
          used[p] += rate;
          ++flows[p];
          fastest[p] = std::max(fastest[p], rate);
        }
      for (std::size_t p = 0; p < 12; ++p) over += used[p] > ports[p] ? 1 : 0;
      for (const auto& [flow, rate] : rates) {
        bool held = false;
        for (const std::int32_t port : {flow.out, flow.in}) {
          const auto p = static_cast<std::size_t>(port);
          // Rates are rounded down: a full port may have less than a unit left for each of its flows.
          held = held || (ports[p] - used[p] < flows[p] && rate + flows[p] >= fastest[p]);
        }
        without_reason += held ? 0 : 1;
      }
    });
    CHECK(over == 0);
    CHECK(without_reason == 0);
  }
}

TEST_CASE(
    "flow network: every byte is delivered, none sooner than its ports allow, all within a port that never idles") {
  for (std::uint64_t seed = 100; seed < 130; ++seed) {
    CAPTURE(seed);
    const std::vector<Planned> flows = random_flows(8, 64, seed, 100000);
    const std::vector<std::int64_t> ports = random_ports(16, seed);
    std::int64_t delivered = 0, work = 0, serial = 0, last = 0;
    const std::vector<std::int64_t> ends =
        ends_of(flows, ports, [&](std::int64_t from, std::int64_t to, const FlowNetwork& network) {
          for (const auto& [flow, rate] : network.rates()) delivered += rate * (to - from);
        });
    int fast = 0;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      const PairFlow& flow = flows[f].flow;
      const std::int64_t rate =
          std::min(ports[static_cast<std::size_t>(flow.out)], ports[static_cast<std::size_t>(flow.in)]);
      fast += ends[f] < flows[f].at + flow.work / rate ? 1 : 0;
      work += flow.work;
      serial += flow.work / rate + 1;
      last = std::max(last, ends[f]);
    }
    CHECK(fast == 0);
    // An end is rounded up to a nanosecond, at most a port's rate of work more than there was.
    CHECK(delivered >= work);
    CHECK(delivered <= work + static_cast<std::int64_t>(flows.size()) * 51 * kUnit);
    CHECK(last <= 100000 + serial);
  }
}

TEST_CASE("flow network: with many flows, what ended ones leave is handed on a little later, never too much") {
  // 20 x 20 ports, 400 flows of different sizes, together: against the same network with every end taken at once, which
  // few flows have, an end comes at most 1/32 of the whole later.
  std::vector<Planned> flows;
  for (std::int32_t out = 0; out < 20; ++out)
    for (std::int32_t in = 0; in < 20; ++in)
      flows.push_back(
          {{out, 20 + in, out, 20 + in,
            static_cast<std::int64_t>(1000 + mix_below(9, static_cast<std::uint64_t>(out * 20 + in), 4000)) * kUnit},
           0});
  const std::vector<std::int64_t> ports(40, 10 * kUnit);
  std::vector<std::int64_t> load(40, 0);
  for (const Planned& f : flows)
    for (const std::int32_t port : {f.flow.out, f.flow.in}) load[static_cast<std::size_t>(port)] += f.flow.work;
  int over = 0;
  const std::vector<std::int64_t> ends = ends_of(flows, ports, [&](std::int64_t, std::int64_t, const FlowNetwork& n) {
    std::vector<std::int64_t> used(40, 0);
    for (const auto& [flow, rate] : n.rates())
      for (const std::int32_t port : {flow.out, flow.in}) used[static_cast<std::size_t>(port)] += rate;
    for (std::size_t p = 0; p < 40; ++p) over += used[p] > ports[p] ? 1 : 0;
  });
  CHECK(over == 0);
  const std::int64_t busiest = *std::max_element(load.begin(), load.end()) / (10 * kUnit);
  const std::int64_t last = *std::max_element(ends.begin(), ends.end());
  CHECK(last >= busiest);
  CHECK(last <= busiest * 11 / 10);
}
