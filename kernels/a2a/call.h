// What every all-to-all kernel is told, and the small rules that host and device share. Plain C++: no CUDA types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/a2a/layout.h"

#if defined(__CUDACC__)
#define DBO_HOST_DEVICE __host__ __device__
#else
#define DBO_HOST_DEVICE
#endif

namespace dbo::kernels {

/// One call of a dispatch or combine kernel on one rank.
///
/// Ordering that the caller owes: within a slot, calls alternate dispatch and combine in one order on all ranks, and a
/// dispatch comes after the end of the slot's previous combine. Then no kernel needs to ask a peer whether its buffer
/// is free: a rank that sends dispatch n+1 has everybody's combine n, so everybody is done with dispatch n.
///
/// Spinning: at most the blocks of the waiting kernels spin, never for a block of their own kernel. Ranks that share a
/// GPU (loopback) need their blocks to be co-resident: keep the sum of `blocks` at or below the SM count and give each
/// rank's stream a hardware queue of its own (CUDA_DEVICE_MAX_CONNECTIONS).
struct A2aCall {
  A2aLayout layout;
  std::byte* base = nullptr;          ///< this rank's buffer
  std::byte* const* peers = nullptr;  ///< device array [ranks]: every rank's buffer as this GPU addresses it
  /// Remote peers are played by another GPU, or by this one: all peers but `rank` point at the partner's buffer, both
  /// use the same `rank`, and what goes to rank d is put where data from rank d is expected, so that a pair of GPUs
  /// (or one GPU with itself) exchanges what `ranks` ranks would.
  bool mirrored = false;
  int slot = 0;
  int blocks = 1;                             ///< thread blocks, one per SM: the SM knob
  std::uint64_t deadline_ns = 5'000'000'000;  ///< a wait longer than this prints who waited for whom, and traps
  /// 0, or time the wire takes: low latency: a receive holds until every source's send ended that long ago; high
  /// throughput: the kernel lasts at least that long from the moment the last rank entered it. 0 on all ranks or on
  /// none: with 0 a rank sends no times.
  std::uint64_t wire_ns = 0;
  const std::int64_t* clock_offset_ns = nullptr;  ///< device [ranks]: that source's clock minus ours; null: all 0
  std::uint64_t* progress = nullptr;              ///< host-mapped word, see ProgressStage; null: none
};

/// How the rank-major dispatch and the packs move rows; for measurements. Results do not depend on it.
struct ScatterTuning {
  int stages = 0;  ///< bf16: rows in the shared memory of each mover warp, at most; 0: as many as fit
  /// lsa-ht: blocks that send to other ranks while the rest move this rank's own rows, less than `blocks`; 0: every
  /// block does both; negative: as many as suit.
  int wire_blocks = -1;
};

/// %globaltimer of each block of a rank-major dispatch or pack.
enum class ScatterTime : int { Entered, Routed, Moved, Ended };
inline constexpr int kScatterTimes = 4;

/// tokens.rows is bf16; with an fp8 layout dispatch quantises (kernels/moe_buffers.h). The experts of a token are distinct.
struct DispatchArgs {
  A2aCall call;
  TokenView tokens;
  /// Packs only: device [ranks], rows the copies or messages were sized for; more rows trap. Null: max_tokens.
  const std::int32_t* row_limit = nullptr;
  std::uint64_t* times = nullptr;  ///< rank-major: device [blocks][kScatterTimes], see ScatterTime; null: none
  ScatterTuning tuning = {};
};

/// tokens: those of the dispatch (rank-major combines read only `tokens.tokens`; their routing is kept in the buffer).
struct CombineArgs {
  A2aCall call;
  TokenView tokens;
  void* out = nullptr;  ///< [tokens][hidden] bf16; a token with no expert gets zeros
};

/// What one call adds to each arrival flag of the one-sided transports, all blocks of its kernel together; so `blocks`
/// is at most that. Flags wrap together with kArrivalUnits * epoch.
inline constexpr std::uint32_t kArrivalUnits = 1u << 16;

/// What a progress word holds: epoch << 8 | stage.
enum class ProgressStage : std::uint8_t { None = 0, Entered = 1, Sent = 2, Waiting = 3, Done = 4 };

DBO_HOST_DEVICE constexpr std::uint64_t progress_word(std::uint32_t epoch, ProgressStage stage) {
  return (std::uint64_t{epoch} << 8) | static_cast<std::uint64_t>(stage);
}

/// Who waits, for the message of a missed deadline.
enum class WaitOp : int { HtDispatch, HtCombine, LlDispatch, LlCombine, CopyDispatch, CopyCombine, Gate, Clock };

// A route entry says where a token went: rank in the upper 12 bits, slot in the lower 20.
inline constexpr std::uint32_t kNoRoute = 0xffffffffu;
DBO_HOST_DEVICE constexpr std::uint32_t pack_route(int rank, int slot) {
  return (static_cast<std::uint32_t>(rank) << 20) | static_cast<std::uint32_t>(slot);
}
DBO_HOST_DEVICE constexpr int route_rank(std::uint32_t entry) {
  return static_cast<int>(entry >> 20);
}
DBO_HOST_DEVICE constexpr int route_slot(std::uint32_t entry) {
  return static_cast<int>(entry & 0xfffffu);
}

/// Expert index to rank by one multiplication instead of a division: exact for both below 2^16, since with
/// m = ceil(2^32 / d) = (2^32 + r) / d, r < d, the quotient's error e r / (d 2^32) stays below 1 / d.
struct ExpertRanks {
  std::uint32_t magic = 0;  ///< 0: one expert per rank

  constexpr ExpertRanks() = default;
  constexpr explicit ExpertRanks(int experts_per_rank)
      : magic(experts_per_rank == 1 ? 0
                                    : static_cast<std::uint32_t>(((std::uint64_t{1} << 32) +
                                                                  static_cast<std::uint64_t>(experts_per_rank) - 1) /
                                                                 static_cast<std::uint64_t>(experts_per_rank))) {}
  DBO_HOST_DEVICE constexpr int rank_of(int expert) const {
    if (magic == 0) return expert;
    return static_cast<int>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(expert)) * magic) >> 32);
  }
};

}  // namespace dbo::kernels
