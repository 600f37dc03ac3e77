// Kernels that take the place of real ones: they last a given time on a given number of SMs, move given bytes, and keep
// the arrival rules of dispatch and combine, so that order, overlap and graphs can be proven without the real work.
// Plain C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dbo::kernels {

/// Ranks that exchange arrival flags directly, one GPU each.
inline constexpr int kStandInRanks = 16;
/// 32 SMs a word.
inline constexpr int kSmWords = 8;

/// What one launch leaves behind, in device memory. Times are the GPU's %globaltimer. The end is when its last block
/// stopped, but for the kernel's own exit; it is written ahead of time, like all that the launch tells.
struct OpStamp {
  std::uint64_t begin_ns;  ///< first block began
  std::uint64_t ready_ns;  ///< receives and comm kernels: what they waited for was there; others 0
  std::uint64_t end_ns;    ///< last block ended
  std::uint32_t sm_mask[kSmWords];
  std::uint32_t blocks_done;  ///< wraps to 0
  std::uint32_t missing;      ///< 1 + the rank whose part did not come before the deadline; 0: all came
};

/// A rank's mailbox, in memory that all ranks can write: the step's number, and for each (source rank, call) when that
/// rank's part is done and in which step. Step numbers only grow, so that a graph can be replayed without clearing
/// them.
struct Mailbox {
  std::byte* base = nullptr;
  int ranks = 1;
  int calls = 0;
};
std::size_t mailbox_bytes(int ranks, int calls);
/// Offset of the word (64 bits) in a mailbox that holds %globaltimer at the last step's begin.
inline constexpr std::size_t kMailboxBeginOffset = 8;

enum class StandInRole : std::uint8_t {
  Work,       ///< lasts `duration_ns`
  Send,       ///< lasts `duration_ns`; tells every rank, before it ends, when it will have ended
  Receive,    ///< holds until every source's send ended `wire_ns` ago, then lasts `duration_ns`
  Collective  ///< tells every rank that it began, waits for all, lasts `duration_ns` from the last one's begin
};

struct StandInArgs {
  StandInRole role = StandInRole::Work;
  OpStamp* stamp = nullptr;
  /// From the first block's begin (or arrival) to the end. What a launch does besides (stamps, flags, looking for what
  /// it waits for) happens within it; a launch given less than that, some microseconds, lasts as long as that takes.
  std::uint64_t duration_ns = 0;
  /// All but Receive: bytes copied from `src` to `dst` (16-byte aligned) while the time runs; the launch lasts at least
  /// as long as the copy.
  const void* src = nullptr;
  void* dst = nullptr;
  std::uint64_t bytes = 0;
  int blocks = 1;
  bool whole_sm = true;  ///< no other launch with `whole_sm` shares an SM with this one

  // Send, Receive, Collective.
  std::byte* mailbox = nullptr;                   ///< this rank's
  std::byte* peers[kStandInRanks] = {};           ///< every rank's, as this GPU addresses it; own included
  const std::int64_t* clock_offset_ns = nullptr;  ///< device [ranks]: that rank's %globaltimer minus ours; null: 0
  int ranks = 1, rank = 0;
  int calls = 0, call = 0;
  std::uint64_t wire_ns = 0;
  std::uint64_t deadline_ns = 5'000'000'000;  ///< then the launch notes who is missing and ends
  std::uint64_t notify_ns = 0;                ///< Collective: after all have begun, when the counts are known
  std::uint64_t* notify_word = nullptr;       ///< Collective: host-mapped, gets the step's number then; null: none

  std::uint64_t* progress = nullptr;  ///< host-mapped word of the lane; null: none
  std::uint32_t ordinal = 0;          ///< what the lane has done once this launch is over: 1 for its first op
  /// SM clock in cycles per 1024 ns where %globaltimer ticks too coarsely to time with; 0: time with %globaltimer.
  std::uint32_t cycles_per_1024_ns = 0;
};

/// What a lane's progress word holds.
constexpr std::uint64_t progress_value(std::uint32_t step, std::uint32_t ordinal) {
  return (std::uint64_t{step} << 32) | ordinal;
}

/// cudaErrorInvalidValue for counts out of range, misaligned or missing pointers.
[[nodiscard]] cudaError_t launch_stand_in(const StandInArgs& args, cudaStream_t stream);

struct StepBeginArgs {
  std::byte* mailbox = nullptr;
  OpStamp* stamps = nullptr;  ///< [ops], cleared
  int ops = 0;
};
/// The first launch of a step: numbers it and clears its stamps.
[[nodiscard]] cudaError_t launch_step_begin(const StepBeginArgs& args, cudaStream_t stream);

/// What a GPU's timers are like.
struct TimerProbe {
  std::uint64_t tick_ns;             ///< smallest step of %globaltimer that was seen
  std::uint32_t cycles_per_1024_ns;  ///< SM clock while the probe ran
  std::uint32_t read_cycles;         ///< cycles to read %globaltimer once
};
/// Takes about 3 ms on one SM. `probe` is device memory.
[[nodiscard]] cudaError_t launch_timer_probe(TimerProbe* probe, cudaStream_t stream);

/// A kernel that does nothing: what a launch costs.
[[nodiscard]] cudaError_t launch_nothing(cudaStream_t stream);

/// Questions and answers between two GPUs for the difference of their %globaltimer; `box` and `peer_box` are 64 bytes
/// of each GPU's own memory, zero before the first launch. Launch it on both at the same time, one as `asks`.
struct ClockEchoArgs {
  std::uint64_t* box = nullptr;
  std::uint64_t* peer_box = nullptr;
  bool asks = false;
  int rounds = 100;
  std::uint64_t rounds_before = 0;  ///< of all launches with these boxes
  std::uint64_t deadline_ns = 2'000'000'000;
  /// The asking side, device [2]: peer's clock minus ours, and how wrong that can be (half the quickest round trip);
  /// the second is negative when the peer did not answer.
  std::int64_t* result = nullptr;
};
[[nodiscard]] cudaError_t launch_clock_echo(const ClockEchoArgs& args, cudaStream_t stream);

/// Must run once per device, before a capture: raises the shared-memory limit of the kernels.
[[nodiscard]] cudaError_t prepare_stand_in();

}  // namespace dbo::kernels
