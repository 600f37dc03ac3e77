// `bench overlap`: a chain of cuBLAS products beside a chain of exchanges, by transport and by how the SMs are shared.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "kernels/compute/dense_gemm.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/exchange_buffers.h"
#include "validate/cuda/bench/green_split.h"

namespace dbo::bench {
namespace {

using kernels::ElementType;

constexpr int kHidden = 7168, kTopK = 8, kExperts = 256, kPrefillTokens = 4096, kDecodeTokens = 128;
/// Both chains last about this long: many kernels, yet little heat.
constexpr double kChainUs = 2500;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

struct GemmShape {
  const char* name;
  int m, n, k;
  int weights;  ///< sets used in turn; several: weights come from memory, not from the L2
};

/// The products of one shape on every rank.
class GemmChain {
 public:
  GemmChain(const ExchangeRanks& ranks, const GemmShape& shape) : ranks_(ranks), shape_(shape) {
    ranks.each([&](int rank) {
      PerRank& r = data_.emplace_back();
      cudaStream_t stream = ranks[rank].compute;
      r.a = random_memory(std::int64_t{shape.m} * shape.k, 1, 1.0f, stream);
      for (int i = 0; i < shape.weights; ++i) {
        r.w.push_back(random_memory(std::int64_t{shape.n} * shape.k, 2 + static_cast<std::uint64_t>(i), 0.02f, stream));
      }
      r.c = Memory(std::int64_t{shape.m} * shape.n * 2);
      r.scratch = Memory(static_cast<std::int64_t>(kernels::kDenseScratchBytes));
      DBO_BENCH_CHECK(kernels::create_dense_context(r.scratch.get(), kernels::kDenseScratchBytes, r.context));
      DBO_BENCH_CHECK(cudaDeviceSynchronize());
    });
  }
  ~GemmChain() {
    for (PerRank& r : data_) kernels::destroy_dense_context(r.context);
  }
  GemmChain(const GemmChain&) = delete;
  GemmChain& operator=(const GemmChain&) = delete;

  /// `streams` empty: the ranks' compute streams. `sm_target` 0: none.
  void enqueue(int number, int sm_target, const std::vector<cudaStream_t>& streams) {
    ranks_.each([&](int rank) {
      PerRank& r = data_[at(rank)];
      for (int i = 0; i < number; ++i) {
        kernels::DenseGemmArgs args;
        args.a = r.a.get();
        args.w = r.w[at(i) % r.w.size()].get();
        args.c = r.c.get();
        args.m = shape_.m;
        args.n = shape_.n;
        args.k = shape_.k;
        args.a_stride = args.w_stride = shape_.k;
        args.c_stride = shape_.n;
        args.sm_target = sm_target;
        DBO_BENCH_CHECK(
            kernels::launch_dense_gemm(r.context, args, streams.empty() ? ranks_[rank].compute : streams[at(rank)]));
      }
    });
  }

 private:
  struct PerRank {
    Memory a, c, scratch;
    std::vector<Memory> w;
    kernels::DenseContext context;
  };
  const ExchangeRanks& ranks_;
  GemmShape shape_;
  std::vector<PerRank> data_;
};

enum class Control { None, Target, Green, GreenTarget };

/// One way of exchanging: `step` enqueues one exchange of all ranks on the given streams.
struct Arm {
  std::string name;
  int blocks = 0;
  Control control = Control::None;
  std::function<void(const std::vector<cudaStream_t>&)> step;
};

class OverlapBench {
 public:
  explicit OverlapBench(const BenchOptions& options)
      : repeats_(options.quick ? 3 : 7),
        quick_(options.quick),
        copy_(ranks_, shape_of(Transport::CopyEngine, ElementType::Bf16, kPrefillTokens)),
        ht_(ranks_, shape_of(Transport::LsaHt, ElementType::Bf16, kPrefillTokens)),
        ll_(ranks_, shape_of(Transport::LsaLl, ElementType::Fp8E4m3, kDecodeTokens)),
        prefill_(ranks_, ht_.layout(0).dims, kPrefillTokens),
        decode_(ranks_, ll_.layout(0).dims, kDecodeTokens),
        table_("overlap",
               {"GEMM chain beside", "control", "SMs", "realised", "GEMM x", "comm x", "GEMM alone x", "GEMM us",
                "comm us"},
               options.csv) {
    for (int rank = 0; rank < ranks_.count(); ++rank) comm_.push_back(ranks_[rank].comm);
    if (!ranks_.is_loopback()) {
      comms_.emplace(ranks_);
      nccl_.emplace(ranks_, shape_of(Transport::Nccl, ElementType::Bf16, kPrefillTokens));
    }
    ranks_.each([&](int rank) {
      for (int sms : {8, 16, 24}) splits_[at(sms / 8 - 1)].push_back(std::make_unique<GreenSplit>(sms));
      DBO_BENCH_CHECK(kernels::launch_copy_pack({copy_.call(rank, 24), prefill_.view(rank, 0)}, comm_[at(rank)]));
    });
    ranks_.wait();
  }

  void run() {
    const GemmShape shapes[] = {{"compute-bound 4096x4096x7168", 4096, 4096, 7168, 1},
                                {"output-heavy 8192x7168x2048", 8192, 7168, 2048, 1},
                                {"memory-bound 64x4096x7168", 64, 4096, 7168, 6}};
    for (const GemmShape& shape : shapes) run_shape(shape);
  }

 private:
  kernels::A2aShape shape_of(Transport transport, ElementType payload, int tokens) const {
    return {.dims = {.ranks = ranks_.count(),
                     .rank = 0,
                     .experts_per_rank = kExperts / ranks_.count(),
                     .top_k = kTopK,
                     .hidden = kHidden,
                     .max_tokens = tokens},
            .payload = payload,
            .transport = transport,
            .slots = 1};
  }
  std::vector<Arm> arms();
  void run_shape(const GemmShape& shape);
  void run_arm(const GemmShape& shape, GemmChain& gemm, int gemms, const Arm& arm);
  std::vector<cudaStream_t> green(int blocks, bool small) const;

  ExchangeRanks ranks_;
  std::optional<NcclComms> comms_;
  int repeats_;
  bool quick_;
  SymmetricBuffers copy_, ht_, ll_;
  std::optional<SymmetricBuffers> nccl_;
  BenchTokens prefill_, decode_;
  std::vector<std::unique_ptr<GreenSplit>> splits_[3];
  std::vector<cudaStream_t> comm_;
  Table table_;
};

std::vector<cudaStream_t> OverlapBench::green(int blocks, bool small) const {
  std::vector<cudaStream_t> streams;
  for (const auto& split : splits_[at(blocks / 8 - 1)]) streams.push_back(small ? split->small() : split->rest());
  return streams;
}

std::vector<Arm> OverlapBench::arms() {
  std::vector<Arm> arms;
  arms.push_back({"copy-engine", 0, Control::None, [this](const std::vector<cudaStream_t>& streams) {
                    ranks_.each([&](int rank) {
                      const kernels::CopyArgs args{copy_.call(rank, 1),         copy_.host_peers(),
                                                   prefill_.send_rows(rank),    prefill_.receive_rows(rank),
                                                   kernels::Arrival::EpochCopy, {}};
                      DBO_BENCH_CHECK(kernels::launch_copy_advance(args.call, streams[at(rank)]));
                      DBO_BENCH_CHECK(kernels::launch_copy_dispatch(args, streams[at(rank)]));
                      DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(args, streams[at(rank)]));
                    });
                  }});
  for (Control control : {Control::None, Control::Target, Control::Green, Control::GreenTarget}) {
    for (int blocks : {8, 16, 24}) {
      if (quick_ && blocks == 24) continue;
      arms.push_back({"lsa-ht dispatch", blocks, control, [this, blocks](const std::vector<cudaStream_t>& streams) {
                        ranks_.each([&](int rank) {
                          DBO_BENCH_CHECK(kernels::launch_ht_dispatch({ht_.call(rank, blocks), prefill_.view(rank, 0)},
                                                                      streams[at(rank)]));
                        });
                      }});
    }
  }
  for (Control control : {Control::None, Control::Target}) {
    const int blocks = 16;
    arms.push_back(
        {"lsa-ll dispatch", blocks, control, [this](const std::vector<cudaStream_t>& streams) {
           ranks_.each([&](int rank) {
             const kernels::A2aCall call = ll_.call(rank, blocks);
             DBO_BENCH_CHECK(kernels::launch_ll_dispatch_send({call, decode_.view(rank, 0)}, streams[at(rank)]));
             DBO_BENCH_CHECK(kernels::launch_ll_dispatch_receive(call, streams[at(rank)]));
           });
         }});
  }
  if (nccl_) {
    arms.push_back({"nccl send/recv", 0, Control::None, [this](const std::vector<cudaStream_t>& streams) {
                      DBO_BENCH_CHECK(ncclGroupStart());
                      ranks_.each([&](int rank) {
                        const kernels::NcclArgs args{nccl_->call(rank, 1), prefill_.send_rows(rank),
                                                     prefill_.receive_rows(rank), (*comms_)[rank]};
                        DBO_BENCH_CHECK(kernels::nccl_dispatch(args, streams[at(rank)]));
                      });
                      DBO_BENCH_CHECK(ncclGroupEnd());
                    }});
  }
  return arms;
}

/// Per repeat: the products alone, the exchanges alone (both on the whole machine), both together under the arm's
/// control, the products alone under it. Ratios are taken within a repeat, since clocks move from one to the next.
void OverlapBench::run_arm(const GemmShape& shape, GemmChain& gemm, int gemms, const Arm& arm) {
  const bool is_green = arm.control == Control::Green || arm.control == Control::GreenTarget;
  const bool has_target = arm.control == Control::Target || arm.control == Control::GreenTarget;
  int sms = 0;
  DBO_BENCH_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ranks_[0].device));
  const int target = has_target ? sms - arm.blocks : 0;
  const std::vector<cudaStream_t> comm = is_green ? green(arm.blocks, true) : comm_;
  const std::vector<cudaStream_t> compute = is_green ? green(arm.blocks, false) : std::vector<cudaStream_t>{};
  const auto exchanges = [&](int number, const std::vector<cudaStream_t>& streams) {
    for (int i = 0; i < number; ++i) arm.step(streams);
  };
  ExchangeRanks::Iteration first;
  first.enqueue = [&] { exchanges(1, comm_), gemm.enqueue(1, target, compute); };
  first.compute_streams = compute;
  first.gated = false;
  ranks_.run(first);
  const double per_exchange = ranks_.run({{}, [&] { exchanges(4, comm_); }}).comm / 4;
  const int steps = std::max(1, static_cast<int>(std::lround(kChainUs / per_exchange)));
  std::vector<double> realised, gemm_factor, comm_factor, gemm_alone, gemm_us, comm_us;
  for (int repeat = 0; repeat < repeats_; ++repeat) {
    const double g = ranks_.run({{}, [&] { gemm.enqueue(gemms, 0, {}); }}).compute;
    const double c = ranks_.run({{}, [&] { exchanges(steps, comm_); }}).comm;
    ExchangeRanks::Iteration both;
    both.enqueue = [&] {
      exchanges(steps, comm);
      gemm.enqueue(gemms, target, compute);
    };
    both.comm_streams = comm;
    both.compute_streams = compute;
    const LaneTimes pair = ranks_.run(both);
    ExchangeRanks::Iteration alone;
    alone.enqueue = [&] { gemm.enqueue(gemms, target, compute); };
    alone.compute_streams = compute;
    gemm_alone.push_back(ranks_.run(alone).compute / g);
    realised.push_back((g + c - pair.pair()) / (g + c - std::max(g, c)));
    gemm_factor.push_back(pair.compute / g);
    comm_factor.push_back(pair.comm / c);
    gemm_us.push_back(g / gemms);
    comm_us.push_back(c / steps);
  }
  const char* const controls[] = {"none", "SM target", "green", "green+target"};
  table_.row({std::string(shape.name) + " | " + arm.name, controls[static_cast<int>(arm.control)],
              std::to_string(arm.blocks), number(median(realised), 2), number(median(gemm_factor), 2),
              number(median(comm_factor), 2), number(median(gemm_alone), 2), number(median(gemm_us), 1),
              number(median(comm_us), 1)});
}

void OverlapBench::run_shape(const GemmShape& shape) {
  GemmChain gemm(ranks_, shape);
  ExchangeRanks::Iteration first;
  first.enqueue = [&] { gemm.enqueue(2, 0, {}); };
  first.gated = false;
  ranks_.run(first);
  const double per_gemm = ranks_.run({{}, [&] { gemm.enqueue(8, 0, {}); }}).compute / 8;
  const int gemms = std::max(1, static_cast<int>(std::lround(kChainUs / per_gemm)));
  for (const Arm& arm : arms()) run_arm(shape, gemm, gemms, arm);
}

}  // namespace

int run_bench_overlap(const BenchOptions& options) {
  OverlapBench bench(options);
  bench.run();
  return 0;
}

}  // namespace dbo::bench
