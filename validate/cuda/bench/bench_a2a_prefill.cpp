// `bench a2a`: lsa-ht, and NCCL's send/recv beside it.
#include <algorithm>
#include <cstdio>

#include "sim/base/error.h"
#include "validate/cuda/bench/a2a_bench.h"

namespace dbo::bench {
namespace {

using kernels::ElementType;

constexpr int kPrefillTokens = 4096;
/// The SM count of the untimed preparations and of packs and reductions, which are not the subject.
constexpr int kHelperBlocks = 24;

}  // namespace

void A2aBench::high_throughput(const BenchTokens& tokens, ElementType payload) {
  const bool bf16 = payload == ElementType::Bf16;
  const SymmetricBuffers buffers(ranks_, shape_of(Transport::LsaHt, payload, kPrefillTokens));
  const auto rows = [&](int from, int to) { return tokens.rank_rows(from, to); };
  const auto dispatch = [&](int set, int blocks) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_ht_dispatch({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
  };
  const Traffic traffic = traffic_of(ranks_.count(), kernels::dispatch_row_bytes(buffers.layout(0)), rows);
  A2aPoint point{"lsa-ht", "dispatch", payload_name(payload), kPrefillTokens, 0};
  const std::vector<int> counts = quick_ ? std::vector<int>{16, 24} : std::vector<int>{8, 16, 20, 24, 32};
  for (int blocks : counts) {
    point.blocks = blocks;
    row(point, ranks_.measure(iterations_, [&](int i) { dispatch(i, blocks); }), traffic, bf16 ? nccl_us_ : 0);
  }
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "lsa-ht dispatch");
  if (!bf16) return;
  tuned_dispatch(buffers, tokens, traffic);
  const Traffic back = traffic_of(ranks_.count(), kernels::combine_row_bytes(buffers.layout(0)), rows);
  point.op = "combine";
  for (int blocks : counts) {
    point.blocks = blocks;
    const auto combine = [&](int i) {
      ranks_.each([&](int rank) {
        const kernels::CombineArgs args{buffers.call(rank, blocks), tokens.view(rank, i), tokens.out(rank)};
        DBO_BENCH_CHECK(kernels::launch_ht_combine(args, ranks_[rank].comm));
      });
    };
    row(point, ranks_.measure(iterations_, combine, [&](int i) { dispatch(i, kHelperBlocks); }), back);
  }
  for (int blocks : counts) block_times(buffers, tokens, blocks);
}

/// The same dispatch with fewer rows in flight: whether more blocks are slower because they crowd the link.
void A2aBench::tuned_dispatch(const SymmetricBuffers& buffers, const BenchTokens& tokens, const Traffic& traffic) {
  for (int blocks : {16, 24, 32}) {
    for (const kernels::ScatterTuning tuning :
         {kernels::ScatterTuning{2, false}, kernels::ScatterTuning{0, true}, kernels::ScatterTuning{2, true}}) {
      A2aPoint point{"lsa-ht", "dispatch", "bf16", kPrefillTokens, blocks};
      point.variant = (tuning.stages == 0 ? "" : std::to_string(tuning.stages) + " stages ") +
                      std::string(tuning.settle ? "settled" : "");
      const auto dispatch = [&](int i) {
        ranks_.each([&](int rank) {
          kernels::DispatchArgs args{buffers.call(rank, blocks), tokens.view(rank, i)};
          args.tuning = tuning;
          DBO_BENCH_CHECK(kernels::launch_ht_dispatch(args, ranks_[rank].comm));
        });
      };
      row(point, ranks_.measure(iterations_, dispatch), traffic, nccl_us_);
    }
  }
}

/// Prints when the blocks of one dispatch, on the rank that ended last, had entered, knew their routes, had moved their
/// rows and ended, in us from the first entry.
void A2aBench::block_times(const SymmetricBuffers& buffers, const BenchTokens& tokens, int blocks) {
  constexpr auto kTimes = static_cast<std::size_t>(kernels::kScatterTimes);
  const std::size_t number = static_cast<std::size_t>(blocks) * kTimes;
  std::vector<Memory> times;
  ranks_.each([&](int) { times.emplace_back(static_cast<std::int64_t>(number * sizeof(std::uint64_t))); });
  const auto dispatch = [&](int i) {
    ranks_.each([&](int rank) {
      kernels::DispatchArgs args{buffers.call(rank, blocks), tokens.view(rank, i)};
      args.times = times[static_cast<std::size_t>(rank)].as<std::uint64_t>();
      DBO_BENCH_CHECK(kernels::launch_ht_dispatch(args, ranks_[rank].comm));
    });
  };
  (void)ranks_.measure(3, dispatch);
  std::vector<double> slowest[kTimes];
  for (const Memory& memory : times) {
    std::vector<std::uint64_t> stamps(number);
    DBO_BENCH_CHECK(cudaMemcpy(stamps.data(), memory.get(), number * sizeof(std::uint64_t), cudaMemcpyDeviceToHost));
    std::uint64_t start = stamps[0];
    for (std::size_t i = 0; i < number; i += kTimes) start = std::min(start, stamps[i]);
    std::vector<double> us[kTimes];
    for (std::size_t i = 0; i < number; ++i) us[i % kTimes].push_back(static_cast<double>(stamps[i] - start) / 1000);
    for (auto& times_of : us) std::sort(times_of.begin(), times_of.end());
    if (slowest[0].empty() || us[kTimes - 1].back() > slowest[kTimes - 1].back()) std::copy(us, us + kTimes, slowest);
  }
  const char* const names[] = {"entered", "routed", "moved", "ended"};
  std::printf("#   blocks of dispatch bf16 at %2d SMs, first/median/last us:", blocks);
  for (std::size_t i = 0; i < kTimes; ++i) {
    const std::vector<double>& t = slowest[i];
    std::printf(" %s %.1f/%.1f/%.1f", names[i], t.front(), t[t.size() / 2], t.back());
  }
  std::printf("\n");
}

void A2aBench::nccl(const BenchTokens& tokens, bool registered) {
  const SymmetricBuffers buffers(ranks_, shape_of(Transport::Nccl, ElementType::Bf16, kPrefillTokens),
                                 registered ? &*comms_ : nullptr);
  const Traffic traffic = traffic_of(ranks_.count(), buffers.layout(0).row_bytes,
                                     [&](int from, int to) { return tokens.rank_rows(from, to); });
  const auto args_of = [&](int rank) {
    return kernels::NcclArgs{buffers.call(rank, kHelperBlocks), tokens.send_rows(rank), tokens.receive_rows(rank),
                             (*comms_)[rank]};
  };
  const auto exchange = [&](bool combine) {
    DBO_BENCH_CHECK(ncclGroupStart());
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(combine ? kernels::nccl_combine(args_of(rank), ranks_[rank].comm)
                              : kernels::nccl_dispatch(args_of(rank), ranks_[rank].comm));
    });
    DBO_BENCH_CHECK(ncclGroupEnd());
  };
  const auto dispatch = [&](int set) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_nccl_pack({buffers.call(rank, kHelperBlocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
    exchange(false);
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(kernels::launch_nccl_unpack(buffers.call(rank, kHelperBlocks), ranks_[rank].comm));
    });
  };
  A2aPoint point{"nccl", "dispatch", "bf16", kPrefillTokens, 0};
  point.variant = registered ? "windows" : "plain buffers";
  const Spread us = ranks_.measure(iterations_, dispatch);
  if (!registered) nccl_us_ = us.median;
  row(point, us, traffic, nccl_us_);
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "nccl dispatch");
  point.op = "send/recv alone";
  row(point, ranks_.measure(iterations_, [&](int) { exchange(false); }), traffic, nccl_us_);
  point.op = "combine";
  const auto combine = [&](int set) {
    exchange(true);
    ranks_.each([&](int rank) {
      const kernels::CombineArgs args{buffers.call(rank, kHelperBlocks), tokens.view(rank, set), tokens.out(rank)};
      DBO_BENCH_CHECK(kernels::launch_nccl_reduce(args, ranks_[rank].comm));
    });
  };
  row(point, ranks_.measure(iterations_, combine), traffic);
}

void A2aBench::prefill() {
  section("a2a prefill", "nccl / us");
  const BenchTokens tokens(ranks_, shape_of(Transport::LsaHt, ElementType::Bf16, kPrefillTokens).dims, kPrefillTokens);
  if (comms_) {
    nccl(tokens, false);
    nccl(tokens, true);
  }
  high_throughput(tokens, ElementType::Bf16);
  high_throughput(tokens, ElementType::Fp8E4m3);
}

}  // namespace dbo::bench
