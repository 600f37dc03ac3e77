#include "validate/cuda/bench/exchange_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>

#include "kernels/a2a/probe.h"

namespace dbo::bench {
namespace {

constexpr int kRanks = 2;
/// Several times the L2 (60 MB on an H200).
constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;
constexpr double kHangSeconds = 20;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

void enable_peers(int gpus) {
  for (int device = 0; device < gpus; ++device) {
    DBO_BENCH_CHECK(cudaSetDevice(device));
    for (int other = 0; other < gpus; ++other) {
      if (other == device) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();  // clears it
      } else {
        DBO_BENCH_CHECK(status);
      }
    }
  }
}

}  // namespace

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto nearest = [&](std::size_t percent) { return values[(values.size() - 1) * percent / 100]; };
  return {nearest(50), nearest(10), nearest(90)};
}

double median(std::vector<double> values) {
  return spread(std::move(values)).median;
}

ExchangeRanks::ExchangeRanks() : ranks_(kRanks), extra_(kRanks) {
  int gpus = 0;
  DBO_BENCH_CHECK(cudaGetDeviceCount(&gpus));
  gpus = std::min(gpus, kRanks);
  loopback_ = gpus < kRanks;
  enable_peers(gpus);
  DBO_BENCH_CHECK(
      cudaHostAlloc(reinterpret_cast<void**>(&open_), sizeof *open_, cudaHostAllocMapped | cudaHostAllocPortable));
  *open_ = 0;
  const kernels::A2aShape shape{.dims = {.ranks = kRanks, .hidden = 128, .max_tokens = 1}, .slots = 1};
  for (int rank = 0; rank < kRanks; ++rank) ranks_[at(rank)].device = rank % gpus;
  each([&](int rank) {
    DBO_BENCH_CHECK(kernels::preload_a2a());
    int low = 0, high = 0;
    DBO_BENCH_CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
    RankGpu& r = ranks_[at(rank)];
    DBO_BENCH_CHECK(cudaStreamCreateWithPriority(&r.comm, cudaStreamNonBlocking, high));
    DBO_BENCH_CHECK(cudaStreamCreateWithPriority(&r.compute, cudaStreamNonBlocking, low));
    Extra& e = extra_[at(rank)];
    for (cudaEvent_t* event : {&e.begin, &e.comm_end, &e.compute_end}) DBO_BENCH_CHECK(cudaEventCreate(event));
    DBO_BENCH_CHECK(cudaEventCreateWithFlags(&e.started, cudaEventDisableTiming));
    kernels::A2aCall call;
    kernels::A2aShape own = shape;
    own.dims.rank = rank;
    call.layout = kernels::make_a2a_layout(own);
    e.gate_buffer = Memory(static_cast<std::int64_t>(call.layout.total_bytes));
    e.peers = Memory(kRanks * static_cast<std::int64_t>(sizeof(std::byte*)));
    e.flush = Memory(kFlushBytes);
    DBO_BENCH_CHECK(cudaMemset(e.gate_buffer.get(), 0, call.layout.total_bytes));
    call.base = e.gate_buffer.as<std::byte>();
    call.peers = e.peers.as<std::byte*>();
    gate_calls_.push_back(call);
  });
  std::vector<std::byte*> bases;
  for (const kernels::A2aCall& call : gate_calls_) bases.push_back(call.base);
  each([&](int rank) {
    DBO_BENCH_CHECK(
        cudaMemcpy(extra_[at(rank)].peers.get(), bases.data(), bases.size() * sizeof(std::byte*), cudaMemcpyDefault));
    // Gate 0 is open: this only loads the kernel, which must not happen while another rank's gate spins.
    DBO_BENCH_CHECK(kernels::launch_gate({gate_calls_[at(rank)], open_, 0}, ranks_[at(rank)].comm));
    DBO_BENCH_CHECK(cudaDeviceSynchronize());
  });
}

ExchangeRanks::~ExchangeRanks() {
  // Failures are ignored: results are out already.
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    (void)cudaSetDevice(ranks_[i].device);
    for (cudaEvent_t event : {extra_[i].started, extra_[i].begin, extra_[i].comm_end, extra_[i].compute_end}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
    for (cudaStream_t stream : {ranks_[i].comm, ranks_[i].compute}) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    }
  }
  if (open_ != nullptr) (void)cudaFreeHost(open_);
}

std::vector<int> ExchangeRanks::devices() const {
  std::vector<int> devices;
  for (const RankGpu& rank : ranks_) devices.push_back(rank.device);
  return devices;
}

void ExchangeRanks::each(const std::function<void(int)>& work) const {
  for (int rank = 0; rank < count(); ++rank) {
    DBO_BENCH_CHECK(cudaSetDevice(ranks_[at(rank)].device));
    work(rank);
  }
}

void ExchangeRanks::wait() const {
  const auto begin = std::chrono::steady_clock::now();
  for (const RankGpu& rank : ranks_) {
    for (cudaStream_t stream : {rank.comm, rank.compute}) {
      while (true) {
        const cudaError_t status = cudaStreamQuery(stream);
        if (status == cudaSuccess) break;
        if (status != cudaErrorNotReady) check(status, "kernels of a benchmark");
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > kHangSeconds) {
          // No exception: unwinding would free memory, which waits for the very kernels that hang.
          std::fprintf(stderr, "benchmark: GPU %d did not finish in %g s\n", rank.device, kHangSeconds);
          std::fflush(nullptr);
          _exit(3);
        }
      }
    }
  }
}

LaneTimes ExchangeRanks::run(const Iteration& iteration) {
  const auto comm_of = [&](int rank) {
    return iteration.comm_streams.empty() ? ranks_[at(rank)].comm : iteration.comm_streams[at(rank)];
  };
  const auto compute_of = [&](int rank) {
    return iteration.compute_streams.empty() ? ranks_[at(rank)].compute : iteration.compute_streams[at(rank)];
  };
  if (iteration.gated) ++gates_;
  if (iteration.prepare) iteration.prepare();
  each([&](int rank) {
    const RankGpu& r = ranks_[at(rank)];
    const Extra& e = extra_[at(rank)];
    DBO_BENCH_CHECK(cudaMemsetAsync(e.flush.get(), static_cast<int>(gates_ & 0xff), kFlushBytes, r.comm));
    if (iteration.gated) DBO_BENCH_CHECK(kernels::launch_gate({gate_calls_[at(rank)], open_, gates_}, r.comm));
    DBO_BENCH_CHECK(cudaEventRecord(e.started, r.comm));
    DBO_BENCH_CHECK(cudaEventRecord(e.begin, r.comm));
    DBO_BENCH_CHECK(cudaStreamWaitEvent(compute_of(rank), e.started));
    if (comm_of(rank) != r.comm) DBO_BENCH_CHECK(cudaStreamWaitEvent(comm_of(rank), e.started));
  });
  iteration.enqueue();
  each([&](int rank) {
    if (iteration.marked) return;
    const Extra& e = extra_[at(rank)];
    DBO_BENCH_CHECK(cudaEventRecord(e.comm_end, comm_of(rank)));
    DBO_BENCH_CHECK(cudaEventRecord(e.compute_end, compute_of(rank)));
    DBO_BENCH_CHECK(cudaStreamWaitEvent(ranks_[at(rank)].comm, e.compute_end));
    if (comm_of(rank) != ranks_[at(rank)].comm) DBO_BENCH_CHECK(cudaStreamWaitEvent(ranks_[at(rank)].comm, e.comm_end));
  });
  std::atomic_ref<std::uint64_t>(*open_).store(gates_, std::memory_order_release);
  wait();
  LaneTimes slowest;
  each([&](int rank) {
    const Extra& e = extra_[at(rank)];
    float comm = 0, compute = 0;
    DBO_BENCH_CHECK(cudaEventElapsedTime(&comm, e.begin, e.comm_end));
    DBO_BENCH_CHECK(cudaEventElapsedTime(&compute, e.begin, e.compute_end));
    slowest.comm = std::max(slowest.comm, double{comm} * 1000);
    slowest.compute = std::max(slowest.compute, double{compute} * 1000);
  });
  return slowest;
}

void ExchangeRanks::record_ends(int rank, cudaStream_t comm, cudaStream_t compute) const {
  const Extra& e = extra_[at(rank)];
  DBO_BENCH_CHECK(cudaEventRecordWithFlags(e.comm_end, comm, cudaEventRecordExternal));
  DBO_BENCH_CHECK(cudaEventRecordWithFlags(e.compute_end, compute, cudaEventRecordExternal));
}

Spread ExchangeRanks::measure(int iterations, const std::function<void(int)>& enqueue,
                              const std::function<void(int)>& prepare) {
  const auto numbered = [&](int i) {
    Iteration iteration;
    if (prepare) iteration.prepare = [&prepare, i] { prepare(i); };
    iteration.enqueue = [&enqueue, i] { enqueue(i); };
    return iteration;
  };
  Iteration first = numbered(0);
  first.gated = false;
  run(first);
  run(numbered(1));
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) times.push_back(run(numbered(i)).comm);
  return spread(std::move(times));
}

}  // namespace dbo::bench
