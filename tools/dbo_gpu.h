// The commands of dbo-gpu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  double tolerance = 0;         ///< stand-ins: percent by which a step may miss the predicted one; 0: any
  std::int64_t send_bytes = 0;  ///< stand-ins: moved by sends and comm kernels to the next rank
  std::int64_t work_bytes = 0;  ///< stand-ins: moved by other ops in place
  bool poison = false;          ///< real kernels: MoeOptions::poison
  std::string fabric;  ///< real kernels: wires last what the cost model says for this fabric; empty: as they come
};
int run_replay(const ReplayCommand& command);

struct GpuBenchCommand {
  std::string what;  ///< host, gemm, attention, a2a or overlap
  std::string out;   ///< file for the figures; empty: none
  bool quick = false;
  std::int64_t device = 0;
};
int run_gpu_bench(const GpuBenchCommand& command);

struct CalibrateCommand {
  std::string out;
  std::vector<std::string> configs;  ///< what to calibrate for; else the following
  std::string suite;                 ///< the same: of this suite, the configs of `model`
  std::string model = "deepseek-v3", ranks = "2,16", transports = "lsa-ll,lsa-ht,copy-engine", comm_sms = "8,16,24";
  std::string phase = "both";  ///< decode, prefill or both
  std::string points;          ///< file with a list of points instead
  std::string compare;         ///< another profile: compare only
  bool list = false;           ///< print the points, measure nothing
  bool quick = false, fresh = false, windows = false;
  std::int64_t gpus = 0;  ///< 0: all
  std::int64_t limit_s = 230;
  std::int64_t gpu_sms = 132;  ///< for `list` without a GPU
};
int run_calibrate(const CalibrateCommand& command);

struct ValidateCommand {
  std::string config;
  std::string suite;  ///< instead of a config: a file, or the name of one that comes with the program
  std::vector<std::string> profiles;
  std::string out, emulate, inject;
  bool eager = false, graph = false;  ///< neither: both
  bool json = false, list = false, windows = false;
  std::int64_t iterations = 20, warmup = 3;
  std::int64_t gpus = 0;  ///< 0: all
  std::int64_t limit_s = 480, deadline_s = 20;
};
int run_validate(const ValidateCommand& command);

/// GPUs, versions, peer access, SM partitions and timers of this machine, or why there is none.
int run_gpu_info();

}  // namespace dbo
