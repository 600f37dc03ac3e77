// Runs GPU kernels on the CPU, one fiber a GPU thread, for tests of their logic: wrong indices, missing barriers, ring
// buffers that are refilled too early, waits that depend on a block that cannot run. Include it before any .cuh of
// kernels/a2a: it stands in for the machine operations of device.cuh.
//
// It is harsh where hardware is merely allowed to be: bulk loads overwrite their target when issued and deliver when
// somebody waits for them, bulk stores read their source only when their group is waited for, threads run in an order
// drawn from a seed. It does not model weak memory order between ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#define DBO_SIMT_EMULATION
#define DBO_DEVICE inline
#define DBO_KERNEL(threads) inline void
#define DBO_TINY_KERNEL inline void
#define DBO_PARAM const
#define DBO_UNROLL

#include "kernels/a2a/device_types.h"

namespace dbo::simt {

/// One kernel launch.
struct Grid {
  int blocks = 1, threads = 32;
  std::size_t shared_bytes = 0;
  std::function<void()> body;  ///< what each thread runs
};

/// An in-order queue of kernels and host actions, like a stream.
class Queue {
 public:
  void launch(Grid grid);
  void host(std::function<void()> action);

 private:
  friend class Machine;
  struct Item {
    Grid grid;
    std::function<void()> action;  ///< set: a host action
  };
  std::vector<Item> items_;
};

struct Options {
  int sms = 8;  ///< one block on each at a time, blocks of a queue in order, queues in turn
  std::uint64_t seed = 1;
};

/// Runs all queues to their end. Returns an empty string, or what went wrong first: a failed wait's or check's message,
/// a misuse of a barrier, or a deadlock.
std::string run(std::vector<Queue*> queues, const Options& options);

namespace detail {
// What the machine operations below need; they act on the fiber that runs.
int thread_index();
int block_index();
int block_count();
int block_threads();
std::byte* shared_memory();
void barrier(int id, int threads);
/// All lanes give a value and get everybody's.
const std::uint64_t* exchange(std::uint64_t value);
void pause();
std::uint64_t time_ns();
[[noreturn]] void fail(const std::string& message);
void bar_init(std::uint64_t* bar);
void bar_wait(std::uint64_t* bar, std::uint32_t parity);
void load(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* bar);
void store(void* global, const void* shared, std::uint32_t bytes);
void commit();
void wait_groups(int pending);
std::uint32_t pack_e4m3(float low, float high);
}  // namespace detail
}  // namespace dbo::simt

namespace dbo::kernels::device {

inline int thread_index() {
  return simt::detail::thread_index();
}
inline int block_index() {
  return simt::detail::block_index();
}
inline int block_count() {
  return simt::detail::block_count();
}
inline int block_threads() {
  return simt::detail::block_threads();
}
inline std::byte* dynamic_smem() {
  return simt::detail::shared_memory();
}

inline void block_sync() {
  simt::detail::barrier(0, simt::detail::block_threads());
}
inline void warp_sync() {
  simt::detail::exchange(0);
}
inline void group_sync(int id, int threads) {
  simt::detail::barrier(id, threads);
}

inline std::uint32_t warp_ballot(bool value) {
  const std::uint64_t* const all = simt::detail::exchange(value ? 1 : 0);
  std::uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= static_cast<std::uint32_t>(all[lane]) << lane;
  return mask;
}
inline int warp_sum(int value) {
  const std::uint64_t* const all = simt::detail::exchange(static_cast<std::uint32_t>(value));
  std::uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += static_cast<std::uint32_t>(all[lane]);
  return static_cast<int>(sum);
}
template <typename T>
T exchange_from(T value, int lane) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = simt::detail::exchange(bits)[lane & 31];
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int warp_shuffle(int value, int lane) {
  return exchange_from(value, lane);
}
inline float warp_shuffle(float value, int lane) {
  return exchange_from(value, lane);
}
inline std::uint64_t warp_shuffle(std::uint64_t value, int lane) {
  return exchange_from(value, lane);
}
inline float warp_shuffle_xor(float value, int mask) {
  return exchange_from(value, (thread_index() & 31) ^ mask);
}
inline int bit_count(std::uint32_t value) {
  return __builtin_popcount(value);
}

inline std::uint64_t global_time_ns() {
  return simt::detail::time_ns();
}
inline std::uint32_t load_acquire(const std::uint32_t* p) {
  return *p;
}
inline std::uint64_t load_acquire(const std::uint64_t* p) {
  return *p;
}
inline void store_release(std::uint32_t* p, std::uint32_t v) {
  *p = v;
}
inline void store_release(std::uint64_t* p, std::uint64_t v) {
  *p = v;
}
inline void store_relaxed(std::uint64_t* p, std::uint64_t v) {
  *p = v;
}
inline void add_release(std::uint32_t* p, std::uint32_t v) {
  *p += v;
}
inline void raise_relaxed(std::uint64_t* p, std::uint64_t v) {
  if (*p < v) *p = v;
}
inline std::uint32_t count_arrival(std::uint32_t* counter, std::uint32_t last) {
  const std::uint32_t old = *counter;
  *counter = old >= last ? 0 : old + 1;
  return old;
}
inline void spin_pause() {
  simt::detail::pause();
}

inline void check_aligned(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) simt::detail::fail("16-byte access at an odd address");
}
inline Vec16 load_stream(const void* p) {
  check_aligned(p);
  Vec16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Vec16 load_arrived(const void* p) {
  return load_stream(p);
}
inline Vec16 load_shared16(const void* p) {
  return load_stream(p);
}
inline void store16(void* p, const Vec16& v) {
  check_aligned(p);
  std::memcpy(p, &v, sizeof v);
}

inline void barrier_init(std::uint64_t* bar) {
  simt::detail::bar_init(bar);
}
inline void barrier_wait(std::uint64_t* bar, std::uint32_t parity) {
  simt::detail::bar_wait(bar, parity);
}
inline void bulk_load(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* bar) {
  simt::detail::load(shared, global, bytes, bar);
}
inline void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  simt::detail::store(global, shared, bytes);
}
inline void bulk_commit() {
  simt::detail::commit();
}
template <int kPending>
void bulk_wait_read() {
  simt::detail::wait_groups(kPending);
}
template <int kPending>
void bulk_wait_written() {
  simt::detail::wait_groups(kPending);
}
inline void fence_bulk() {}

inline float bits_to_float(std::uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline float absolute(float x) {
  return std::fabs(x);
}
inline float larger(float a, float b) {
  return std::fmax(a, b);
}
inline float multiply_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float add(float a, float b) {
  return a + b;
}
inline float multiply(float a, float b) {
  return a * b;
}
inline float divide(float a, float b) {
  return a / b;
}
inline std::uint32_t round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline std::uint32_t pack_bf16(float low, float high) {
  return round_to_bf16(low) | (round_to_bf16(high) << 16);
}
inline std::uint32_t pack_e4m3(float low, float high) {
  return simt::detail::pack_e4m3(low, high);
}

inline void fail_wait(WaitOp op, int rank, int slot, int source, std::uint32_t expected, std::uint32_t seen,
                      std::uint64_t) {
  simt::detail::fail("op " + std::to_string(static_cast<int>(op)) + " on rank " + std::to_string(rank) + ", slot " +
                     std::to_string(slot) + ", waited for rank " + std::to_string(source) + ": epoch " +
                     std::to_string(expected) + " expected, " + std::to_string(seen) + " seen");
}
inline void fail_rows(int rank, int slot, int peer, int rows, int allowed) {
  simt::detail::fail("dispatch on rank " + std::to_string(rank) + ", slot " + std::to_string(slot) + ", has " +
                     std::to_string(rows) + " rows for rank " + std::to_string(peer) + ", but the call was sized for " +
                     std::to_string(allowed));
}

}  // namespace dbo::kernels::device
