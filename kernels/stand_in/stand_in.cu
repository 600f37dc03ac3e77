#include "kernels/stand_in/stand_in.h"

namespace dbo::kernels {
namespace {

constexpr int kThreads = 256;
// More than half of an SM's shared memory: two such blocks never share an SM.
constexpr int kWholeSmBytes = 120 * 1024;

__device__ __forceinline__ std::uint64_t global_time() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ std::uint32_t sm_id() {
  std::uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// A mailbox: the step's number (and when it began, and the last step in which a rank was given up), then a word for
// each [rank][call]: in its upper bits the step in which that rank's part was told, below them when it is done, on that
// rank's clock. One store tells both, and none has to come before another.
constexpr std::size_t kHeaderBytes = 256;
constexpr std::size_t kGivenUpOffset = 16;
constexpr int kTimeBits = 40;  // 18 minutes; a clock reading is far closer than that to the time it is compared with
constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << kTimeBits) - 1;

__device__ std::uint32_t* step_word(std::byte* mailbox) {
  return reinterpret_cast<std::uint32_t*>(mailbox);
}

__device__ std::uint64_t* word_of(const StandInArgs& a, std::byte* mailbox, int source) {
  return reinterpret_cast<std::uint64_t*>(mailbox + kHeaderBytes) + source * a.calls + a.call;
}

/// Whether the word was written in `step` or later; both count modulo 2^24.
__device__ bool is_told(std::uint64_t word, std::uint32_t step) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(word >> kTimeBits) - step) << 8) >= 0;
}

/// The time in `word` in full, `now` being a reading of the same clock.
__device__ std::uint64_t time_in(std::uint64_t word, std::uint64_t now) {
  const auto ahead = static_cast<std::int64_t>((word - now) << (64 - kTimeBits)) >> (64 - kTimeBits);
  return now + static_cast<std::uint64_t>(ahead);
}

/// Tells every rank when this one's part of the call is done. What the calling thread has seen is visible before.
__device__ void tell_ranks(const StandInArgs& a, std::uint32_t step, std::uint64_t when) {
  __threadfence_system();
  const std::uint64_t word = (std::uint64_t{step} << kTimeBits) | (when & kTimeMask);
  for (int peer = 0; peer < a.ranks; ++peer) store_relaxed(word_of(a, a.peers[peer], a.rank), word);
}

/// Waits for every rank's part of the call; when the last one's is done, on this GPU's clock. A rank that does not
/// come before the deadline is noted and no longer waited for, in this launch or in another of the step: a stand-in
/// never hangs, and a step whose peer is gone ends within one deadline.
__device__ std::uint64_t wait_ranks(const StandInArgs& a, std::uint32_t step) {
  const std::uint64_t give_up = global_time() + a.deadline_ns;
  auto* given_up = reinterpret_cast<volatile std::uint32_t*>(a.mailbox + kGivenUpOffset);
  std::uint64_t last = 0;
  for (int source = 0; source < a.ranks; ++source) {
    std::uint64_t word = load_acquire(word_of(a, a.mailbox, source));
    while (!is_told(word, step)) {
      if (*given_up == step || global_time() > give_up) {
        *given_up = step;
        a.stamp->missing = static_cast<std::uint32_t>(source) + 1;
        return last;
      }
      __nanosleep(20);
      word = load_acquire(word_of(a, a.mailbox, source));
    }
    const auto offset =
        a.clock_offset_ns == nullptr ? std::uint64_t{0} : static_cast<std::uint64_t>(a.clock_offset_ns[source]);
    const std::uint64_t here = time_in(word, global_time() + offset) - offset;
    if (last == 0 || static_cast<std::int64_t>(here - last) > 0) last = here;
  }
  return last;
}

/// A block's time: %globaltimer, or where that ticks too coarsely the SM's clock from one reading of it on.
struct BlockClock {
  std::uint64_t begin_ns;
  long long begin_cycles;
  std::uint32_t cycles_per_1024_ns;
};

__device__ BlockClock start_clock(std::uint32_t cycles_per_1024_ns) {
  return {global_time(), clock64(), cycles_per_1024_ns};
}

__device__ std::uint64_t now_on(const BlockClock& clock) {
  if (clock.cycles_per_1024_ns == 0) return global_time();
  return clock.begin_ns + static_cast<std::uint64_t>(clock64() - clock.begin_cycles) * 1024 / clock.cycles_per_1024_ns;
}

/// Holds until this GPU's clock shows `until`, at most a deadline longer than the wire itself.
__device__ void hold_until(const StandInArgs& a, std::uint64_t until) {
  const std::uint64_t give_up = global_time() + a.wire_ns + a.deadline_ns;
  while (static_cast<std::int64_t>(until - global_time()) > 0 && global_time() < give_up) {
  }
}

__device__ void copy_bytes(const StandInArgs& a) {
  const auto* src = static_cast<const uint4*>(a.src);
  auto* dst = static_cast<uint4*>(a.dst);
  const std::uint64_t count = a.bytes / sizeof(uint4);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    dst[i] = src[i];
  }
}

// Blocks that begin within this of the first belong to one wave and end together.
constexpr std::uint64_t kWaveNs = 2'000;
// A peer's clock that says more than this before or after ours is no measurement of when it began.
constexpr std::uint64_t kPlausibleNs = 100'000;

/// When the time that this block runs out counts from, after it has waited for what its role waits for. It lies in the
/// past by what looking took: `duration_ns` counts from the begin of the launch, or the arrival, itself.
__device__ std::uint64_t wait_role(const StandInArgs& a, std::uint32_t step, std::uint64_t begin, std::uint64_t first) {
  std::uint64_t from = begin - first < kWaveNs ? first : begin;
  if (a.role == StandInRole::Receive) {
    const std::uint64_t arrived = wait_ranks(a, step) + a.wire_ns;
    hold_until(a, arrived);
    if (static_cast<std::int64_t>(arrived - from) > 0) from = min(arrived, global_time());
  } else if (a.role == StandInRole::Collective) {
    if (blockIdx.x == 0) tell_ranks(a, step, begin);
    const std::uint64_t all = wait_ranks(a, step);
    const std::uint64_t now = global_time();
    from = now - all + kPlausibleNs < 2 * kPlausibleNs ? all : now;
    if (blockIdx.x == 0 && a.notify_word != nullptr) {
      hold_until(a, from + a.notify_ns);
      __threadfence_system();
      store_relaxed(a.notify_word, std::uint64_t{step});
    }
  }
  return from;
}

/// Ends the launch at `until` of the last of its blocks. All that has to be told is told before the time is up, with
/// the end that is to come, so that nothing but the kernel's own exit lies behind the end: the last block to have done
/// its copies tells it. A launch whose time is up by then ends when it has told.
__device__ void end_launch(const StandInArgs& a, std::uint32_t step, const BlockClock& clock, std::uint64_t until) {
  auto* end_word = reinterpret_cast<unsigned long long*>(&a.stamp->end_ns);
  bool last = gridDim.x == 1;
  if (!last) {
    atomicMax(end_word, static_cast<unsigned long long>(until));
    // Every block's copies are visible to whoever sees what the last block tells.
    if (a.bytes > 0) {
      __threadfence_system();
    } else {
      __threadfence();
    }
    last = atomicInc(&a.stamp->blocks_done, gridDim.x - 1) == gridDim.x - 1;
    if (last) {
      __threadfence();
      until = atomicMax(end_word, 0ull);
    }
  }
  if (last) {
    const std::uint64_t now = now_on(clock);
    const bool late = static_cast<std::int64_t>(now - until) > 0;
    if (a.role == StandInRole::Send) tell_ranks(a, step, late ? now : until);
    if (a.progress != nullptr) store_relaxed(a.progress, (std::uint64_t{step} << 32) | a.ordinal);  // progress_value
    const std::uint64_t told = now_on(clock);
    if (static_cast<std::int64_t>(told - until) > 0) until = told;
    a.stamp->end_ns = until;
  }
  while (static_cast<std::int64_t>(until - now_on(clock)) > 0) {
  }
}

__global__ void __launch_bounds__(kThreads) stand_in_kernel(const __grid_constant__ StandInArgs a) {
  const bool leads = threadIdx.x == 0;
  BlockClock clock = {};
  std::uint32_t step = 0;
  std::uint64_t from = 0;
  if (leads) {
    clock = start_clock(a.cycles_per_1024_ns);
    const std::uint64_t begin = clock.begin_ns;
    step = *reinterpret_cast<volatile std::uint32_t*>(step_word(a.mailbox));
    const std::uint64_t before =
        atomicMin(reinterpret_cast<unsigned long long*>(&a.stamp->begin_ns), static_cast<unsigned long long>(begin));
    const std::uint32_t sm = sm_id();
    if (sm < 32 * kSmWords) atomicOr(&a.stamp->sm_mask[sm / 32], 1u << (sm % 32));
    from = wait_role(a, step, begin, min(before, begin));
    if (blockIdx.x == 0 && (a.role == StandInRole::Receive || a.role == StandInRole::Collective)) {
      a.stamp->ready_ns = from;
    }
  }
  if (a.bytes > 0) copy_bytes(a);
  __syncthreads();
  if (leads) end_launch(a, step, clock, from + a.duration_ns);
}

__global__ void step_begin_kernel(const StepBeginArgs a) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index == 0) {
    *step_word(a.mailbox) += 1;
    *reinterpret_cast<std::uint64_t*>(a.mailbox + kMailboxBeginOffset) = global_time();
  }
  if (index >= a.ops) return;
  OpStamp cleared = {};
  cleared.begin_ns = ~std::uint64_t{0};
  a.stamps[index] = cleared;
}

__global__ void timer_probe_kernel(TimerProbe* probe) {
  std::uint64_t smallest = ~std::uint64_t{0};
  std::uint64_t before = global_time();
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t now = global_time();
    if (now != before && now - before < smallest) smallest = now - before;
    before = now;
  }
  const long long read_begin = clock64();
  for (int i = 0; i < 256; ++i) before += global_time();
  const long long read_cycles = (clock64() - read_begin) / 256;
  const std::uint64_t begin = global_time();
  const long long cycles = clock64();
  std::uint64_t now = begin;
  while (now - begin < 2'000'000) now = global_time();
  const long long passed = clock64() - cycles;
  probe->tick_ns = smallest;
  probe->cycles_per_1024_ns = static_cast<std::uint32_t>(passed * 1024 / static_cast<long long>(now - begin));
  // `before` keeps the reads alive; no real sum is ever 0.
  probe->read_cycles = before == 0 ? 0 : static_cast<std::uint32_t>(read_cycles);
}

__global__ void nothing_kernel() {}

// A box: word 0 the question's number, word 1 the answer's number, word 2 the answerer's clock.
__global__ void clock_echo_kernel(const ClockEchoArgs a) {
  const std::uint64_t give_up = global_time() + a.deadline_ns;
  std::int64_t best_offset = 0, best_trip = -1;
  for (int round = 1; round <= a.rounds; ++round) {
    const auto number = a.rounds_before + static_cast<std::uint64_t>(round);
    if (a.asks) {
      const std::uint64_t asked = global_time();
      store_release(&a.peer_box[0], number);
      while (load_acquire(&a.box[1]) < number) {
        if (global_time() > give_up) {
          a.result[0] = 0;
          a.result[1] = -1;
          return;
        }
      }
      const std::uint64_t answered = global_time();
      const std::uint64_t theirs = load_acquire(&a.box[2]);
      const auto trip = static_cast<std::int64_t>(answered - asked);
      if (best_trip < 0 || trip < best_trip) {
        best_trip = trip;
        best_offset = static_cast<std::int64_t>(theirs - asked) - trip / 2;
      }
    } else {
      while (load_acquire(&a.box[0]) < number) {
        if (global_time() > give_up) return;
      }
      store_release(&a.peer_box[2], global_time());
      store_release(&a.peer_box[1], number);
    }
  }
  if (a.asks) {
    a.result[0] = best_offset;
    a.result[1] = best_trip / 2 + 1;
  }
}

bool valid(const StandInArgs& a) {
  if (a.stamp == nullptr || a.mailbox == nullptr || a.blocks < 1) return false;
  if (a.bytes % 16 != 0 || (a.bytes > 0 && (a.src == nullptr || a.dst == nullptr))) return false;
  if (a.role == StandInRole::Work) return true;
  if (a.ranks < 1 || a.ranks > kStandInRanks || a.rank < 0 || a.rank >= a.ranks) return false;
  if (a.call < 0 || a.call >= a.calls) return false;
  for (int peer = 0; peer < a.ranks; ++peer) {
    if (a.peers[peer] == nullptr) return false;
  }
  return true;
}

}  // namespace

std::size_t mailbox_bytes(int ranks, int calls) {
  return kHeaderBytes + static_cast<std::size_t>(ranks) * static_cast<std::size_t>(calls) * sizeof(std::uint64_t);
}

cudaError_t prepare_stand_in() {
  return cudaFuncSetAttribute(stand_in_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeSmBytes);
}

cudaError_t launch_stand_in(const StandInArgs& args, cudaStream_t stream) {
  if (!valid(args)) return cudaErrorInvalidValue;
  stand_in_kernel<<<args.blocks, kThreads, args.whole_sm ? kWholeSmBytes : 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_step_begin(const StepBeginArgs& args, cudaStream_t stream) {
  if (args.mailbox == nullptr || args.ops < 0 || (args.ops > 0 && args.stamps == nullptr)) {
    return cudaErrorInvalidValue;
  }
  const int blocks = args.ops / kThreads + 1;
  step_begin_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_timer_probe(TimerProbe* probe, cudaStream_t stream) {
  if (probe == nullptr) return cudaErrorInvalidValue;
  timer_probe_kernel<<<1, 1, 0, stream>>>(probe);
  return cudaGetLastError();
}

cudaError_t launch_nothing(cudaStream_t stream) {
  nothing_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t launch_clock_echo(const ClockEchoArgs& args, cudaStream_t stream) {
  if (args.box == nullptr || args.peer_box == nullptr || args.rounds < 1 || (args.asks && args.result == nullptr)) {
    return cudaErrorInvalidValue;
  }
  clock_echo_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
