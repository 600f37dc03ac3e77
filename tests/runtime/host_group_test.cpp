#include "runtime/host_group.h"

#include <doctest/doctest.h>

#include <atomic>

#include "runtime/ring.h"
#include "sim/base/error.h"

using namespace dbo;
using namespace dbo::runtime;

TEST_CASE("host group: gather gives every rank all texts by rank, round after round") {
  constexpr int kRanks = 4;
  InProcessGroup group(kRanks);
  std::atomic<int> right{0};
  run_ranks(group, kRanks, [&](HostGroup& member) {
    for (int round = 0; round < 200; ++round) {
      const auto texts = member.gather(std::to_string(member.rank() * 1000 + round));
      bool ok = texts.size() == kRanks;
      for (int rank = 0; ok && rank < kRanks; ++rank) {
        ok = texts[static_cast<std::size_t>(rank)] == std::to_string(rank * 1000 + round);
      }
      right += ok ? 1 : 0;
    }
  });
  CHECK(right == kRanks * 200);
}

TEST_CASE("host group: nobody passes a barrier before all have come") {
  constexpr int kRanks = 3;
  InProcessGroup group(kRanks);
  std::atomic<int> came{0};
  std::atomic<bool> early{false};
  run_ranks(group, kRanks, [&](HostGroup& member) {
    for (int round = 1; round <= 100; ++round) {
      ++came;
      member.barrier();
      if (came < kRanks * round) early = true;
      member.barrier();
    }
  });
  CHECK(!early);
}

TEST_CASE("host group: one rank's error releases the others and reaches the caller as itself") {
  InProcessGroup group(4);
  std::atomic<int> stopped{0};
  CHECK_THROWS_WITH(run_ranks(
                        group, 4,
                        [&](HostGroup& member) {
                          if (member.rank() == 2) throw CudaError("rank 2: out of memory");
                          member.barrier();
                        },
                        [&](int) { ++stopped; }),
                    "rank 2: out of memory");
  CHECK(stopped == 3);
}

TEST_CASE("host group: a rank that does not come is named after the deadline") {
  InProcessGroup group(3, Ns{30'000'000});
  std::atomic<bool> go{false};
  std::string message;
  try {
    run_ranks(group, 3, [&](HostGroup& member) {
      if (member.rank() == 1) {
        go.wait(false);
        return;
      }
      try {
        member.barrier();
      } catch (const NcclError&) {
        go = true;
        go.notify_all();
        throw;
      }
    });
  } catch (const NcclError& error) {
    message = error.what();
  }
  CHECK(message.find("missing after 30 ms: rank 1") != std::string::npos);
}

TEST_CASE("host group: ranks that differ are named with both values, on every rank") {
  InProcessGroup group(3);
  std::atomic<int> told{0};
  run_ranks(group, 3, [&](HostGroup& member) {
    check_agreement(member, {{"NCCL version", "2.28.9"}});
    try {
      check_agreement(member, {{"GPU", "H200"}, {"plan hash", member.rank() == 2 ? "b" : "a"}});
    } catch (const InputError& error) {
      told += std::string(error.what()) == "the ranks differ in plan hash: rank 0 has a, rank 2 has b" ? 1 : 0;
    }
  });
  CHECK(told == 3);
}
