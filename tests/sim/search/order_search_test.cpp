#include "sim/search/order_search.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/fakes/random_orders.h"
#include "tests/sim/search/brute_force.h"

using namespace dbo;
using fakes::Draw;
using enum OpKind;

namespace {

bool always() {
  return true;
}

OrderTask random_task(std::uint64_t seed, bool low_latency, bool shared, int most) {
  Draw draw(seed);
  OrderTask task;
  task.low_latency = low_latency;
  task.shared = shared;
  task.times.assign(2, {});
  const bool alike = draw.below(2) == 0;
  for (int u = 0; u < 2; ++u) {
    for (const OpKind kind : {A0, A1, D, DSend, DWire, DRecv, MLP, S, C, CSend, CWire, CRecv}) {
      const bool small = is_send(kind) || is_recv(kind) || kind == A0;
      task.times[static_cast<std::size_t>(u)][static_cast<std::size_t>(kind)] =
          draw.below(small ? most / 8 + 1 : most + 1);
    }
    if (u == 1 && alike) task.times[1] = task.times[0];
  }
  task.node_gap = draw.below(3);
  task.lane_gap = draw.below(3);
  return task;
}

std::int64_t least_of_all(const OrderTask& task) {
  std::int64_t least = INT64_MAX;
  test::for_every_order(task, [&](const LaunchOrder& order) { least = std::min(least, cycle_time(task, order)); });
  return least;
}

/// Ubatch by ubatch, layer by layer: an order every task has.
LaunchOrder plain_order(const OrderTask& task) {
  LaunchOrder order;
  for (int u = 0; u < task.ubatches; ++u)
    for (const OpKind kind : task.chain()) order.push_back({kind, u});
  return order;
}

}  // namespace

TEST_CASE("order_task: the cycle of the published low-latency order is its four windows") {
  // A=100 D=60 M=80 C=70 S=20: max(A,D) + max(M,D) + max(S+M,C) + max(S+A,C) = 100 + 80 + 100 + 120.
  OrderTask task;
  std::array<std::int64_t, kOpKinds> times{};
  const auto set = [&](OpKind kind, std::int64_t t) { times[static_cast<std::size_t>(kind)] = t; };
  set(A1, 100), set(DWire, 60), set(MLP, 80), set(CWire, 70), set(S, 20);
  task.times.assign(2, times);
  const LaunchOrder order = {{A0, 0},  {A1, 0},    {CRecv, 1}, {DSend, 0}, {A0, 1},  {A1, 1},    {DRecv, 0}, {DSend, 1},
                             {MLP, 0}, {DRecv, 1}, {CSend, 0}, {S, 0},     {MLP, 1}, {CRecv, 0}, {CSend, 1}, {S, 1}};
  CHECK(cycle_time(task, order) == 400);
  CHECK(cycle_bound(task) == 400);
}

TEST_CASE("order_task: the cycle of the high-throughput order is bound by compute, and longer with late waits") {
  // The same numbers: 2 (100 + 80 + 20) = 400.
  OrderTask task;
  task.low_latency = false;
  std::array<std::int64_t, kOpKinds> times{};
  const auto set = [&](OpKind kind, std::int64_t t) { times[static_cast<std::size_t>(kind)] = t; };
  set(A1, 100), set(D, 60), set(MLP, 80), set(C, 70), set(S, 20);
  task.times.assign(2, times);
  const LaunchOrder order = {{A0, 0}, {A1, 0},  {A0, 1}, {A1, 1}, {D, 0}, {MLP, 0},
                             {D, 1},  {MLP, 1}, {C, 0},  {S, 0},  {C, 1}, {S, 1}};
  CHECK(cycle_time(task, order) == 400);
  // One ubatch behind the other overlaps nothing but C and S: 2 (100 + 60 + 80 + 70) = 620.
  const LaunchOrder plain = {{A0, 0}, {A1, 0}, {D, 0}, {MLP, 0}, {C, 0}, {S, 0},
                             {A0, 1}, {A1, 1}, {D, 1}, {MLP, 1}, {C, 1}, {S, 1}};
  CHECK(cycle_time(task, plain) < 620);  // A0 of the next layer need not wait for ubatch 1
  CHECK(cycle_time(task, plain) >= 400);
}

TEST_CASE("order_search: on two lanes it finds the least cycle of all orders") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const OrderTask task = random_task(seed, false, seed % 8 == 0, 40);
    const std::int64_t least = least_of_all(task);
    const OrderSearch search = search_two_lanes(task, cycle_time(task, plain_order(task)), 4, always);
    REQUIRE(!search.orders.empty());
    CHECK(search.complete);
    CHECK(search.lower_bound == least);
    for (const LaunchOrder& order : search.orders) CHECK(cycle_time(task, order) == least);
    CHECK(cycle_bound(task) <= least);
  }
}

TEST_CASE("order_search: on one lane it finds the least cycle of all orders") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const OrderTask task = random_task(seed, true, seed % 6 == 0, 40);
    const std::int64_t least = least_of_all(task);
    const std::int64_t known = cycle_time(task, plain_order(task));
    const OrderSearch search = search_one_lane(task, known, always);
    CHECK(search.complete);
    CHECK(search.lower_bound == least);
    CHECK(search.orders.empty() == (known == least));
    for (const LaunchOrder& order : search.orders) {
      CHECK(cycle_time(task, order) == least);
      CHECK(test::keeps_in_flight(order, 1));
    }
  }
}

TEST_CASE("order_search: with two calls in flight it finds the least cycle, never worse than with one") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    OrderTask task = random_task(seed ^ 0x77, true, false, 40);
    const std::int64_t known = cycle_time(task, plain_order(task));
    const std::int64_t one = search_one_lane(task, known, always).lower_bound;
    task.in_flight = 2;
    const std::int64_t least = least_of_all(task);
    const OrderSearch search = search_one_lane(task, known, always);
    CHECK(search.complete);
    CHECK(least <= one);
    CHECK(search.lower_bound == least);
    for (const LaunchOrder& order : search.orders) {
      CHECK(test::keeps_in_flight(order, 2));
      CHECK(cycle_time(task, order) == least);
    }
  }
}

TEST_CASE("order_search: stopped early it proves only the bound") {
  const OrderTask task = random_task(3, false, true, 1000);
  int calls = 0;
  const OrderSearch search =
      search_two_lanes(task, cycle_time(task, plain_order(task)), 1, [&] { return ++calls < 1; });
  CHECK(search.lower_bound >= cycle_bound(task));
  CHECK(search.lower_bound <= cycle_time(task, plain_order(task)));
}
