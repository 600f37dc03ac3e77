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
constexpr const char* kControlNames[] = {"none", "SM target", "green", "green+target"};

/// One way of exchanging: `step` enqueues the exchange number `i` of all ranks on the given streams.
struct Arm {
  std::string name;
  int blocks = 0;
  Control control = Control::None;
  bool graph = false;
  std::function<void(int i, const std::vector<cudaStream_t>&)> step;
};

class OverlapBench {
 public:
  explicit OverlapBench(const BenchOptions& options);
  void run();

 private:
  kernels::A2aShape shape_of(Transport transport, ElementType payload, int tokens, int slots) const {
    return {.dims = {.ranks = ranks_.count(),
                     .rank = 0,
                     .experts_per_rank = kExperts / ranks_.count(),
                     .top_k = kTopK,
                     .hidden = kHidden,
                     .max_tokens = tokens},
            .payload = payload,
            .transport = transport,
            .slots = slots};
  }
  void pack(int blocks, int slot, const std::vector<cudaStream_t>& streams);
  void copy(int slot, const std::vector<cudaStream_t>& streams);
  std::vector<Arm> arms();
  void add_copy_arms(std::vector<Arm>& arms);
  void add_kernel_arms(std::vector<Arm>& arms);
  void run_shape(const GemmShape& shape);
  void run_arm(const GemmShape& shape, GemmChain& gemm, int gemms, const Arm& arm);
  std::vector<cudaStream_t> green(int blocks, bool small) const;

  ExchangeRanks ranks_;
  std::optional<NcclComms> comms_;
  int repeats_;
  bool quick_;
  /// The copies have two slots: a rank may be a whole exchange ahead, and its word for it must not meet the peer's
  /// clearing of the one before.
  SymmetricBuffers copies_, ht_, ll_;
  std::optional<SymmetricBuffers> nccl_;
  BenchTokens prefill_, decode_;
  kernels::StreamMemoryOps memory_ops_;
  std::vector<std::unique_ptr<GreenSplit>> splits_[3];
  std::vector<cudaStream_t> comm_;
  Table table_;
  Records records_;
};

OverlapBench::OverlapBench(const BenchOptions& options)
    : repeats_(options.quick ? 3 : 7),
      quick_(options.quick),
      copies_(ranks_, shape_of(Transport::CopyEngine, ElementType::Bf16, kPrefillTokens, 2)),
      ht_(ranks_, shape_of(Transport::LsaHt, ElementType::Bf16, kPrefillTokens, 1)),
      ll_(ranks_, shape_of(Transport::LsaLl, ElementType::Fp8E4m3, kDecodeTokens, 1)),
      prefill_(ranks_, ht_.layout(0).dims, kPrefillTokens),
      decode_(ranks_, ll_.layout(0).dims, kDecodeTokens),
      table_("overlap",
             {"beside", "control", "SMs", "mode", "realised", "GEMM x", "comm x", "GEMM alone x", "GEMM us", "comm us"},
             ""),
      records_(options.csv, {"gemm", "m", "n", "k", "exchange", "control", "sms", "mode", "realised", "gemm_factor",
                             "comm_factor", "gemm_alone_factor", "gemm_us", "comm_us", "repeats"}) {
  for (int rank = 0; rank < ranks_.count(); ++rank) comm_.push_back(ranks_[rank].comm);
  if (!ranks_.is_loopback()) {
    comms_.emplace(ranks_);
    nccl_.emplace(ranks_, shape_of(Transport::Nccl, ElementType::Bf16, kPrefillTokens, 1));
  }
  DBO_BENCH_CHECK(kernels::find_stream_memory_ops(&memory_ops_));
  ranks_.each([&](int) {
    for (int sms : {8, 16, 24}) splits_[at(sms / 8 - 1)].push_back(std::make_unique<GreenSplit>(sms));
  });
  for (int slot : {0, 1}) pack(24, slot, comm_);
  ranks_.wait();
}

void OverlapBench::run() {
  const GemmShape shapes[] = {{"compute-bound", 4096, 4096, 7168, 1},
                              {"output-heavy", 8192, 7168, 2048, 1},
                              {"memory-bound", 64, 4096, 7168, 6}};
  for (const GemmShape& shape : shapes) run_shape(shape);
}

std::vector<cudaStream_t> OverlapBench::green(int blocks, bool small) const {
  std::vector<cudaStream_t> streams;
  for (const auto& split : splits_[at(blocks / 8 - 1)]) streams.push_back(small ? split->small() : split->rest());
  return streams;
}

void OverlapBench::pack(int blocks, int slot, const std::vector<cudaStream_t>& streams) {
  ranks_.each([&](int rank) {
    DBO_BENCH_CHECK(
        kernels::launch_copy_pack({copies_.call(rank, blocks, slot), prefill_.view(rank, 0)}, streams[at(rank)]));
  });
}

/// Copies and their arrival.
void OverlapBench::copy(int slot, const std::vector<cudaStream_t>& streams) {
  ranks_.each([&](int rank) {
    const kernels::CopyArgs args{copies_.call(rank, 1, slot), copies_.host_peers(), prefill_.send_rows(rank),
                                 prefill_.receive_rows(rank), memory_ops_};
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch(args, streams[at(rank)]));
    DBO_BENCH_CHECK(kernels::launch_copy_dispatch_receive(args, streams[at(rank)]));
  });
}

/// Copies alone, packs alone, and both.
void OverlapBench::add_copy_arms(std::vector<Arm>& arms) {
  for (bool graph : {false, true}) {
    arms.push_back({"copies", 0, Control::None, graph,
                    [this](int i, const std::vector<cudaStream_t>& streams) { copy(i % 2, streams); }});
    for (Control control : {Control::None, Control::Target}) {
      arms.push_back({"pack and copies", 16, control, graph, [this](int i, const std::vector<cudaStream_t>& streams) {
                        pack(16, i % 2, streams);
                        copy(i % 2, streams);
                      }});
      if (graph) continue;
      arms.push_back({"pack alone", 16, control, graph,
                      [this](int i, const std::vector<cudaStream_t>& streams) { pack(16, i % 2, streams); }});
    }
  }
}

void OverlapBench::add_kernel_arms(std::vector<Arm>& arms) {
  const auto high_throughput = [this](int blocks) {
    return [this, blocks](int, const std::vector<cudaStream_t>& streams) {
      ranks_.each([&](int rank) {
        DBO_BENCH_CHECK(
            kernels::launch_ht_dispatch({ht_.call(rank, blocks), prefill_.view(rank, 0)}, streams[at(rank)]));
      });
    };
  };
  for (Control control : {Control::None, Control::Target, Control::Green, Control::GreenTarget}) {
    for (int blocks : {8, 16, 24}) {
      if (quick_ && blocks == 24) continue;
      arms.push_back({"lsa-ht dispatch", blocks, control, false, high_throughput(blocks)});
    }
  }
  for (Control control : {Control::None, Control::Target}) {
    arms.push_back({"lsa-ht dispatch", 16, control, true, high_throughput(16)});
    for (bool graph : {false, true}) {
      const int blocks = 16;
      arms.push_back(
          {"lsa-ll dispatch", blocks, control, graph, [this](int, const std::vector<cudaStream_t>& streams) {
             ranks_.each([&](int rank) {
               const kernels::A2aCall call = ll_.call(rank, blocks);
               DBO_BENCH_CHECK(kernels::launch_ll_dispatch_send({call, decode_.view(rank, 0)}, streams[at(rank)]));
               DBO_BENCH_CHECK(kernels::launch_ll_dispatch_receive(call, streams[at(rank)]));
             });
           }});
    }
  }
  for (bool graph : {false, true}) {
    if (!nccl_) continue;
    arms.push_back({"nccl send/recv", 0, Control::None, graph, [this](int, const std::vector<cudaStream_t>& streams) {
                      DBO_BENCH_CHECK(ncclGroupStart());
                      ranks_.each([&](int rank) {
                        const kernels::NcclArgs args{nccl_->call(rank, 1), prefill_.send_rows(rank),
                                                     prefill_.receive_rows(rank), (*comms_)[rank]};
                        DBO_BENCH_CHECK(kernels::nccl_dispatch(args, streams[at(rank)]));
                      });
                      DBO_BENCH_CHECK(ncclGroupEnd());
                    }});
  }
}

std::vector<Arm> OverlapBench::arms() {
  std::vector<Arm> arms;
  add_copy_arms(arms);
  add_kernel_arms(arms);
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
    for (int i = 0; i < number; ++i) arm.step(i, streams);
  };
  ExchangeRanks::Iteration first;
  first.enqueue = [&] { exchanges(1, comm_), gemm.enqueue(1, target, compute); };
  first.compute_streams = compute;
  first.gated = false;
  ranks_.run(first);
  const double per_exchange = ranks_.run({{}, [&] { exchanges(4, comm_); }}).comm / 4;
  const int steps = std::max(1, static_cast<int>(std::lround(kChainUs / per_exchange)));

  // The four parts of a repeat, enqueued or launched as graphs.
  const std::vector<std::function<void()>> parts = {[&] { gemm.enqueue(gemms, 0, {}); },
                                                    [&] { exchanges(steps, comm_); },
                                                    [&] {
                                                      exchanges(steps, comm);
                                                      gemm.enqueue(gemms, target, compute);
                                                    },
                                                    [&] { gemm.enqueue(gemms, target, compute); }};
  std::vector<std::unique_ptr<RankGraphs>> graphs;
  std::vector<ExchangeRanks::Iteration> iterations(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ExchangeRanks::Iteration& iteration = iterations[i];
    iteration.enqueue = parts[i];
    if (arm.graph) {
      graphs.push_back(std::make_unique<RankGraphs>(ranks_, BothLanes{}, parts[i]));
      iteration.enqueue = [graph = graphs.back().get()] { graph->launch(); };
      iteration.marked = true;
    }
  }
  for (std::size_t i : {2, 3}) iterations[i].compute_streams = compute;
  iterations[2].comm_streams = comm;
  std::vector<double> realised, gemm_factor, comm_factor, gemm_alone, gemm_us, comm_us;
  for (int repeat = 0; repeat < repeats_; ++repeat) {
    const double g = ranks_.run(iterations[0]).compute, c = ranks_.run(iterations[1]).comm;
    const LaneTimes pair = ranks_.run(iterations[2]);
    gemm_alone.push_back(ranks_.run(iterations[3]).compute / g);
    realised.push_back((g + c - pair.pair()) / (g + c - std::max(g, c)));
    gemm_factor.push_back(pair.compute / g);
    comm_factor.push_back(pair.comm / c);
    gemm_us.push_back(g / gemms);
    comm_us.push_back(c / steps);
  }
  const std::vector<std::string> cells = {kControlNames[static_cast<int>(arm.control)],
                                          std::to_string(arm.blocks),
                                          arm.graph ? "graph" : "stream",
                                          number(median(realised), 2),
                                          number(median(gemm_factor), 2),
                                          number(median(comm_factor), 2),
                                          number(median(gemm_alone), 2),
                                          number(median(gemm_us), 1),
                                          number(median(comm_us), 1)};
  std::vector<std::string> printed = {std::string(shape.name) + " | " + arm.name};
  printed.insert(printed.end(), cells.begin(), cells.end());
  table_.row(printed);
  std::vector<std::string> record = {shape.name, std::to_string(shape.m), std::to_string(shape.n),
                                     std::to_string(shape.k), arm.name};
  record.insert(record.end(), cells.begin(), cells.end());
  record.push_back(std::to_string(repeats_));
  records_.row(record);
}

void OverlapBench::run_shape(const GemmShape& shape) {
  GemmChain gemm(ranks_, shape);
  ExchangeRanks::Iteration first;
  first.enqueue = [&] { gemm.enqueue(2, 0, {}); };
  first.gated = false;
  ranks_.run(first);
  const double per_gemm = ranks_.run({{}, [&] { gemm.enqueue(8, 0, {}); }}).compute / 8;
  const int gemms = std::max(1, static_cast<int>(std::lround(kChainUs / per_gemm)));
  std::printf("# %s: %d x %d x %d\n", shape.name, shape.m, shape.n, shape.k);
  for (const Arm& arm : arms()) run_arm(shape, gemm, gemms, arm);
}

}  // namespace

int run_bench_overlap(const BenchOptions& options) {
  OverlapBench bench(options);
  bench.run();
  return 0;
}

}  // namespace dbo::bench
