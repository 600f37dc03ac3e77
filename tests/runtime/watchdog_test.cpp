#include "runtime/watchdog.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/runtime/plans.h"

using namespace dbo;
using namespace dbo::runtime;
using namespace std::chrono_literals;

TEST_CASE("watchdog: it fires once when nothing changes for the deadline") {
  std::atomic<int> fired{0};
  Watchdog dog(
      Ns{20'000'000}, [] { return std::uint64_t{7}; }, [&] { ++fired; });
  dog.arm();
  for (int i = 0; i < 500 && fired == 0; ++i) std::this_thread::sleep_for(2ms);
  std::this_thread::sleep_for(60ms);
  CHECK(fired == 1);
}

TEST_CASE("watchdog: progress, or being disarmed, keeps it quiet") {
  std::atomic<int> fired{0};
  std::atomic<std::uint64_t> calls{0};
  {
    // Every look sees a new value.
    Watchdog dog(
        Ns{20'000'000}, [&] { return ++calls; }, [&] { ++fired; });
    dog.arm();
    for (int i = 0; i < 500 && calls < 20; ++i) std::this_thread::sleep_for(2ms);
    CHECK(calls >= 20);
  }
  {
    Watchdog dog(
        Ns{20'000'000}, [] { return std::uint64_t{7}; }, [&] { ++fired; });
    std::this_thread::sleep_for(60ms);
  }
  CHECK(fired == 0);
}

TEST_CASE("watchdog: the report names the last ops of each lane that ended and the first that did not") {
  Plan plan = test::two_lane_plan();
  plan.threads.push_back({0,
                          {test::launch(plan, "A0"), test::launch(plan, "D"), test::launch(plan, "A1"),
                           test::launch(plan, "MLP"), test::simple(Verb::Exit)}});
  test::single_class(plan);
  const Linear linear = linearise(plan, 0);
  CHECK(progress_report(plan, linear, 3, {2, 0}, 1) ==
        "rank 3, lane compute: 2 of 3 ops ended: A1 of ubatch 0; not ended: MLP of ubatch 0\n"
        "rank 3, lane comm: 0 of 1 ops ended; not ended: D of ubatch 0\n");
  CHECK(progress_report(plan, linear, 0, {3, 1}) ==
        "rank 0, lane compute: 3 of 3 ops ended: A0 of ubatch 0; A1 of ubatch 0; MLP of ubatch 0\n"
        "rank 0, lane comm: 1 of 1 ops ended: D of ubatch 0\n");
}
