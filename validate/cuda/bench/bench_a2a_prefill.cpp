// `bench a2a`: lsa-ht, and NCCL's send/recv beside it.
#include <algorithm>
#include <cstdio>
#include <utility>

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
  tuned_dispatch(buffers, tokens, point);
  buffers.reset();
  if (!bf16) return;
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
  block_times(buffers, tokens, 16, 0);
  block_times(buffers, tokens, 24, 0);
  block_times(buffers, tokens, 24, 16);
}

/// The same dispatch with SMs set apart for the link, and with fewer rows in flight: whether more blocks are slower
/// because own rows wait behind the full link, or because they crowd it.
void A2aBench::tuned_dispatch(const SymmetricBuffers& buffers, const BenchTokens& tokens, A2aPoint point) {
  const Traffic traffic = traffic_of(ranks_.count(), kernels::dispatch_row_bytes(buffers.layout(0)),
                                     [&](int from, int to) { return tokens.rank_rows(from, to); });
  const bool bf16 = buffers.layout(0).payload == ElementType::Bf16;
  struct Variant {
    const char* name;
    kernels::ScatterTuning tuning;
  };
  const Variant variants[] = {{"no wire blocks", {0, 0}},  {"8 wire blocks", {0, 8}},
                              {"12 wire blocks", {0, 12}}, {"16 wire blocks", {0, 16}},
                              {"20 wire blocks", {0, 20}}, {"no wire blocks 2 stages", {2, 0}}};
  for (int blocks : {16, 20, 24, 32}) {
    for (const Variant& variant : variants) {
      const kernels::ScatterTuning& tuning = variant.tuning;
      if (tuning.wire_blocks > blocks - 4 || (quick_ && tuning.wire_blocks > 8)) continue;
      if (!bf16 && tuning.stages != 0) continue;  // fp8 has no ring
      point.blocks = blocks;
      point.variant = variant.name;
      const auto dispatch = [&](int i) {
        ranks_.each([&](int rank) {
          kernels::DispatchArgs args{buffers.call(rank, blocks), tokens.view(rank, i)};
          args.tuning = tuning;
          DBO_BENCH_CHECK(kernels::launch_ht_dispatch(args, ranks_[rank].comm));
        });
      };
      row(point, ranks_.measure(iterations_, dispatch), traffic, bf16 ? nccl_us_ : 0);
    }
  }
}

/// Only the rows to other ranks, and only those that stay: what each costs without the other.
void A2aBench::dispatch_parts() {
  const kernels::A2aShape shape = shape_of(Transport::LsaHt, ElementType::Bf16, kPrefillTokens);
  for (const BenchRouting routing : {BenchRouting::Remote, BenchRouting::Own}) {
    const BenchTokens tokens(ranks_, shape.dims, kPrefillTokens, routing);
    const SymmetricBuffers buffers(ranks_, shape);
    const Traffic traffic = traffic_of(ranks_.count(), kernels::dispatch_row_bytes(buffers.layout(0)),
                                       [&](int from, int to) { return tokens.rank_rows(from, to); });
    A2aPoint point{"lsa-ht", "dispatch", "bf16", kPrefillTokens, 0};
    point.variant = routing == BenchRouting::Remote ? "remote rows only" : "own rows only";
    for (int blocks : {8, 10, 16, 24, 32}) {
      point.blocks = blocks;
      const auto dispatch = [&](int i) {
        ranks_.each([&](int rank) {
          kernels::DispatchArgs args{buffers.call(rank, blocks), tokens.view(rank, i)};
          args.tuning.wire_blocks = 0;
          DBO_BENCH_CHECK(kernels::launch_ht_dispatch(args, ranks_[rank].comm));
        });
      };
      row(point, ranks_.measure(iterations_, dispatch), traffic);
    }
  }
}

/// Prints when the blocks of one dispatch, on the rank that ended last, had entered, knew their routes, had moved their
/// rows and ended, in us from the first entry; wire blocks (0: none) and the others apart.
void A2aBench::block_times(const SymmetricBuffers& buffers, const BenchTokens& tokens, int blocks, int wire_blocks) {
  constexpr auto kTimes = static_cast<std::size_t>(kernels::kScatterTimes);
  const std::size_t number = static_cast<std::size_t>(blocks) * kTimes;
  std::vector<Memory> times;
  ranks_.each([&](int) { times.emplace_back(static_cast<std::int64_t>(number * sizeof(std::uint64_t))); });
  const auto dispatch = [&](int i) {
    ranks_.each([&](int rank) {
      kernels::DispatchArgs args{buffers.call(rank, blocks), tokens.view(rank, i)};
      args.times = times[static_cast<std::size_t>(rank)].as<std::uint64_t>();
      args.tuning.wire_blocks = wire_blocks;
      DBO_BENCH_CHECK(kernels::launch_ht_dispatch(args, ranks_[rank].comm));
    });
  };
  (void)ranks_.measure(3, dispatch);
  std::vector<std::uint64_t> slowest;
  std::uint64_t longest = 0;
  for (const Memory& memory : times) {
    std::vector<std::uint64_t> stamps(number);
    DBO_BENCH_CHECK(cudaMemcpy(stamps.data(), memory.get(), number * sizeof(std::uint64_t), cudaMemcpyDeviceToHost));
    const auto [first, last] = std::minmax_element(stamps.begin(), stamps.end());
    const std::uint64_t from = *first, span = *last - from;
    if (slowest.empty() || span > longest) {
      longest = span;
      slowest = stamps;
      for (std::uint64_t& stamp : slowest) stamp -= from;
    }
  }
  const char* const names[] = {"entered", "routed", "moved", "ended"};
  const auto wire = static_cast<std::size_t>(wire_blocks);
  for (const auto& [begin, end] : {std::pair{std::size_t{0}, wire}, std::pair{wire, number / kTimes}}) {
    if (begin == end) continue;
    std::printf("#   %s of dispatch bf16 at %2d SMs, first/median/last us:",
                wire == 0    ? "blocks"
                : begin == 0 ? "wire blocks"
                             : "own blocks",
                blocks);
    for (std::size_t what = 0; what < kTimes; ++what) {
      std::vector<double> us;
      for (std::size_t i = begin; i < end; ++i) us.push_back(static_cast<double>(slowest[i * kTimes + what]) / 1000);
      std::sort(us.begin(), us.end());
      std::printf(" %s %.1f/%.1f/%.1f", names[what], us.front(), us[us.size() / 2], us.back());
    }
    std::printf("\n");
  }
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
  if (!quick_) dispatch_parts();
}

}  // namespace dbo::bench
