// `bench a2a`: copy-engine against bare peer copies.
#include "sim/base/error.h"
#include "validate/cuda/bench/a2a_bench.h"

namespace dbo::bench {
namespace {

using kernels::ElementType;

/// Blocks of packs that are not timed and of the reduction of a combine.
constexpr int kHelperBlocks = 24;

}  // namespace

/// Peer copies of so many bytes each way, nothing else.
double A2aBench::bare_copy(double bytes, const A2aPoint& point) {
  std::vector<Memory> from, to;
  ranks_.each([&](int rank) {
    const auto elements = static_cast<std::int64_t>(bytes / 2);
    from.push_back(random_memory(elements, static_cast<std::uint64_t>(rank), 1.0f, ranks_[rank].comm));
    to.emplace_back(elements * 2);
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
  });
  const Spread us = ranks_.measure(iterations_, [&](int) {
    ranks_.each([&](int rank) {
      const auto peer = static_cast<std::size_t>((rank + 1) % ranks_.count());
      DBO_BENCH_CHECK(cudaMemcpyAsync(to[peer].get(), from[static_cast<std::size_t>(rank)].get(),
                                      static_cast<std::size_t>(bytes), cudaMemcpyDefault, ranks_[rank].comm));
    });
  });
  row(point, us, {bytes, bytes}, us.median);
  return us.median;
}

/// Packs apart; copies with arrival and receive, against a bare copy of the same bytes.
void A2aBench::copy_engine(int number_of_tokens, ElementType payload) {
  const kernels::A2aShape shape = shape_of(Transport::CopyEngine, payload, number_of_tokens);
  const BenchTokens tokens(ranks_, shape.dims, number_of_tokens);
  const SymmetricBuffers buffers(ranks_, shape);
  const auto rows = [&](int from, int to) { return tokens.rank_rows(from, to); };
  const auto copies_of = [&](int rank) {
    return kernels::CopyArgs{buffers.call(rank, kHelperBlocks), buffers.host_peers(), tokens.send_rows(rank),
                             tokens.receive_rows(rank), memory_ops_};
  };
  const auto pack = [&](int set, int blocks) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_copy_pack({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
  };
  const Traffic traffic = traffic_of(ranks_.count(), buffers.layout(0).row_bytes, rows);
  A2aPoint point{"copy-engine", "bare peer copy", payload_name(payload), number_of_tokens, 0};
  const double bare = bare_copy(traffic.wire, point);
  point.op = "pack";
  for (int blocks : {16, 64}) {
    point.blocks = blocks;
    row(point, ranks_.measure(iterations_, [&](int i) { pack(i, blocks); }), traffic);
  }
  const auto dispatch = [&](int rank) {
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch(copies_of(rank), ranks_[rank].comm));
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(copies_of(rank), ranks_[rank].comm));
  };
  const auto prepare = [&](int i) { pack(i, kHelperBlocks); };
  point.op = "dispatch";
  point.blocks = 0;
  row(point,
      ranks_.measure(
          iterations_, [&](int) { ranks_.each(dispatch); }, prepare),
      traffic, bare);
  const RankGraphs graphs(ranks_, dispatch);
  point.graph = true;
  row(point,
      ranks_.measure(
          iterations_, [&](int) { graphs.launch(); }, prepare),
      traffic, bare);
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "copy-engine dispatch");
  // The epochs go on from the packs, on flags that words have left at zero.
  const RankGraphs epochs(ranks_, [&](int rank) {
    kernels::CopyArgs args = copies_of(rank);
    args.memory_ops = {};
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch(args, ranks_[rank].comm));
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(args, ranks_[rank].comm));
  });
  point.variant = "arrival by epochs";
  row(point,
      ranks_.measure(
          iterations_, [&](int) { epochs.launch(); }, prepare),
      traffic, bare);
  point.variant = "";
  buffers.reset();
  if (payload != ElementType::Bf16) return;
  const RankGraphs back_graphs(ranks_, [&](int rank) {
    DBO_BENCH_CHECK(kernels::launch_copy_combine(copies_of(rank), ranks_[rank].comm));
    const kernels::CombineArgs args{buffers.call(rank, kHelperBlocks), tokens.view(rank, 0), tokens.out(rank)};
    DBO_BENCH_CHECK(kernels::launch_copy_combine_receive(args, copies_of(rank), ranks_[rank].comm));
  });
  point.op = "combine";
  point.blocks = kHelperBlocks;
  const auto both = [&](int i) {
    prepare(i);
    ranks_.each(dispatch);
  };
  row(point,
      ranks_.measure(
          iterations_, [&](int) { back_graphs.launch(); }, both),
      traffic_of(ranks_.count(), kernels::combine_row_bytes(buffers.layout(0)), rows), bare);
}

void A2aBench::copies() {
  section("a2a copy engine", "bare / us");
  copy_engine(4096, ElementType::Bf16);
  copy_engine(1176, ElementType::Bf16);  // 16 MiB on the wire
  if (!quick_) copy_engine(4096, ElementType::Fp8E4m3);
}

}  // namespace dbo::bench
