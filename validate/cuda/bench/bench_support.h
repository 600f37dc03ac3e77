// What the benchmarks share: device memory, timing by graph replay, the two ceilings, tables.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <ios>
#include <string>
#include <vector>

#include "kernels/compute/dense_gemm.h"

namespace dbo::bench {

/// Throws CudaError with the call and CUDA's words.
void check(cudaError_t status, const char* what);
#define DBO_BENCH_CHECK(call) ::dbo::bench::check((call), #call)

/// The dense product whose rate is the ceiling of others.
inline constexpr int kCeilingSide = 8192;
inline constexpr double kCeilingFlops = 2.0 * kCeilingSide * kCeilingSide * kCeilingSide;

class Memory {
 public:
  Memory() = default;
  explicit Memory(std::int64_t bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  void* get() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Random bf16 in [-scale, scale).
Memory random_memory(std::int64_t elements, std::uint64_t seed, float scale, cudaStream_t stream);
Memory upload(const std::vector<std::int32_t>& values);

/// Device, stream and the ceilings of this run.
class Session {
 public:
  explicit Session(int device);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  cudaStream_t stream() const { return stream_; }
  kernels::DenseContext& dense() { return dense_; }
  int sms() const { return sms_; }
  std::int64_t l2_bytes() const { return l2_bytes_; }
  double copy_bytes_per_s() const { return copy_bytes_per_s_; }    ///< read plus written
  double dense_flops_per_s() const { return dense_flops_per_s_; }  ///< cuBLAS bf16 8192^3

  /// Median time in seconds of one call: issue(0), ..., issue(calls - 1) are captured into one graph, which is
  /// replayed. Calls with different arguments keep their data out of the L2.
  double time(int calls, int replays, const std::function<void(int)>& issue) const;
  /// Of several such sequences, taking turns so that a clock that moves moves all of them: what they are compared by.
  struct Sequence {
    int calls = 0;
    std::function<void(int)> issue;
  };
  std::vector<double> time_in_turns(const std::vector<Sequence>& sequences, int rounds) const;
  /// The same, with the SM clock meanwhile: power limits it under matrix products, less so when fewer SMs work.
  struct Timed {
    double seconds = 0;
    double clock_hz = 0;
  };
  Timed time_and_clock(int calls, int replays, const std::function<void(int)>& issue) const;
  /// cuBLAS on random data, bf16.
  double time_dense(int m, int n, int k, int replays);
  /// A sequence of such products, for time_in_turns.
  Sequence dense_sequence(int m, int n, int k, int calls);
  /// What was measured where, for the head of a table.
  void print_head(const char* title) const;

 private:
  void measure_ceilings();
  double time_copies(void* to, const void* from, std::int64_t bytes) const;
  cudaStream_t stream_ = nullptr, side_stream_ = nullptr;
  Memory scratch_;
  kernels::DenseContext dense_;
  int sms_ = 0;
  std::int64_t l2_bytes_ = 0;
  double copy_bytes_per_s_ = 0, graph_copy_bytes_per_s_ = 0, dense_flops_per_s_ = 0;
  std::string device_name_;
};

/// A table whose rows are printed as they come.
class Table {
 public:
  Table(std::string name, std::vector<std::string> columns, std::string csv_file);
  void row(const std::vector<std::string>& cells);

 private:
  std::string name_, csv_file_;
  std::vector<std::size_t> widths_;
};

/// A CSV file with a header: what programs read, where a Table is for people. Cells hold no commas. No file without a
/// name.
class Records {
 public:
  /// Throws InputError if the file cannot be written.
  Records(std::string file, const std::vector<std::string>& columns);
  void row(const std::vector<std::string>& cells);

 private:
  void write(const std::vector<std::string>& cells, std::ios_base::openmode mode);
  std::string file_;
  std::size_t columns_;
};

std::string number(double value, int decimals);

}  // namespace dbo::bench
