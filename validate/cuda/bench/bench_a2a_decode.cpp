// `bench a2a`: lsa-ll.
#include "kernels/compute/pointwise.h"
#include "validate/cuda/bench/a2a_bench.h"

namespace dbo::bench {

using kernels::ElementType;

/// What two launches in a row cost by themselves: no send and receive can be quicker.
void A2aBench::launch_floor() {
  std::vector<Memory> words;
  ranks_.each([&](int) { words.emplace_back(64); });
  const auto enqueue = [&](int rank) {
    kernels::FillArgs fill;
    fill.out = words[static_cast<std::size_t>(rank)].get();
    fill.count = 8;
    for (int i = 0; i < 2; ++i) DBO_BENCH_CHECK(kernels::launch_fill(fill, ranks_[rank].comm));
  };
  A2aPoint point{"two tiny kernels", "", "", 0, 0};
  row(point, ranks_.measure(iterations_, [&](int) { ranks_.each(enqueue); }), {});
  const RankGraphs graphs(ranks_, enqueue);
  point.graph = true;
  row(point, ranks_.measure(iterations_, [&](int) { graphs.launch(); }), {});
}

Spread A2aBench::time_sends(const std::function<void(int, int)>& send, const std::function<void(int)>& receive) {
  bool is_sent = false;
  const auto receive_last = [&] {
    if (is_sent) ranks_.each(receive);
    is_sent = false;
  };
  const Spread us = ranks_.measure(
      iterations_,
      [&](int i) {
        ranks_.each([&](int rank) { send(rank, i); });
        is_sent = true;
      },
      [&](int) { receive_last(); });
  receive_last();
  ranks_.wait();
  return us;
}

void A2aBench::low_latency(int number_of_tokens, ElementType payload, const std::vector<int>& blocks_list) {
  const kernels::A2aShape shape = shape_of(Transport::LsaLl, payload, number_of_tokens);
  const BenchTokens tokens(ranks_, shape.dims, number_of_tokens);
  const SymmetricBuffers buffers(ranks_, shape);
  const Traffic traffic = traffic_of(ranks_.count(), kernels::dispatch_row_bytes(buffers.layout(0)),
                                     [&](int from, int to) { return tokens.expert_rows(from, to); });
  for (int blocks : blocks_list) {
    const auto send = [&](int rank, int set) {
      DBO_BENCH_CHECK(
          kernels::launch_ll_dispatch_send({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    };
    const auto receive = [&](int rank) {
      DBO_BENCH_CHECK(kernels::launch_ll_dispatch_receive(buffers.call(rank, blocks), ranks_[rank].comm));
    };
    const auto dispatch = [&](int rank, int set) {
      send(rank, set);
      receive(rank);
    };
    A2aPoint point{"lsa-ll", "dispatch", payload_name(payload), number_of_tokens, blocks};
    row(point, ranks_.measure(iterations_, [&](int i) { ranks_.each([&](int rank) { dispatch(rank, i); }); }), traffic);
    const RankGraphs graphs(ranks_, [&](int rank) { dispatch(rank, 0); });
    point.graph = true;
    row(point, ranks_.measure(iterations_, [&](int) { graphs.launch(); }), traffic);
    point.graph = false;
    point.op = "dispatch send";
    row(point, time_sends(send, receive), traffic);
    if (payload == ElementType::Bf16) low_latency_combine(buffers, tokens, point);
  }
}

void A2aBench::low_latency_combine(const SymmetricBuffers& buffers, const BenchTokens& tokens, A2aPoint point) {
  const Traffic back = traffic_of(ranks_.count(), kernels::combine_row_bytes(buffers.layout(0)),
                                  [&](int from, int to) { return tokens.expert_rows(from, to); });
  const auto send = [&](int rank) {
    DBO_BENCH_CHECK(kernels::launch_ll_combine_send(buffers.call(rank, point.blocks), ranks_[rank].comm));
  };
  const auto combine = [&](int rank) {
    send(rank);
    const kernels::CombineArgs args{buffers.call(rank, point.blocks), tokens.view(rank, 0), tokens.out(rank)};
    DBO_BENCH_CHECK(kernels::launch_ll_combine_receive(args, ranks_[rank].comm));
  };
  const auto prepare = [&](int i) {
    ranks_.each([&](int rank) {
      const kernels::A2aCall call = buffers.call(rank, point.blocks);
      DBO_BENCH_CHECK(kernels::launch_ll_dispatch_send({call, tokens.view(rank, i)}, ranks_[rank].comm));
      DBO_BENCH_CHECK(kernels::launch_ll_dispatch_receive(call, ranks_[rank].comm));
    });
  };
  buffers.reset();
  point.op = "combine";
  row(point,
      ranks_.measure(
          iterations_, [&](int) { ranks_.each(combine); }, prepare),
      back);
  const RankGraphs graphs(ranks_, combine);
  point.graph = true;
  row(point,
      ranks_.measure(
          iterations_, [&](int) { graphs.launch(); }, prepare),
      back);
  point.graph = false;
  point.op = "combine send";
  row(point,
      ranks_.measure(
          iterations_, [&](int) { ranks_.each(send); }, prepare),
      back);
  buffers.reset();
}

void A2aBench::decode() {
  section("a2a decode, low latency", "-");
  launch_floor();
  const std::vector<int> few = {64}, all = {16, 32, 64, 128};
  for (int tokens : {1, 32, 128, 256}) {
    if (quick_ && tokens != 1 && tokens != 128) continue;
    low_latency(tokens, ElementType::Fp8E4m3, tokens == 128 ? all : few);
    low_latency(tokens, ElementType::Bf16, tokens == 128 ? all : few);
  }
}

}  // namespace dbo::bench
