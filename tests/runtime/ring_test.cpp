#include "runtime/ring.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/error.h"

using namespace dbo;
using namespace dbo::runtime;
using namespace std::chrono_literals;

namespace {

// Both ways of waiting: awake (as far as the spin goes) and asleep.
const std::vector<Ns> kSpins{Ns{0}, Ns{20'000}, Ns{5'000'000}};

RingOptions options(Ns spin) {
  return {.spin = spin, .bind = {}, .on_stop = {}, .where = {}};
}

std::size_t live_threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// True once no more than `wanted` threads live; a joined thread may stay in the kernel's list for a moment.
bool threads_end(std::size_t wanted) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{5};
  while (live_threads() > wanted) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Runs threads that yield as often as `yields` says; the message of the error, empty when there was none.
std::string run_yields(const std::vector<int>& yields, Ns spin = Ns{20'000}) {
  Ring ring(static_cast<int>(yields.size()), options(spin));
  try {
    ring.run([&](int thread) {
      for (int i = 0; i < yields[static_cast<std::size_t>(thread)]; ++i) ring.yield(thread);
    });
  } catch (const FindingError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("ring: threads take turns in ring order, thread 0 first, however they wait") {
  for (const Ns spin : kSpins) {
    for (int threads = 1; threads <= 4; ++threads) {
      Ring ring(threads, options(spin));
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<int> order;  // no lock: only the holder of the baton writes
        ring.run([&](int thread) {
          for (int i = 0; i < 5; ++i) {
            order.push_back(thread);
            ring.yield(thread);
          }
          order.push_back(thread);
        });
        REQUIRE(order.size() == static_cast<std::size_t>(threads) * 6);
        for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == static_cast<int>(i) % threads);
      }
    }
  }
}

TEST_CASE("ring: yields (k0, k1) finish iff k0 - k1 is 0 or 1, and along a longer ring they may only fall by one") {
  // facts: T15 (a)
  CHECK(run_yields({3, 3}) == "");
  CHECK(run_yields({3, 2}) == "");
  CHECK(run_yields({0, 0}) == "");
  CHECK(run_yields({3, 2, 2}) == "");
  CHECK(run_yields({4, 2}) ==
        "F2 unequal yields: thread 0 waits at its yield 4 for thread 1, which has finished after 2 yields");
  CHECK(run_yields({2, 3}) ==
        "F2 unequal yields: thread 1 waits at its yield 3 for thread 0, which has finished after 2 yields");
  CHECK(run_yields({0, 1}) ==
        "F2 unequal yields: thread 1 waits at its yield 1 for thread 0, which has finished after 0 yields");
  CHECK(run_yields({2, 3, 2}) ==
        "F2 unequal yields: thread 2 finished after 2 yields and wakes thread 0, which has finished after 2 yields; "
        "thread 1 waits at its yield 3 for thread 0");
  CHECK(run_yields({4, 3, 2}) ==
        "F2 unequal yields: thread 1 finished after 3 yields and wakes thread 2, which has finished after 2 yields; "
        "thread 0 waits at its yield 4 for thread 2");
}

TEST_CASE("ring: every pair of yield counts up to 5 ends as the rule says") {
  for (int k0 = 0; k0 <= 5; ++k0) {
    for (int k1 = 0; k1 <= 5; ++k1) {
      CAPTURE(k0);
      CAPTURE(k1);
      CHECK(run_yields({k0, k1}).empty() == (k0 - k1 == 0 || k0 - k1 == 1));
    }
  }
}

TEST_CASE("ring: an exception reaches the caller as itself, wherever its thread and its siblings are") {
  struct Own {
    int thread, turn;
  };
  for (const Ns spin : kSpins) {
    for (int thrower = 0; thrower < 3; ++thrower) {
      for (int turn = 0; turn < 4; ++turn) {
        const std::size_t before = live_threads();
        {
          Ring ring(3, options(spin));
          std::atomic<int> unwound{0};
          bool caught = false;
          try {
            ring.run([&](int thread) {
              struct Count {
                std::atomic<int>& count;
                ~Count() { ++count; }
              } count{unwound};
              for (int i = 0; i < 4; ++i) {
                if (thread == thrower && i == turn) throw Own{thread, i};
                ring.yield(thread);
              }
            });
          } catch (const Own& own) {
            caught = own.thread == thrower && own.turn == turn;
          }
          CHECK(caught);
          // A sibling that had begun was unwound; in turn 0 those behind the thrower had not begun.
          CHECK(unwound == (turn == 0 ? thrower + 1 : 3));
          // A stopped ring stays stopped, with its first error.
          CHECK_THROWS_AS(ring.run([](int) {}), Own);
        }
        CHECK(threads_end(before));
      }
    }
  }
}

TEST_CASE("ring: a stop from outside ends parked, spinning and not yet started threads") {
  for (const Ns spin : kSpins) {
    Ring ring(3, options(spin));
    std::jthread outsider;
    bool caught = false;
    try {
      ring.run([&](int thread) {
        if (thread == 0) {
          outsider = std::jthread([&] {
            std::this_thread::sleep_for(3ms);
            ring.stop(std::make_exception_ptr(CudaError("gone")));
          });
        }
        for (;;) ring.yield(thread);
      });
    } catch (const CudaError& error) {
      caught = std::string(error.what()) == "gone";
    }
    CHECK(caught);
  }
}

TEST_CASE("ring: a stop before a run makes that run throw, and on_stop is called once") {
  int stops = 0;
  Ring ring(2, {.spin = Ns{20'000}, .bind = {}, .on_stop = [&] { ++stops; }, .where = {}});
  ring.stop(std::make_exception_ptr(CudaError("first")));
  ring.stop(std::make_exception_ptr(CudaError("second")));
  CHECK(stops == 1);
  CHECK_THROWS_WITH(ring.run([](int) {}), "first");
}

TEST_CASE("ring: an error of bind reaches the caller of run") {
  Ring ring(2, {.spin = Ns{20'000},
                .bind =
                    [](int thread) {
                      if (thread == 1) throw CudaError("no such device");
                    },
                .on_stop = {},
                .where = {}});
  CHECK_THROWS_WITH(ring.run([&](int thread) {
    for (int i = 0; i < 3; ++i) ring.yield(thread);
  }),
                    "no such device");
}

TEST_CASE("ring: a thread that calls without the baton is found out") {
  Ring ring(2, options(Ns{20'000}));
  CHECK_THROWS_AS(ring.run([&](int thread) { ring.yield(1 - thread); }), InternalError);
}

TEST_CASE("ring: the hand-over is measured awake and asleep") {
  const HandoverCost awake = measure_handover(2, 200, Ns{5'000'000});
  const HandoverCost asleep = measure_handover(2, 50, Ns{});
  CHECK(awake.median > Ns{});
  CHECK(awake.p10 <= awake.median);
  CHECK(awake.median <= awake.p90);
  CHECK(asleep.median > Ns{});
}
