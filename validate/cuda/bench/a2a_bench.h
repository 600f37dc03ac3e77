// `bench a2a`, what its sections share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/exchange_buffers.h"

namespace dbo::bench {

/// Bytes of the slowest rank: over the wire (to other ranks), and all (its own rows too).
struct Traffic {
  double wire = 0, logical = 0;
};

/// What one row of the tables measured.
struct A2aPoint {
  std::string transport, op;  ///< op: `dispatch`, `combine`, or a part of one
  std::string payload;        ///< `bf16`, `fp8`
  int tokens = 0;             ///< a rank
  int blocks = 0;             ///< SMs asked for; 0: none, or not ours to choose
  bool graph = false;
  std::string variant = {};  ///< what else was different
};

class A2aBench {
 public:
  explicit A2aBench(const BenchOptions& options);
  void decode();
  void prefill();
  void copies();

 private:
  void section(const std::string& name, const std::string& reference);
  void row(const A2aPoint& point, const Spread& us, const Traffic& traffic, double reference_us = 0);
  kernels::A2aShape shape_of(Transport transport, kernels::ElementType payload, int tokens) const;
  void verify(const SymmetricBuffers& buffers, const BenchTokens& tokens, int set, const char* what);

  void launch_floor();
  /// Sends alone; what they sent is received afterwards, untimed.
  Spread time_sends(const std::function<void(int, int)>& send, const std::function<void(int)>& receive);
  void low_latency(int tokens, kernels::ElementType payload, const std::vector<int>& blocks);
  void low_latency_combine(const SymmetricBuffers& buffers, const BenchTokens& tokens, A2aPoint point);

  void high_throughput(const BenchTokens& tokens, kernels::ElementType payload);
  void tuned_dispatch(const SymmetricBuffers& buffers, const BenchTokens& tokens, A2aPoint point);
  void dispatch_parts();
  void block_times(const SymmetricBuffers& buffers, const BenchTokens& tokens, int blocks, int wire_blocks);
  void nccl(const BenchTokens& tokens, bool registered);

  double bare_copy(double bytes, const A2aPoint& point);
  void copy_engine(int tokens, kernels::ElementType payload);

  ExchangeRanks ranks_;
  kernels::StreamMemoryOps memory_ops_;
  std::optional<NcclComms> comms_;
  int iterations_;
  bool quick_;
  std::optional<Table> table_;
  Records records_;
  double nccl_us_ = 0;  ///< pack + plain send/recv + unpack
};

inline const char* payload_name(kernels::ElementType payload) {
  return payload == kernels::ElementType::Bf16 ? "bf16" : "fp8";
}

/// `rows(from, to)`: rows of `row_bytes` that leave one rank for another.
template <typename Rows>
Traffic traffic_of(int ranks, std::size_t row_bytes, const Rows& rows) {
  Traffic most;
  for (int from = 0; from < ranks; ++from) {
    Traffic mine;
    for (int to = 0; to < ranks; ++to) {
      const double bytes = static_cast<double>(row_bytes) * rows(from, to);
      mine.logical += bytes;
      if (to != from) mine.wire += bytes;
    }
    if (mine.wire > most.wire) most.wire = mine.wire;
    if (mine.logical > most.logical) most.logical = mine.logical;
  }
  return most;
}

}  // namespace dbo::bench
