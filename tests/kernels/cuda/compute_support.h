// What the GPU tests of the compute kernels share: device memory, random data that the CPU can make too, bf16 on the
// CPU, and comparisons that say where and by how much they fail.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/compute/hash.h"

namespace dbo::compute_test {

/// Fails the test case at once with the call and CUDA's own words.
#define DBO_TEST_CUDA(call)                                                                                          \
  do {                                                                                                               \
    const cudaError_t dbo_status = (call);                                                                           \
    const std::string dbo_words = std::string(cudaGetErrorName(dbo_status)) + ": " + cudaGetErrorString(dbo_status); \
    if (dbo_status != cudaSuccess) FAIL("CUDA: " #call ": " << dbo_words);                                           \
  } while (false)

using Bf16 = std::uint16_t;

inline float to_float(Bf16 v) {
  const std::uint32_t bits = static_cast<std::uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

/// Rounds to nearest, ties to even.
inline Bf16 to_bf16(double x) {
  const float f = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<Bf16>(bits >> 16);
}

/// Done when it returns, also for streams that do not wait for the default one.
inline void copy_to_device(void* to, const void* from, std::size_t bytes) {
  DBO_TEST_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  DBO_TEST_CUDA(cudaDeviceSynchronize());
}

/// Device memory of a type, poisoned with 0xff bytes (not a number in bf16 and fp32) when it starts empty.
template <class T>
class Device {
 public:
  Device() = default;
  explicit Device(std::size_t count) : count_(count) {
    DBO_TEST_CUDA(cudaMalloc(&data_, bytes()));
    poison();
  }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    copy_to_device(data_, values.data(), values.size() * sizeof(T));
  }
  Device(Device&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Device& operator=(Device&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Device() {
    (void)cudaFree(data_);  // a failed test may leave a dead context behind
  }
  T* get() const { return static_cast<T*>(data_); }
  std::size_t size() const { return count_; }
  void poison() const {
    DBO_TEST_CUDA(cudaMemset(data_, 0xff, bytes()));
    DBO_TEST_CUDA(cudaDeviceSynchronize());
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    DBO_TEST_CUDA(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t bytes() const { return (count_ > 0 ? count_ : 1) * sizeof(T); }
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

class TestStream {
 public:
  TestStream() { DBO_TEST_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { (void)cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { DBO_TEST_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Runs `issue` eagerly, again, and three times from a captured graph, reading `result` after each: all must be equal
/// to the bit. `reset` restores inputs that the work changes.
template <class T>
void check_repeats(
    const TestStream& stream, const Device<T>& result, const std::function<void()>& issue,
    const std::function<void()>& reset = [] {}) {
  reset();
  issue();
  stream.wait();
  const std::vector<T> first = result.read();
  const auto same = [&](const char* what) {
    stream.wait();
    const std::vector<T> again = result.read();
    CHECK_MESSAGE(std::memcmp(first.data(), again.data(), first.size() * sizeof(T)) == 0, what);
  };
  result.poison();
  reset();
  issue();
  same("a second run gave other bits");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  DBO_TEST_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed));
  issue();
  DBO_TEST_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  DBO_TEST_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    result.poison();
    reset();
    DBO_TEST_CUDA(cudaGraphLaunch(exec, stream.get()));
    same("graph replay gave other bits");
  }
  DBO_TEST_CUDA(cudaGraphExecDestroy(exec));
  DBO_TEST_CUDA(cudaGraphDestroy(graph));
}

/// Random numbers in [-scale, scale), as bf16.
inline std::vector<Bf16> random_bf16(std::size_t count, std::uint64_t seed, double scale = 1.0) {
  std::vector<Bf16> v(count);
  for (std::size_t i = 0; i < count; ++i) v[i] = to_bf16(scale * static_cast<double>(kernels::uniform(seed, i)));
  return v;
}

/// Whole numbers in [-largest, largest], as bf16.
inline std::vector<Bf16> random_integers(std::size_t count, std::uint64_t seed, int largest) {
  std::vector<Bf16> v(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<int>(kernels::mix(seed, i) % static_cast<std::uint64_t>(2 * largest + 1)) - largest;
    v[i] = to_bf16(n);
  }
  return v;
}

/// One number in [0, below).
inline int pick(std::uint64_t seed, std::uint64_t index, int below) {
  return static_cast<int>(kernels::mix(seed, index) % static_cast<std::uint64_t>(below));
}

/// Runs body(i) for i in [0, count) on all cores.
void parallel(std::int64_t count, const std::function<void(std::int64_t)>& body);

/// Every number equal to the rounded reference, bit for bit.
void check_exact(const std::string& what, const std::vector<Bf16>& got, const std::vector<double>& want);

/// ||got - want|| <= bound * ||want||, and no single error above 16 times that on average: catches a wrong row that a
/// norm over many would hide.
void check_close(const std::string& what, const std::vector<double>& got, const std::vector<double>& want,
                 double bound);

std::vector<double> widen(const std::vector<Bf16>& v);
std::vector<double> widen(const std::vector<float>& v);

/// Requests with contexts scattered over the pages of a cache, and their metadata on the host.
struct Paged {
  std::vector<std::int32_t> seq_lens, block_table;
  int max_pages = 1;
  int pages = 1;

  /// Pages are handed out in a shuffled order; table entries past a context's end are page 0.
  Paged(std::vector<std::int32_t> lens, std::uint64_t seed);
  std::int64_t row(int request, int key) const {
    return static_cast<std::int64_t>(block_table[static_cast<std::size_t>(request * max_pages + key / 64)]) * 64 +
           key % 64;
  }
};

/// softmax(q k^T scale) v for one query in fp64. `key(j)` and `value(j)` give rows.
std::vector<double> attend(const std::vector<double>& q, int keys, double scale, int value_dim,
                           const std::function<double(int, int)>& key, const std::function<double(int, int)>& value);

}  // namespace dbo::compute_test
