// Two GPUs of one machine; skipped with a message where there is one.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/cuda/check.h"
#include "runtime/cuda/nccl_comm.h"
#include "sim/base/error.h"
#include "tests/runtime/cuda/gpu_rig.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

bool has_two() {
  if (test::gpu_count() >= 2) return true;
  MESSAGE("skipped: one GPU");
  return false;
}

/// Writes through the pointers a rank has of its peers, reads at the owner.
void check_peer_writes(HostGroup& group, const std::vector<std::byte*>& peers, std::byte* mine) {
  const auto value = static_cast<std::uint64_t>(group.rank()) + 100;
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    std::byte* cell = peers[peer] + static_cast<std::size_t>(group.rank()) * 8;
    DBO_CUDA_CHECK(cudaMemcpy(cell, &value, sizeof value, cudaMemcpyDefault));
  }
  DBO_CUDA_CHECK(cudaDeviceSynchronize());
  group.barrier();
  std::vector<std::uint64_t> seen(peers.size());
  DBO_CUDA_CHECK(cudaMemcpy(seen.data(), mine, seen.size() * 8, cudaMemcpyDeviceToHost));
  for (std::size_t rank = 0; rank < seen.size(); ++rank) CHECK(seen[rank] == rank + 100);
  group.barrier();
}

}  // namespace

TEST_CASE("pair: two ranks on one GPU are refused") {
  CHECK_THROWS_AS(test::on_gpus(2,
                                [](HostGroup& group) {
                                  start_gpu(0);
                                  static_cast<void>(exchange_placement(group, 0));
                                }),
                  InputError);
}

TEST_CASE("pair: memory of one GPU is written by the other, and clocks are aligned both ways") {
  if (!has_two()) return;
  std::atomic<std::int64_t> offsets[2] = {};
  test::on_gpus(2, [&](HostGroup& group) {
    start_gpu(group.rank());
    const Placement placement = exchange_placement(group, group.rank());
    const DeviceBuffer buffer(256);
    const PeerMemory peers(group, placement, buffer.get());
    check_peer_writes(group, peers.pointers(), buffer.get());
    ClockAligner aligner(group, placement);
    const auto first = aligner.measure(), second = aligner.measure();
    const auto other = static_cast<std::size_t>(1 - group.rank());
    offsets[group.rank()] = first[other].offset_ns;
    if (group.rank() == 0)
      MESSAGE("clock of rank 1: " << first[other].offset_ns << " ns, residual " << first[other].residual_ns
                                  << ", again " << second[other].offset_ns);
    CHECK(first[other].residual_ns > 0);
    CHECK(first[other].residual_ns < 20'000);
    // Measured twice within moments, the offset moves less than what both may be wrong by, and a little drift.
    CHECK(std::abs(first[other].offset_ns - second[other].offset_ns) <=
          first[other].residual_ns + second[other].residual_ns + 1'000);
  });
  CHECK(offsets[0] == -offsets[1]);
}

TEST_CASE("pair: every schedule, eager and by graph, keeps the plan's order across two GPUs") {
  if (!has_two()) return;
  for (const Plan& plan : test::schedule_plans(3, 2)) {
    test::on_gpus(2, [&](HostGroup& group) {
      const Linear linear = linearise(plan, 0);
      // Ranks of unequal speed: receives and comm kernels wait for the slower one.
      const auto work =
          test::drawn_work(plan, linear, 7 + static_cast<std::uint64_t>(group.rank()), Ns{20'000}, Ns{60'000});
      RankReplay replay(group, plan, group.rank(), stand_in_source(work), test::guard(), test::on_gpu(group.rank()));
      for (const bool graph : {false, true}) {
        if (graph && test::host_blocks(linear)) continue;
        if (graph) replay.capture({});
        for (int step = 0; step < 3; ++step) graph ? static_cast<void>(replay.run_graph({})) : replay.run_eager();
        replay.check_arrivals();
        const auto texts = group.gather(encode_times(replay.stamp_times()));
        if (group.rank() != 0) continue;
        const std::vector<RankTimes> ranks{decode_times(texts[0]), decode_times(texts[1])};
        const Ns tick{static_cast<std::int64_t>(replay.timer().tick_ns)};
        const auto findings = check_order(plan, measured_trace(plan, {&linear, &linear}, ranks),
                                          {tick, tick + Ns{ranks[1].residual_ns}, false, 5});
        CHECK(findings.empty());
        for (const OrderFinding& finding : findings) MESSAGE(finding.text);
      }
    });
  }
}

TEST_CASE("pair: a replay knows the other clock as it is at its last step, however long ago it was made") {
  if (!has_two()) return;
  const Plan plan = make_plan("vllm-ht", fakes::small_spec(2, 2, Transport::LsaHt));
  test::on_gpus(2, [&](HostGroup& group) {
    const Linear linear = linearise(plan, 0);
    const auto work = test::drawn_work(plan, linear, 7, Ns{20'000}, Ns{60'000});
    RankReplay replay(group, plan, group.rank(), stand_in_source(work), test::guard(), test::on_gpu(group.rank()));
    ClockAligner aligner(group, exchange_placement(group, group.rank()));
    const auto other = static_cast<std::size_t>(1 - group.rank());
    const std::int64_t first = replay.clocks()[other].offset_ns;
    std::this_thread::sleep_for(std::chrono::seconds(4));
    replay.run_eager();
    const ClockOffset known = replay.clocks()[other], now = aligner.measure()[other];
    if (group.rank() == 0) MESSAGE("clocks drifted by " << now.offset_ns - first << " ns in 4 s");
    CHECK(std::abs(known.offset_ns - now.offset_ns) <= known.residual_ns + now.residual_ns + 1'000);
  });
}

TEST_CASE("pair: a rank that fails ends the other's step with its own error") {
  if (!has_two()) return;
  const Plan plan = make_plan("vllm-ht", fakes::small_spec(3, 2, Transport::Ht));
  std::mutex mutex;
  RankReplay* live[2] = {};
  InProcessGroup group(2, Ns{30'000'000'000});
  const auto body = [&](HostGroup& member) {
    const Linear linear = linearise(plan, 0);
    const auto work = test::drawn_work(plan, linear, 7, Ns{20'000}, Ns{60'000});
    RankReplay replay(member, plan, member.rank(), stand_in_source(work), test::guard(), test::on_gpu(member.rank()));
    {
      const std::lock_guard lock(mutex);
      live[member.rank()] = &replay;
    }
    struct Leave {
      std::mutex& mutex;
      RankReplay*& slot;
      ~Leave() {
        const std::lock_guard lock(mutex);
        slot = nullptr;
      }
    } leave{mutex, live[member.rank()]};
    member.barrier();
    if (member.rank() == 1) throw CudaError("rank 1: out of memory");
    for (int step = 0; step < 100; ++step) replay.run_eager();
  };
  CHECK_THROWS_WITH_AS(run_ranks(group, 2, body,
                                 [&](int rank) {
                                   const std::lock_guard lock(mutex);
                                   if (live[rank] != nullptr) live[rank]->stop(std::make_exception_ptr(Stopped{}));
                                 }),
                       "rank 1: out of memory", CudaError);
}

TEST_CASE("nccl: a communicator of one rank gives a window") {
  test::on_gpus(1, [](HostGroup& group) {
    start_gpu(0);
    NcclComm comm = NcclComm::create(group);
    const SymmetricBuffer buffer(group, &comm, 0, 1u << 20);
    MESSAGE("one rank: " << buffer.how());
    CHECK(buffer.is_window());
    check_peer_writes(group, buffer.peers(), buffer.base());
    NcclHostGroup over_nccl(comm);
    CHECK(over_nccl.gather("hello") == std::vector<std::string>{"hello"});
  });
}

TEST_CASE("nccl: windows of two GPUs, and the mapped memory in their place, are written from both sides") {
  if (!has_two()) return;
  test::on_gpus(2, [](HostGroup& group) {
    start_gpu(group.rank());
    NcclComm comm = NcclComm::create(group);
    for (NcclComm* with : {&comm, static_cast<NcclComm*>(nullptr)}) {
      const SymmetricBuffer buffer(group, with, group.rank(), 1u << 20);
      if (group.rank() == 0) MESSAGE("two ranks: " << buffer.how());
      CHECK(buffer.is_window() == (with != nullptr));
      check_peer_writes(group, buffer.peers(), buffer.base());
    }
    NcclHostGroup over_nccl(comm);
    const auto texts = over_nccl.gather(group.rank() == 0 ? "a" : "a longer text");
    CHECK(texts == std::vector<std::string>{"a", "a longer text"});
    over_nccl.barrier();
    comm.check_async();
  });
}
