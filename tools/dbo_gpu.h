// The commands of dbo-gpu.
#pragma once

#include <cstdint>
#include <string>

namespace dbo {

struct ReplayCommand {
  std::string plan;
  std::string costs;  ///< empty: real kernels
  std::string out;
  bool eager = false, graph = false;
  std::int64_t iterations = 20, warmup = 3;
  std::int64_t gpus = 1;
  std::string trace;  ///< stamps, light or full; empty: stamps of stand-ins, light of real kernels
  std::int64_t deadline_s = 20;
};
int run_replay(const ReplayCommand& command);

struct GpuBenchCommand {
  std::string what;  ///< host, gemm, attention, a2a or overlap
  std::string out;   ///< file for the figures; empty: none
  bool quick = false;
  std::int64_t device = 0;
};
int run_gpu_bench(const GpuBenchCommand& command);

/// GPUs, versions, peer access, SM partitions and timers of this machine, or why there is none.
int run_gpu_info();

}  // namespace dbo
