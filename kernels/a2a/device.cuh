// The few machine operations the all-to-all kernels are written in. Everything that is PTX is here, so that the kernels
// themselves can also be compiled against another definition of these functions: tests run them on the CPU, thread by
// thread (tests/kernels/emulation), which sees logic errors without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/a2a/device_types.h"

#if !defined(DBO_SIMT_EMULATION)

#include <cstdio>

#define DBO_DEVICE __device__ __forceinline__
#define DBO_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
/// One warp with at most 32 registers a thread: the 1024 registers that a 384-thread, 168-register GEMM block leaves
/// free on its SM, so that such a kernel need not wait for the block to end.
#define DBO_TINY_KERNEL __global__ void __maxnreg__(32)
#define DBO_PARAM const __grid_constant__
#define DBO_UNROLL _Pragma("unroll")

namespace dbo::kernels::device {

DBO_DEVICE int thread_index() {
  return static_cast<int>(threadIdx.x);
}
DBO_DEVICE int block_index() {
  return static_cast<int>(blockIdx.x);
}
DBO_DEVICE int block_count() {
  return static_cast<int>(gridDim.x);
}
DBO_DEVICE int block_threads() {
  return static_cast<int>(blockDim.x);
}

DBO_DEVICE std::byte* dynamic_smem() {
  extern __shared__ __align__(128) unsigned char dbo_dynamic_smem[];
  return reinterpret_cast<std::byte*>(dbo_dynamic_smem);
}

DBO_DEVICE void block_sync() {
  __syncthreads();
}
DBO_DEVICE void warp_sync() {
  __syncwarp();
}
/// Barrier of `threads` threads of the block; ids 1 to 15.
DBO_DEVICE void group_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Warp operations: all 32 lanes take part.
DBO_DEVICE std::uint32_t warp_ballot(bool value) {
  return __ballot_sync(0xffffffffu, value);
}
DBO_DEVICE int warp_sum(int value) {
  return __reduce_add_sync(0xffffffffu, value);
}
DBO_DEVICE int warp_shuffle(int value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
DBO_DEVICE float warp_shuffle(float value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
DBO_DEVICE std::uint64_t warp_shuffle(std::uint64_t value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
DBO_DEVICE float warp_shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
DBO_DEVICE int bit_count(std::uint32_t value) {
  return __popc(value);
}

DBO_DEVICE std::uint64_t global_time_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Flags between GPUs, and words the host reads.
DBO_DEVICE std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DBO_DEVICE std::uint64_t load_acquire(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
DBO_DEVICE void store_release(std::uint32_t* p, std::uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DBO_DEVICE void store_release(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DBO_DEVICE void store_relaxed(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/// Adds to a counter, maybe another GPU's, behind everything this thread wrote or saw before.
DBO_DEVICE void add_release(std::uint32_t* p, std::uint32_t v) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// Raises a word to at least `v`.
DBO_DEVICE void raise_relaxed(std::uint64_t* p, std::uint64_t v) {
  asm volatile("red.relaxed.sys.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/// Adds 1, wrapping to 0 after `last`; returns the old value. Acquire and release at GPU scope.
DBO_DEVICE std::uint32_t count_arrival(std::uint32_t* counter, std::uint32_t last) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(last) : "memory");
  return old;
}
/// Between polls; nothing to do on a GPU.
DBO_DEVICE void spin_pause() {}

/// Data read once, never written while the kernel runs.
DBO_DEVICE Vec16 load_stream(const void* p) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
/// Data that another GPU may have written since the kernel began (after an acquire).
DBO_DEVICE Vec16 load_arrived(const void* p) {
  Vec16 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
DBO_DEVICE void store16(void* p, const Vec16& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DBO_DEVICE Vec16 load_shared16(const void* p) {
  return *static_cast<const Vec16*>(p);
}

// Bulk copies between global and shared memory (sizes and addresses multiples of 16), complete on a barrier word in
// shared memory (loads) or by the issuing thread's groups (stores).
DBO_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// To be called by one thread before the barrier's first use; others may wait on it after a block_sync.
DBO_DEVICE void barrier_init(std::uint64_t* bar) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DBO_DEVICE void barrier_wait(std::uint64_t* bar, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
  }
}
DBO_DEVICE void bulk_load(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(bar))
               : "memory");
}
DBO_DEVICE void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
DBO_DEVICE void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all but the latest `kPending` groups of this thread have read their shared memory.
template <int kPending>
DBO_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Waits until all but the latest `kPending` groups of this thread have written their global memory.
template <int kPending>
DBO_DEVICE void bulk_wait_written() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Orders this thread's earlier ordinary accesses (and what it acquired) before later bulk copies, and the reverse.
DBO_DEVICE void fence_bulk() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Numbers.
DBO_DEVICE float bits_to_float(std::uint32_t bits) {
  return __uint_as_float(bits);
}
DBO_DEVICE float absolute(float x) {
  return fabsf(x);
}
DBO_DEVICE float larger(float a, float b) {
  return fmaxf(a, b);
}
DBO_DEVICE float multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
DBO_DEVICE float add(float a, float b) {
  return __fadd_rn(a, b);
}
DBO_DEVICE float multiply(float a, float b) {
  return __fmul_rn(a, b);
}
DBO_DEVICE float divide(float a, float b) {
  return __fdiv_rn(a, b);
}
/// Two bf16, `low` in the lower half, rounded to nearest even.
DBO_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
/// Two e4m3, `low` in the lower byte, rounded to nearest even, saturating.
DBO_DEVICE std::uint32_t pack_e4m3(float low, float high) {
  std::uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
}

/// Prints who waited for whom and stops the kernel with a trap. Out of line: the message costs stack.
inline __device__ __noinline__ void fail_wait(WaitOp op, int rank, int slot, int source, std::uint32_t expected,
                                              std::uint32_t seen, std::uint64_t waited_ns) {
  const char* const names[] = {"lsa-ht dispatch",
                               "lsa-ht combine",
                               "lsa-ll dispatch receive",
                               "lsa-ll combine receive",
                               "copy-engine dispatch",
                               "copy-engine combine",
                               "start gate",
                               "clock probe"};
  printf("dbo: %s on rank %d, slot %d, waited %llu us for rank %d: epoch %u expected, %u seen\n",
         names[static_cast<int>(op)], rank, slot, static_cast<unsigned long long>(waited_ns / 1000), source, expected,
         seen);
  __trap();
}
inline __device__ __noinline__ void fail_rows(int rank, int slot, int peer, int rows, int allowed) {
  printf("dbo: dispatch on rank %d, slot %d, has %d rows for rank %d, but the call was sized for %d\n", rank, slot,
         rows, peer, allowed);
  __trap();
}

}  // namespace dbo::kernels::device

#endif  // !DBO_SIMT_EMULATION

namespace dbo::kernels::device {

DBO_DEVICE int lane_index() {
  return thread_index() & 31;
}
DBO_DEVICE int warp_index() {
  return thread_index() >> 5;
}

/// The two bf16 of a word as floats: a bf16 is the upper half of a float.
DBO_DEVICE float low_bf16(std::uint32_t word) {
  return bits_to_float(word << 16);
}
DBO_DEVICE float high_bf16(std::uint32_t word) {
  return bits_to_float(word & 0xffff0000u);
}

}  // namespace dbo::kernels::device
