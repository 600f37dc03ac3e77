// Symmetric buffers, tokens and NCCL communicators of an all-to-all benchmark.
#pragma once

#include <nccl.h>

#include <array>
#include <memory>
#include <vector>

#include "kernels/a2a/nccl_exchange.h"
#include "validate/cuda/bench/exchange_ranks.h"

namespace dbo::bench {

void check(ncclResult_t status, const char* what);

/// One communicator rank per GPU. Not for loopback: NCCL refuses two ranks on a GPU.
class NcclComms {
 public:
  explicit NcclComms(const ExchangeRanks& ranks);
  ~NcclComms();
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;
  ncclComm_t operator[](int rank) const { return comms_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<ncclComm_t> comms_;
};

/// A buffer per rank, laid out for `shape`, with its peers; in plain device memory or in NCCL windows.
class SymmetricBuffers {
 public:
  SymmetricBuffers(const ExchangeRanks& ranks, const kernels::A2aShape& shape, const NcclComms* windows_of = nullptr);
  ~SymmetricBuffers();
  SymmetricBuffers(const SymmetricBuffers&) = delete;
  SymmetricBuffers& operator=(const SymmetricBuffers&) = delete;

  /// Zeroes the control parts of all ranks, which must be idle: dispatches without their combines leave flags apart.
  void reset() const;
  /// A call on `rank` with that many blocks.
  kernels::A2aCall call(int rank, int blocks, int slot = 0) const;
  std::byte* const* host_peers() const { return bases_.data(); }
  const kernels::A2aLayout& layout(int rank) const { return layouts_[static_cast<std::size_t>(rank)]; }

 private:
  const ExchangeRanks& ranks_;
  const NcclComms* comms_;
  std::vector<kernels::A2aLayout> layouts_;
  std::vector<std::byte*> bases_;
  std::vector<ncclWindow_t> windows_;
  std::vector<Memory> peers_;
};

/// Which experts tokens choose from: all, those of other ranks, those of their own rank.
enum class BenchRouting { All, Remote, Own };

/// Tokens of every rank: one routing, drawn evenly without repetition, and several sets of random rows.
class BenchTokens {
 public:
  BenchTokens(const ExchangeRanks& ranks, const kernels::MoeDims& dims, int tokens,
              BenchRouting routing = BenchRouting::All);

  kernels::TokenView view(int rank, int set) const;
  std::byte* out(int rank) const { return ranks_data_[static_cast<std::size_t>(rank)].out.as<std::byte>(); }
  static constexpr int kSets = 3;

  /// Rows that leave `from` for `to`: one per (token, rank), or per (token, expert).
  int rank_rows(int from, int to) const {
    return rank_rows_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
  int expert_rows(int from, int to) const {
    return expert_rows_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
  /// rank_rows(rank, *) and rank_rows(*, rank).
  const std::int32_t* send_rows(int rank) const { return rank_rows_[static_cast<std::size_t>(rank)].data(); }
  const std::int32_t* receive_rows(int rank) const { return received_rows_[static_cast<std::size_t>(rank)].data(); }
  const std::vector<std::int32_t>& experts(int rank) const {
    return ranks_data_[static_cast<std::size_t>(rank)].host_experts;
  }

 private:
  struct PerRank {
    std::vector<Memory> rows;
    Memory expert, weight, out;
    std::vector<std::int32_t> host_experts;
  };
  int tokens_ = 0;
  std::vector<PerRank> ranks_data_;
  std::vector<std::vector<std::int32_t>> rank_rows_, expert_rows_, received_rows_;
};

struct BothLanes {};

/// One captured graph per rank, launched together. Kernels keep the priority of the streams they were captured from.
class RankGraphs {
 public:
  /// `enqueue(rank)` is captured from the rank's comm stream.
  RankGraphs(const ExchangeRanks& ranks, const std::function<void(int)>& enqueue);
  /// `enqueue` fills the comm and compute streams of all ranks, which the graphs fork, mark (record_ends) and join.
  RankGraphs(const ExchangeRanks& ranks, BothLanes, const std::function<void()>& enqueue);
  ~RankGraphs();
  RankGraphs(const RankGraphs&) = delete;
  RankGraphs& operator=(const RankGraphs&) = delete;
  void launch() const;

 private:
  void end_capture(int rank);
  const ExchangeRanks& ranks_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace dbo::bench
