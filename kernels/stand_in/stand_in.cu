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

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_release(std::uint32_t* p, std::uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_release(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// A mailbox: the step's number, then flags [ranks][calls], then stamps [ranks][calls].
constexpr std::size_t kHeaderBytes = 256;

__host__ __device__ constexpr std::size_t flags_bytes(int ranks, int calls) {
  return (static_cast<std::size_t>(ranks) * static_cast<std::size_t>(calls) * 4 + 255) / 256 * 256;
}

__device__ std::uint32_t* step_word(std::byte* mailbox) {
  return reinterpret_cast<std::uint32_t*>(mailbox);
}

__device__ std::uint32_t* flag_of(const StandInArgs& a, std::byte* mailbox, int source) {
  return reinterpret_cast<std::uint32_t*>(mailbox + kHeaderBytes) + source * a.calls + a.call;
}

__device__ std::uint64_t* stamp_of(const StandInArgs& a, std::byte* mailbox, int source) {
  return reinterpret_cast<std::uint64_t*>(mailbox + kHeaderBytes + flags_bytes(a.ranks, a.calls)) + source * a.calls +
         a.call;
}

/// Tells every rank that this one's part of the call was done at `when`.
__device__ void tell_ranks(const StandInArgs& a, std::uint32_t step, std::uint64_t when) {
  for (int peer = 0; peer < a.ranks; ++peer) {
    store_release(stamp_of(a, a.peers[peer], a.rank), when);
    store_release(flag_of(a, a.peers[peer], a.rank), step);
  }
}

/// Waits for every rank's part of the call; when the last one's was done, on this GPU's clock. A rank that does not
/// come before the deadline is noted and no longer waited for: a stand-in never hangs.
__device__ std::uint64_t wait_ranks(const StandInArgs& a, std::uint32_t step) {
  const std::uint64_t give_up = global_time() + a.deadline_ns;
  std::uint64_t last = 0;
  for (int source = 0; source < a.ranks; ++source) {
    while (static_cast<std::int32_t>(load_acquire(flag_of(a, a.mailbox, source)) - step) < 0) {
      if (global_time() > give_up) {
        a.stamp->missing = static_cast<std::uint32_t>(source) + 1;
        return last;
      }
      __nanosleep(20);
    }
    const std::uint64_t when = load_acquire(stamp_of(a, a.mailbox, source));
    const std::uint64_t here = when - static_cast<std::uint64_t>(a.clock_offset_ns[source]);
    if (static_cast<std::int64_t>(here - last) > 0) last = here;
  }
  return last;
}

/// Runs out `ns` from `from` on %globaltimer, the first `passed` of which the SM clock has counted since `cycles`.
__device__ void spin_until(const StandInArgs& a, std::uint64_t from, long long cycles) {
  if (a.cycles_per_1024_ns == 0) {
    while (static_cast<std::int64_t>(global_time() - from) < static_cast<std::int64_t>(a.duration_ns)) {
    }
    return;
  }
  const auto needed = static_cast<long long>(a.duration_ns * a.cycles_per_1024_ns / 1024);
  while (clock64() - cycles < needed) {
  }
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

__global__ void __launch_bounds__(kThreads) stand_in_kernel(const __grid_constant__ StandInArgs a) {
  const bool leader = threadIdx.x == 0;
  std::uint64_t from = 0;
  long long cycles = 0;
  std::uint32_t step = 0;
  if (leader) {
    from = global_time();
    cycles = clock64();
    step = *reinterpret_cast<volatile std::uint32_t*>(step_word(a.mailbox));
    atomicMin(reinterpret_cast<unsigned long long*>(&a.stamp->begin_ns), static_cast<unsigned long long>(from));
    const std::uint32_t sm = sm_id();
    if (sm < 32 * kSmWords) atomicOr(&a.stamp->sm_mask[sm / 32], 1u << (sm % 32));
    if (a.role == StandInRole::Receive) {
      hold_until(a, wait_ranks(a, step) + a.wire_ns);
      from = global_time();
      cycles = clock64();
    } else if (a.role == StandInRole::Collective) {
      if (blockIdx.x == 0) tell_ranks(a, step, from);
      const std::uint64_t all = wait_ranks(a, step);
      // The time counts from the last rank's begin, part of which has passed while its flag was on its way.
      const std::uint64_t now = global_time();
      const auto late = static_cast<std::int64_t>(now - all);
      from = late > 0 && late < 100'000 ? all : now;
      cycles = clock64() - (late > 0 && late < 100'000 ? late * a.cycles_per_1024_ns / 1024 : 0);
      if (blockIdx.x == 0 && a.notify_word != nullptr) {
        hold_until(a, from + a.notify_ns);
        store_release(a.notify_word, std::uint64_t{step});
      }
    }
    if (blockIdx.x == 0 && (a.role == StandInRole::Receive || a.role == StandInRole::Collective)) {
      a.stamp->ready_ns = from;
    }
  }
  if (a.bytes > 0) copy_bytes(a);
  if (leader) spin_until(a, from, cycles);
  __syncthreads();
  if (!leader) return;
  // Every block's copies are visible to whoever sees the last block's flags.
  __threadfence_system();
  if (atomicInc(&a.stamp->blocks_done, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence_system();
  const std::uint64_t end = global_time();
  a.stamp->end_ns = end;
  if (a.role == StandInRole::Send) tell_ranks(a, step, end);
  if (a.progress != nullptr) store_release(a.progress, (std::uint64_t{step} << 32) | a.ordinal);  // progress_value
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
    const auto number = static_cast<std::uint64_t>(round);
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
  return kHeaderBytes + flags_bytes(ranks, calls) +
         static_cast<std::size_t>(ranks) * static_cast<std::size_t>(calls) * 8;
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
