#include "validate/cuda/bench/exchange_buffers.h"

#include <algorithm>
#include <numeric>

#include "kernels/compute/pointwise.h"
#include "sim/base/error.h"

namespace dbo::bench {
namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

/// splitmix64
std::uint64_t draw(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Random bf16 in [-1, 1).
void fill(void* out, std::int64_t elements, int seed, cudaStream_t stream) {
  kernels::FillArgs args;
  args.out = out;
  args.count = elements;
  args.seed = static_cast<std::uint64_t>(seed);
  DBO_BENCH_CHECK(kernels::launch_fill(args, stream));
}

template <typename T>
Memory upload_values(const std::vector<T>& values) {
  Memory memory(static_cast<std::int64_t>(values.size() * sizeof(T)));
  DBO_BENCH_CHECK(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault));
  return memory;
}

}  // namespace

void check(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) throw NcclError(std::string(what) + ": " + ncclGetErrorString(status));
}

NcclComms::NcclComms(const ExchangeRanks& ranks) : comms_(at(ranks.count()), nullptr) {
  if (ranks.is_loopback()) throw InputError("bench: NCCL needs a GPU per rank");
  int version = 0;
  DBO_BENCH_CHECK(ncclGetVersion(&version));
  if (version != NCCL_VERSION_CODE) {
    throw NcclError("bench: built for NCCL " + std::to_string(NCCL_VERSION_CODE) + ", running with " +
                    std::to_string(version) + ": device structures differ between releases");
  }
  const std::vector<int> devices = ranks.devices();
  DBO_BENCH_CHECK(ncclCommInitAll(comms_.data(), ranks.count(), devices.data()));
}

NcclComms::~NcclComms() {
  for (ncclComm_t comm : comms_) {
    if (comm != nullptr) (void)ncclCommAbort(comm);  // at the end of a benchmark: nothing to do about a failure
  }
}

SymmetricBuffers::SymmetricBuffers(const ExchangeRanks& ranks, const kernels::A2aShape& shape,
                                   const NcclComms* windows_of)
    : ranks_(ranks), comms_(windows_of), bases_(at(ranks.count()), nullptr), windows_(at(ranks.count()), nullptr) {
  ranks.each([&](int rank) {
    kernels::A2aShape own = shape;
    own.dims.rank = rank;
    layouts_.push_back(kernels::make_a2a_layout(own));
    const std::size_t bytes = layouts_.back().total_bytes;
    if (comms_ != nullptr) {
      DBO_BENCH_CHECK(ncclMemAlloc(reinterpret_cast<void**>(&bases_[at(rank)]), bytes));
    } else {
      DBO_BENCH_CHECK(cudaMalloc(&bases_[at(rank)], bytes));
    }
    // Expert outputs are whatever they are, but not zeros.
    const kernels::Area outputs = layouts_.back().outputs;
    fill(kernels::expert_outputs(layouts_.back(), bases_[at(rank)], 0), static_cast<std::int64_t>(outputs.bytes / 2),
         77 + rank, ranks[rank].comm);
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
  });
  if (comms_ != nullptr) {
    DBO_BENCH_CHECK(ncclGroupStart());
    ranks.each([&](int rank) {
      DBO_BENCH_CHECK(ncclCommWindowRegister((*comms_)[rank], bases_[at(rank)], layouts_[at(rank)].total_bytes,
                                             &windows_[at(rank)], NCCL_WIN_DEFAULT));
    });
    DBO_BENCH_CHECK(ncclGroupEnd());
  }
  ranks.each([&](int) { peers_.push_back(upload_values(bases_)); });
  reset();
}

void SymmetricBuffers::reset() const {
  ranks_.each([&](int rank) {
    DBO_BENCH_CHECK(cudaMemset(bases_[at(rank)], 0, layouts_[at(rank)].control_bytes));
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
  });
}

SymmetricBuffers::~SymmetricBuffers() {
  if (comms_ != nullptr) (void)ncclGroupStart();
  for (int rank = 0; rank < ranks_.count() && comms_ != nullptr; ++rank) {
    (void)cudaSetDevice(ranks_[rank].device);
    if (windows_[at(rank)] != nullptr) (void)ncclCommWindowDeregister((*comms_)[rank], windows_[at(rank)]);
  }
  if (comms_ != nullptr) (void)ncclGroupEnd();
  for (int rank = 0; rank < ranks_.count(); ++rank) {
    (void)cudaSetDevice(ranks_[rank].device);
    (void)cudaDeviceSynchronize();
    if (comms_ != nullptr) {
      (void)ncclMemFree(bases_[at(rank)]);
    } else {
      (void)cudaFree(bases_[at(rank)]);
    }
  }
}

kernels::A2aCall SymmetricBuffers::call(int rank, int blocks, int slot) const {
  kernels::A2aCall call;
  call.layout = layouts_[at(rank)];
  call.base = bases_[at(rank)];
  call.peers = peers_[at(rank)].as<std::byte*>();
  call.blocks = blocks;
  call.slot = slot;
  return call;
}

BenchTokens::BenchTokens(const ExchangeRanks& ranks, const kernels::MoeDims& dims, int tokens, BenchRouting routing)
    : tokens_(tokens), received_rows_(at(ranks.count()), std::vector<std::int32_t>(at(ranks.count()), 0)) {
  const int experts = dims.experts_per_rank * dims.ranks;
  ranks.each([&](int rank) {
    PerRank& data = ranks_data_.emplace_back();
    std::vector<std::int32_t> to_rank(at(dims.ranks), 0), to_experts(at(dims.ranks), 0);
    std::vector<float> weights;
    std::vector<int> all(at(experts));
    std::iota(all.begin(), all.end(), 0);
    std::erase_if(all, [&](int expert) {
      const bool own = expert / dims.experts_per_rank == rank;
      return routing == BenchRouting::Remote ? own : routing == BenchRouting::Own && !own;
    });
    std::uint64_t state = 1234 + static_cast<std::uint64_t>(rank);
    for (int token = 0; token < tokens; ++token) {
      std::vector<bool> seen(at(dims.ranks), false);
      for (int k = 0; k < dims.top_k; ++k) {
        std::swap(all[at(k)], all[at(k) + draw(state) % (all.size() - at(k))]);
        const int to = all[at(k)] / dims.experts_per_rank;
        data.host_experts.push_back(all[at(k)]);
        weights.push_back(1.0f / static_cast<float>(dims.top_k));
        ++to_experts[at(to)];
        if (!seen[at(to)]) ++to_rank[at(to)];
        seen[at(to)] = true;
      }
    }
    data.expert = upload_values(data.host_experts);
    data.weight = upload_values(weights);
    const std::int64_t elements = std::int64_t{tokens} * dims.hidden;
    for (int set = 0; set < kSets; ++set) {
      data.rows.emplace_back(elements * 2);
      fill(data.rows.back().get(), elements, rank * kSets + set, ranks[rank].comm);
    }
    data.out = Memory(elements * 2);
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
    rank_rows_.push_back(std::move(to_rank));
    expert_rows_.push_back(std::move(to_experts));
  });
  for (int from = 0; from < ranks.count(); ++from) {
    for (int to = 0; to < ranks.count(); ++to) received_rows_[at(to)][at(from)] = rank_rows(from, to);
  }
}

kernels::TokenView BenchTokens::view(int rank, int set) const {
  const PerRank& data = ranks_data_[at(rank)];
  return {data.rows[at(set % kSets)].get(), data.expert.as<std::int32_t>(), data.weight.as<float>(), tokens_};
}

void RankGraphs::end_capture(int rank) {
  cudaGraph_t graph = nullptr;
  DBO_BENCH_CHECK(cudaStreamEndCapture(ranks_[rank].comm, &graph));
  // Otherwise every kernel would have the priority of the stream the graph is launched on.
  DBO_BENCH_CHECK(cudaGraphInstantiate(&graphs_.emplace_back(), graph, cudaGraphInstantiateFlagUseNodePriority));
  DBO_BENCH_CHECK(cudaGraphDestroy(graph));
  DBO_BENCH_CHECK(cudaGraphUpload(graphs_.back(), ranks_[rank].comm));
}

RankGraphs::RankGraphs(const ExchangeRanks& ranks, const std::function<void(int)>& enqueue) : ranks_(ranks) {
  ranks.each([&](int rank) {
    DBO_BENCH_CHECK(cudaStreamBeginCapture(ranks[rank].comm, cudaStreamCaptureModeThreadLocal));
    enqueue(rank);
    end_capture(rank);
  });
  ranks.wait();
}

RankGraphs::RankGraphs(const ExchangeRanks& ranks, BothLanes, const std::function<void()>& enqueue) : ranks_(ranks) {
  std::vector<cudaEvent_t> forks(at(ranks.count()), nullptr), joins(at(ranks.count()), nullptr);
  ranks.each([&](int rank) {
    for (cudaEvent_t* event : {&forks[at(rank)], &joins[at(rank)]}) {
      DBO_BENCH_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
    DBO_BENCH_CHECK(cudaStreamBeginCapture(ranks[rank].comm, cudaStreamCaptureModeRelaxed));
    DBO_BENCH_CHECK(cudaEventRecord(forks[at(rank)], ranks[rank].comm));
    DBO_BENCH_CHECK(cudaStreamWaitEvent(ranks[rank].compute, forks[at(rank)]));
  });
  enqueue();
  ranks.each([&](int rank) {
    ranks.record_ends(rank, ranks[rank].comm, ranks[rank].compute);
    DBO_BENCH_CHECK(cudaEventRecord(joins[at(rank)], ranks[rank].compute));
    DBO_BENCH_CHECK(cudaStreamWaitEvent(ranks[rank].comm, joins[at(rank)]));
    end_capture(rank);
    for (cudaEvent_t event : {forks[at(rank)], joins[at(rank)]}) (void)cudaEventDestroy(event);
  });
  ranks.wait();
}

RankGraphs::~RankGraphs() {
  for (cudaGraphExec_t graph : graphs_) (void)cudaGraphExecDestroy(graph);
}

void RankGraphs::launch() const {
  ranks_.each([&](int rank) { DBO_BENCH_CHECK(cudaGraphLaunch(graphs_[at(rank)], ranks_[rank].comm)); });
}

}  // namespace dbo::bench
