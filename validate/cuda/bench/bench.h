// Benchmarks of kernels: what `dbo-gpu bench` runs. Each prints a table on stdout and, when asked, writes it as CSV.
#pragma once

#include <string>

namespace dbo::bench {

struct BenchOptions {
  bool quick = false;  ///< fewer points and repeats
  std::string csv;     ///< file to write, empty: none
  int device = 0;
  std::string only;  ///< a2a: one section, `decode`, `prefill` or `copy`; empty: all
};

/// Grouped GEMM over tokens per expert, against the dense rate of cuBLAS and the copy bandwidth measured in the same
/// run, and its time over SM counts. Returns an exit code; throws CudaError.
int run_bench_gemm(const BenchOptions& options);

/// Attention cores for decode and prefill and the small kernels of a layer, against the same two ceilings.
int run_bench_attention(const BenchOptions& options);

/// Dispatch and combine of every transport over SM counts on two GPUs (or two ranks on one, which crosses no wire),
/// beside bare peer copies and NCCL's send/recv in the same run. `device` is not read.
int run_bench_a2a(const BenchOptions& options);

/// A chain of cuBLAS products on one stream beside a chain of exchanges on another, for each transport and way of
/// sharing the SMs: how much of the ideal overlap is realised, and what each costs the other. `device` is not read.
int run_bench_overlap(const BenchOptions& options);

}  // namespace dbo::bench
