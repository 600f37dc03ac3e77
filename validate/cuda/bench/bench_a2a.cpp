// `bench a2a`: every transport's dispatch and combine beside what they are judged by, in one run.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "sim/base/error.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/exchange_buffers.h"

namespace dbo::bench {
namespace {

using kernels::A2aCall;
using kernels::ElementType;

constexpr int kHidden = 7168, kTopK = 8, kExperts = 256, kPrefillTokens = 4096, kDecodeTokens = 128;
/// The SM count of the untimed preparations and of packs and reductions, which are not the subject.
constexpr int kHelperBlocks = 24;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

kernels::A2aShape shape_of(const ExchangeRanks& ranks, Transport transport, ElementType payload, int tokens) {
  return {.dims = {.ranks = ranks.count(),
                   .rank = 0,
                   .experts_per_rank = kExperts / ranks.count(),
                   .top_k = kTopK,
                   .hidden = kHidden,
                   .max_tokens = tokens},
          .payload = payload,
          .transport = transport,
          .slots = 1};
}

/// Bytes of the slowest rank: over the wire (to other ranks), and all (its own rows too).
struct Traffic {
  double wire = 0, logical = 0;
};

template <typename Rows>
Traffic traffic_of(int ranks, double row_bytes, const Rows& rows) {
  Traffic most;
  for (int from = 0; from < ranks; ++from) {
    Traffic mine;
    for (int to = 0; to < ranks; ++to) {
      mine.logical += row_bytes * rows(from, to);
      if (to != from) mine.wire += row_bytes * rows(from, to);
    }
    most.wire = std::max(most.wire, mine.wire);
    most.logical = std::max(most.logical, mine.logical);
  }
  return most;
}

/// Everything the sections share.
class A2aBench {
 public:
  explicit A2aBench(const BenchOptions& options)
      : iterations_(options.quick ? 7 : 25), quick_(options.quick), csv_(options.csv) {
    if (!ranks_.is_loopback()) comms_.emplace(ranks_);
    std::printf(
        "# bench a2a: %d ranks on %s, hidden %d, top-%d of %d experts, random data, L2 flushed, common start,\n"
        "# median of %d, slowest rank; wire = to other ranks, logical = own rows too (EP2: about 2 x wire)\n",
        ranks_.count(), ranks_.is_loopback() ? "ONE GPU (loopback: no wire)" : "one GPU each", kHidden, kTopK, kExperts,
        iterations_);
  }

  void prefill();
  void decode();

 private:
  void row(const std::string& what, const std::string& sms, double us, const Traffic& t, double reference_us) {
    table_->row({what, sms, number(us, 1), number(t.wire / 1e6, 2), number(t.wire / us / 1e3, 1),
                 number(t.logical / us / 1e3, 1), reference_us > 0 ? number(reference_us / us, 3) : "-"});
  }
  void section(const std::string& name, const std::string& reference) {
    table_.emplace(
        name, std::vector<std::string>{"what", "SMs", "us", "wire MB", "wire GB/s", "logical GB/s", reference}, csv_);
  }
  double bare_copy(double bytes);
  void copy_engine(int tokens, ElementType payload);
  void high_throughput(const BenchTokens& tokens, ElementType payload);
  void nccl(const BenchTokens& tokens, bool registered);
  void low_latency(int tokens, ElementType payload);
  void verify(const SymmetricBuffers& buffers, const BenchTokens& tokens, int set, const char* what);

  ExchangeRanks ranks_;
  std::optional<NcclComms> comms_;
  int iterations_;
  bool quick_;
  std::string csv_;
  std::optional<Table> table_;
  double bare_us_ = 0;  ///< bare peer copy of the prefill's wire bytes
  double nccl_us_ = 0;  ///< pack + plain send/recv + unpack
};

/// Peer copies of so many bytes each way, nothing else.
double A2aBench::bare_copy(double bytes) {
  std::vector<Memory> from, to;
  ranks_.each([&](int rank) {
    const auto elements = static_cast<std::int64_t>(bytes / 2);
    from.push_back(random_memory(elements, static_cast<std::uint64_t>(rank), 1.0f, ranks_[rank].comm));
    to.emplace_back(elements * 2);
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
  });
  return ranks_.median_us(iterations_, [&](int) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(cudaMemcpyAsync(to[at((rank + 1) % ranks_.count())].get(), from[at(rank)].get(),
                                      static_cast<std::size_t>(bytes), cudaMemcpyDefault, ranks_[rank].comm));
    });
  });
}

/// Compares rows that rank 0 received from rank 1 with the rows rank 1 sent: a timing of wrong results says nothing.
void A2aBench::verify(const SymmetricBuffers& buffers, const BenchTokens& tokens, int set, const char* what) {
  const kernels::A2aLayout& layout = buffers.layout(0);
  if (layout.payload != ElementType::Bf16) return;
  const kernels::RankMajorView view = kernels::rank_major_view(layout, buffers.call(0, 1).base, 0);
  std::int32_t count = 0;
  DBO_BENCH_CHECK(cudaMemcpy(&count, view.count + 1, sizeof count, cudaMemcpyDefault));
  if (count != tokens.rank_rows(1, 0)) throw InternalError(std::string(what) + ": wrong count");
  for (int i = 0; i < 64; ++i) {
    const std::size_t row = at(layout.dims.max_tokens) + at(static_cast<int>(std::int64_t{count - 1} * i / 63));
    std::int32_t token = -1;
    std::vector<char> got(layout.row_bytes), sent(layout.row_bytes);
    DBO_BENCH_CHECK(cudaMemcpy(&token, view.source_token + row, sizeof token, cudaMemcpyDefault));
    if (token < 0 || token >= tokens.view(1, set).tokens)
      throw InternalError(std::string(what) + ": wrong source token");
    DBO_BENCH_CHECK(cudaMemcpy(got.data(), static_cast<const char*>(view.rows) + row * layout.row_bytes, got.size(),
                               cudaMemcpyDefault));
    DBO_BENCH_CHECK(cudaMemcpy(sent.data(),
                               static_cast<const char*>(tokens.view(1, set).rows) + at(token) * layout.row_bytes,
                               sent.size(), cudaMemcpyDefault));
    if (std::memcmp(got.data(), sent.data(), got.size()) != 0) throw InternalError(std::string(what) + ": wrong row");
  }
}

void A2aBench::high_throughput(const BenchTokens& tokens, ElementType payload) {
  const bool bf16 = payload == ElementType::Bf16;
  const SymmetricBuffers buffers(ranks_, shape_of(ranks_, Transport::LsaHt, payload, kPrefillTokens));
  const auto rows = [&](int from, int to) { return tokens.rank_rows(from, to); };
  const auto dispatch = [&](int set, int blocks) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_ht_dispatch({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
  };
  const Traffic traffic =
      traffic_of(ranks_.count(), static_cast<double>(kernels::dispatch_row_bytes(buffers.layout(0))), rows);
  for (int blocks : {4, 8, 16, 20, 24, 32}) {
    if (quick_ && (blocks == 4 || blocks == 20 || blocks == 32)) continue;
    const double us = ranks_.median_us(iterations_, [&](int i) { dispatch(i, blocks); });
    row(std::string("lsa-ht dispatch ") + (bf16 ? "bf16" : "fp8"), std::to_string(blocks), us, traffic,
        bf16 ? nccl_us_ : 0);
  }
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "lsa-ht dispatch");
  if (!bf16) return;
  const Traffic back =
      traffic_of(ranks_.count(), static_cast<double>(kernels::combine_row_bytes(buffers.layout(0))), rows);
  for (int blocks : {4, 8, 16, 20, 24, 32}) {
    if (quick_ && (blocks == 4 || blocks == 20 || blocks == 32)) continue;
    const double us = ranks_.median_us(
        iterations_,
        [&](int i) {
          ranks_.each([&](int rank) {
            const kernels::CombineArgs args{buffers.call(rank, blocks), tokens.view(rank, i), tokens.out(rank)};
            DBO_BENCH_CHECK(kernels::launch_ht_combine(args, ranks_[rank].comm));
          });
        },
        [&](int i) { dispatch(i, kHelperBlocks); });
    row("lsa-ht combine bf16", std::to_string(blocks), us, back, 0);
  }
}

/// copy-engine: packs apart; copies with arrival and receive as a graph, against a bare copy of the same bytes.
void A2aBench::copy_engine(int number_of_tokens, ElementType payload) {
  const BenchTokens tokens(ranks_, shape_of(ranks_, Transport::CopyEngine, payload, number_of_tokens).dims,
                           number_of_tokens);
  const SymmetricBuffers buffers(ranks_, shape_of(ranks_, Transport::CopyEngine, payload, number_of_tokens));
  const auto rows = [&](int from, int to) { return tokens.rank_rows(from, to); };
  const auto copies_of = [&](int rank) {
    return kernels::CopyArgs{buffers.call(rank, kHelperBlocks), buffers.host_peers(),        tokens.send_rows(rank),
                             tokens.receive_rows(rank),         kernels::Arrival::EpochCopy, {}};
  };
  const auto pack = [&](int set, int blocks) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_copy_pack({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
  };
  const Traffic traffic = traffic_of(ranks_.count(), static_cast<double>(buffers.layout(0).row_bytes), rows);
  const Traffic back =
      traffic_of(ranks_.count(), static_cast<double>(kernels::combine_row_bytes(buffers.layout(0))), rows);
  const std::string name = std::to_string(number_of_tokens) + (payload == ElementType::Bf16 ? " bf16" : " fp8");
  const double bare = bare_copy(traffic.wire);
  row("bare peer copy " + name, "0", bare, {traffic.wire, traffic.wire}, bare);
  for (int blocks : {16, 64}) {
    row("copy-engine pack " + name, std::to_string(blocks),
        ranks_.median_us(iterations_, [&](int i) { pack(i, blocks); }), traffic, 0);
  }
  const auto dispatch = [&](int rank) {
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch(copies_of(rank), ranks_[rank].comm));
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(copies_of(rank), ranks_[rank].comm));
  };
  const auto combine = [&](int rank) {
    DBO_BENCH_CHECK(kernels::launch_copy_combine(copies_of(rank), ranks_[rank].comm));
    const kernels::CombineArgs args{buffers.call(rank, kHelperBlocks), tokens.view(rank, 0), tokens.out(rank)};
    DBO_BENCH_CHECK(kernels::launch_copy_combine_receive(args, copies_of(rank), ranks_[rank].comm));
  };
  const auto prepare = [&](int i) { pack(i, kHelperBlocks); };
  row("copy-engine dispatch " + name, "0+1",
      ranks_.median_us(
          iterations_, [&](int) { ranks_.each(dispatch); }, prepare),
      traffic, bare);
  const RankGraphs graphs(ranks_, dispatch);
  row("copy-engine dispatch " + name + ", graph", "0+1",
      ranks_.median_us(
          iterations_, [&](int) { graphs.launch(); }, prepare),
      traffic, bare);
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "copy-engine dispatch");
  kernels::StreamMemoryOps ops;
  if (kernels::find_stream_memory_ops(&ops) == cudaSuccess) {
    const RankGraphs word_graphs(ranks_, [&](int rank) {
      kernels::CopyArgs args = copies_of(rank);
      args.arrival = kernels::Arrival::StreamMemory;
      args.memory_ops = ops;
      DBO_BENCH_CHECK(kernels::launch_copy_dispatch(args, ranks_[rank].comm));
      DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(args, ranks_[rank].comm));
    });
    // These flags hold words, not epochs: clear them before and after.
    const auto clear = [&] {
      ranks_.each([&](int rank) {
        const A2aCall call = buffers.call(rank, 1);
        DBO_BENCH_CHECK(cudaMemset(call.base + call.layout.dispatch_flag, 0, 4 * at(ranks_.count())));
        DBO_BENCH_CHECK(cudaDeviceSynchronize());
      });
    };
    clear();
    row("same, stream memory operations", "0", ranks_.median_us(iterations_, [&](int) { word_graphs.launch(); }),
        traffic, bare);
    clear();
  }
  if (payload != ElementType::Bf16) return;
  const RankGraphs back_graphs(ranks_, combine);
  row("copy-engine combine " + name + ", graph", "0+" + std::to_string(kHelperBlocks),
      ranks_.median_us(
          iterations_, [&](int) { back_graphs.launch(); },
          [&](int i) {
            prepare(i);
            ranks_.each(dispatch);
          }),
      back, bare);
}

void A2aBench::nccl(const BenchTokens& tokens, bool registered) {
  const std::string name = registered ? ", windows" : ", plain buffers";
  const SymmetricBuffers buffers(ranks_, shape_of(ranks_, Transport::Nccl, ElementType::Bf16, kPrefillTokens),
                                 registered ? &*comms_ : nullptr);
  const auto rows = [&](int from, int to) { return tokens.rank_rows(from, to); };
  const Traffic traffic = traffic_of(ranks_.count(), static_cast<double>(buffers.layout(0).row_bytes), rows);
  const auto args_of = [&](int rank) {
    return kernels::NcclArgs{buffers.call(rank, kHelperBlocks), tokens.send_rows(rank), tokens.receive_rows(rank),
                             (*comms_)[rank]};
  };
  const auto pack = [&](int set) {
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(
          kernels::launch_nccl_pack({buffers.call(rank, kHelperBlocks), tokens.view(rank, set)}, ranks_[rank].comm));
    });
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
    pack(set);
    exchange(false);
    ranks_.each([&](int rank) {
      DBO_BENCH_CHECK(kernels::launch_nccl_unpack(buffers.call(rank, kHelperBlocks), ranks_[rank].comm));
    });
  };
  const double us = ranks_.median_us(iterations_, dispatch);
  if (!registered) nccl_us_ = us;
  row("nccl dispatch (pack, unpack)" + name, "NCCL's", us, traffic, nccl_us_);
  verify(buffers, tokens, (iterations_ - 1) % BenchTokens::kSets, "nccl dispatch");
  row("nccl send/recv alone" + name, "NCCL's", ranks_.median_us(iterations_, [&](int) { exchange(false); }), traffic,
      nccl_us_);
  const double combine = ranks_.median_us(iterations_, [&](int set) {
    exchange(true);
    ranks_.each([&](int rank) {
      const kernels::CombineArgs args{buffers.call(rank, kHelperBlocks), tokens.view(rank, set), tokens.out(rank)};
      DBO_BENCH_CHECK(kernels::launch_nccl_reduce(args, ranks_[rank].comm));
    });
  });
  row("nccl combine (reduce)" + name, "NCCL's", combine, traffic, 0);
}

void A2aBench::prefill() {
  section("a2a prefill, " + std::to_string(kPrefillTokens) + " tokens a rank", "nccl / us");
  const BenchTokens tokens(ranks_, shape_of(ranks_, Transport::LsaHt, ElementType::Bf16, kPrefillTokens).dims,
                           kPrefillTokens);
  if (comms_) {
    nccl(tokens, false);
    nccl(tokens, true);
  }
  high_throughput(tokens, ElementType::Bf16);
  high_throughput(tokens, ElementType::Fp8E4m3);
  section("a2a copy engine", "bare / us");
  copy_engine(kPrefillTokens, ElementType::Bf16);
  copy_engine(1176, ElementType::Bf16);  // 16 MiB on the wire
  if (!quick_) copy_engine(kPrefillTokens, ElementType::Fp8E4m3);
}

void A2aBench::low_latency(int number_of_tokens, ElementType payload) {
  const kernels::A2aShape shape = shape_of(ranks_, Transport::LsaLl, payload, number_of_tokens);
  const BenchTokens tokens(ranks_, shape.dims, number_of_tokens);
  const SymmetricBuffers buffers(ranks_, shape);
  const auto rows = [&](int from, int to) { return tokens.expert_rows(from, to); };
  const Traffic traffic =
      traffic_of(ranks_.count(), static_cast<double>(kernels::dispatch_row_bytes(buffers.layout(0))), rows);
  const Traffic back =
      traffic_of(ranks_.count(), static_cast<double>(kernels::combine_row_bytes(buffers.layout(0))), rows);
  const std::string name = std::to_string(number_of_tokens) + (payload == ElementType::Bf16 ? " bf16" : " fp8");
  for (int blocks : {8, 16, 32, 64, 128}) {
    if (ranks_.is_loopback() && blocks > 64) continue;  // both ranks' blocks must fit the GPU
    if (quick_ && (blocks == 8 || blocks == 128)) continue;
    const auto dispatch_send = [&](int rank, int set) {
      DBO_BENCH_CHECK(
          kernels::launch_ll_dispatch_send({buffers.call(rank, blocks), tokens.view(rank, set)}, ranks_[rank].comm));
    };
    const auto dispatch = [&](int rank, int set) {
      dispatch_send(rank, set);
      DBO_BENCH_CHECK(kernels::launch_ll_dispatch_receive(buffers.call(rank, blocks), ranks_[rank].comm));
    };
    const auto combine = [&](int rank) {
      DBO_BENCH_CHECK(kernels::launch_ll_combine_send(buffers.call(rank, blocks), ranks_[rank].comm));
      const kernels::CombineArgs args{buffers.call(rank, blocks), tokens.view(rank, 0), tokens.out(rank)};
      DBO_BENCH_CHECK(kernels::launch_ll_combine_receive(args, ranks_[rank].comm));
    };
    const std::string sms = std::to_string(blocks);
    row("lsa-ll dispatch " + name, sms,
        ranks_.median_us(iterations_, [&](int i) { ranks_.each([&](int rank) { dispatch(rank, i); }); }), traffic, 0);
    const RankGraphs graphs(ranks_, [&](int rank) { dispatch(rank, 0); });
    row("lsa-ll dispatch " + name + ", graph", sms, ranks_.median_us(iterations_, [&](int) { graphs.launch(); }),
        traffic, 0);
    if (payload == ElementType::Fp8E4m3 && number_of_tokens == kDecodeTokens) {
      row("  its send alone", sms,
          ranks_.median_us(iterations_, [&](int i) { ranks_.each([&](int rank) { dispatch_send(rank, i); }); }),
          traffic, 0);
    }
    if (payload != ElementType::Bf16) continue;
    const auto prepare = [&](int i) { ranks_.each([&](int rank) { dispatch(rank, i); }); };
    row("lsa-ll combine " + name, sms,
        ranks_.median_us(
            iterations_, [&](int) { ranks_.each(combine); }, prepare),
        back, 0);
    const RankGraphs back_graphs(ranks_, combine);
    row("lsa-ll combine " + name + ", graph", sms,
        ranks_.median_us(
            iterations_, [&](int) { back_graphs.launch(); }, prepare),
        back, 0);
    row("  its send alone", sms,
        ranks_.median_us(
            iterations_,
            [&](int) {
              ranks_.each([&](int rank) {
                DBO_BENCH_CHECK(kernels::launch_ll_combine_send(buffers.call(rank, blocks), ranks_[rank].comm));
              });
            },
            prepare),
        back, 0);
  }
}

void A2aBench::decode() {
  section("a2a decode, low latency", "-");
  for (int tokens : {1, 32, kDecodeTokens, 256}) {
    if (quick_ && tokens != kDecodeTokens) continue;
    low_latency(tokens, ElementType::Fp8E4m3);
    low_latency(tokens, ElementType::Bf16);
  }
}

}  // namespace

int run_bench_a2a(const BenchOptions& options) {
  A2aBench bench(options);
  bench.decode();
  bench.prefill();
  return 0;
}

}  // namespace dbo::bench
