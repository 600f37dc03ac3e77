// Ranks of an all-to-all benchmark: one per GPU (or several on one), streams, a common start, timing by events.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/a2a/a2a.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {

struct RankGpu {
  int device = 0;
  cudaStream_t comm = nullptr;     ///< high priority, non-blocking
  cudaStream_t compute = nullptr;  ///< low priority, non-blocking
};

/// Of repeated times, in us.
struct Spread {
  double median = 0, p10 = 0, p90 = 0;
};
Spread spread(std::vector<double> values);
double median(std::vector<double> values);

/// Times of one iteration in us, each the slowest rank's, from the common start.
struct LaneTimes {
  double comm = 0;     ///< until the comm stream's work is done
  double compute = 0;  ///< until the compute stream's is
  double pair() const { return comm > compute ? comm : compute; }
};

class ExchangeRanks {
 public:
  /// Two ranks: on two GPUs with peer access, or both on the only one (then nothing crosses a wire).
  ExchangeRanks();
  ~ExchangeRanks();
  ExchangeRanks(const ExchangeRanks&) = delete;
  ExchangeRanks& operator=(const ExchangeRanks&) = delete;

  int count() const { return static_cast<int>(ranks_.size()); }
  bool is_loopback() const { return loopback_; }
  const RankGpu& operator[](int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  std::vector<int> devices() const;

  /// Runs `work` on every rank, its device current.
  void each(const std::function<void(int)>& work) const;
  /// Waits for all streams. Ends the process with exit code 3 after 20 s: a GPU hangs.
  void wait() const;

  /// What one iteration puts on the ranks' streams.
  struct Iteration {
    std::function<void()> prepare;                   ///< before the common start, not timed; may be empty
    std::function<void()> enqueue;                   ///< timed
    std::vector<cudaStream_t> comm_streams = {};     ///< instead of the ranks' own, if not empty
    std::vector<cudaStream_t> compute_streams = {};  ///< likewise
    bool gated = true;    ///< false: without the common start, for a first call that may set something up
    bool marked = false;  ///< `enqueue` records the ends itself, by record_ends
  };
  /// Runs one: prepare, flush of the L2, a start common to all ranks with everything enqueued already, the timed work.
  LaneTimes run(const Iteration& iteration);
  /// Records the ends of both lanes on streams that are being captured: the graph then records them whenever it runs.
  void record_ends(int rank, cudaStream_t comm, cudaStream_t compute) const;
  /// Comm times over `iterations` after two warm-up rounds. The functions get the iteration's number.
  Spread measure(int iterations, const std::function<void(int)>& enqueue, const std::function<void(int)>& prepare = {});

 private:
  struct Extra {
    Memory gate_buffer, peers, flush;
    cudaEvent_t started = nullptr, begin = nullptr, comm_end = nullptr, compute_end = nullptr;
  };
  std::vector<RankGpu> ranks_;
  std::vector<Extra> extra_;
  bool loopback_ = false;
  std::vector<kernels::A2aCall> gate_calls_;
  std::uint64_t* open_ = nullptr;  ///< host-mapped
  std::uint64_t gates_ = 0;
};

}  // namespace dbo::bench
