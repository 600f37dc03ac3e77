// dbo-gpu bench and info.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "runtime/cuda/handles.h"
#include "runtime/cuda/host_costs.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/sm_partition.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/json.h"
#include "tools/dbo_gpu.h"
#include "validate/cuda/bench/bench.h"

namespace dbo {
namespace {

using runtime::Spread;

void print_cost(const char* name, const Spread& s) {
  fmt::print("  {:<16} {:>10} {:>10} {:>10}\n", name, us_text(s.median.count()), us_text(s.p10.count()),
             us_text(s.p90.count()));
}

/// The keys of a config's execution.host, so that the file can be used as one, and the spreads beside them.
Json host_json(const runtime::MeasuredHostCosts& c, const runtime::GpuInfo& gpu) {
  const auto us = [](Ns time) { return static_cast<double>(time.count()) / 1000.0; };
  Json host = Json::object();
  host.set("launch_us", us(c.launch.median));
  host.set("record_us", us(c.record.median));
  host.set("wait_us", us(c.wait.median));
  host.set("yield_us", us(c.yield_awake.median));
  host.set("graph_launch_us", us(c.graph_launch.median));
  host.set("node_gap_us", us(c.node_gap.median));
  host.set("lane_gap_us", us(std::max(c.lane_gap.median - c.node_gap.median, Ns{})));
  Json more = Json::object();
  more.set("gpu", gpu.name);
  more.set("yield_parked_us", us(c.yield_asleep.median));
  more.set("eager_gap_us", us(c.eager_gap.median));
  more.set("eager_lane_gap_us", us(c.eager_lane_gap.median));
  more.set("graph_ops", c.graph_ops);
  more.set("timer_tick_ns", static_cast<std::int64_t>(c.timer_tick_ns));
  Json json = Json::object();
  json.set("host", std::move(host));
  json.set("measured", std::move(more));
  return json;
}

int bench_host(const GpuBenchCommand& command) {
  const auto gpus = runtime::list_gpus();
  const runtime::GpuInfo& gpu = gpus.at(static_cast<std::size_t>(command.device));
  const runtime::MeasuredHostCosts c = runtime::measure_host_costs(gpu.index, command.quick);
  fmt::print("# {}; timer tick {} ns; times in us\n", gpu.name, c.timer_tick_ns);
  fmt::print("  {:<16} {:>10} {:>10} {:>10}\n", "cost", "median", "p10", "p90");
  print_cost("launch", c.launch);
  print_cost("record", c.record);
  print_cost("wait", c.wait);
  print_cost("yield awake", c.yield_awake);
  print_cost("yield parked", c.yield_asleep);
  print_cost("graph launch", c.graph_launch);
  print_cost("eager gap", c.eager_gap);
  print_cost("eager lane gap", c.eager_lane_gap);
  print_cost("node gap", c.node_gap);
  print_cost("lane gap", c.lane_gap);
  if (!command.out.empty()) write_file(command.out, pretty_json(host_json(c, gpu)));
  return 0;
}

void print_partitions(const runtime::GpuInfo& gpu) {
  runtime::start_gpu(gpu.index);
  for (const int wanted : {8, 16, 20, 24, 32}) {
    try {
      const runtime::SmPartition partition = runtime::SmPartition::create(gpu.index, wanted);
      fmt::print("  green contexts, {:>2} comm SMs asked: {} comm, {} compute\n", wanted, partition.comm_sms(),
                 partition.compute_sms());
    } catch (const Error& error) {
      fmt::print("  green contexts, {:>2} comm SMs asked: {}\n", wanted, error.what());
    }
  }
}

}  // namespace

int run_gpu_bench(const GpuBenchCommand& command) {
  if (command.what == "host") return bench_host(command);
  const auto gpus = runtime::list_gpus();
  if (command.device < 0 || command.device >= static_cast<std::int64_t>(gpus.size()))
    throw InputError("there is no GPU " + std::to_string(command.device));
  bench::BenchOptions options;
  options.quick = command.quick;
  options.csv = command.out;
  options.device = static_cast<int>(command.device);
  if (command.what == "gemm") return bench::run_bench_gemm(options);
  if (command.what == "attention") return bench::run_bench_attention(options);
  if (command.what == "a2a") return bench::run_bench_a2a(options);
  DBO_CHECK(command.what == "overlap", "the command line let another name through");
  return bench::run_bench_overlap(options);
}

int run_gpu_info() {
  const auto gpus = runtime::list_gpus();
  const runtime::Versions v = runtime::versions();
  fmt::print("driver {}, CUDA runtime {}, NCCL {} (headers {})\n", runtime::version_text(v.driver),
             runtime::version_text(v.runtime), runtime::nccl_version_text(v.nccl),
             runtime::nccl_version_text(v.nccl_headers));
  for (const runtime::GpuInfo& gpu : gpus) {
    fmt::print("GPU {}: {} ({}), sm_{}{}, {} SMs, {:.1f} GiB, L2 {:.0f} MiB, up to {} MHz\n", gpu.index, gpu.name,
               gpu.bus_id, gpu.major, gpu.minor, gpu.sms, static_cast<double>(gpu.memory_bytes) / (1u << 30),
               static_cast<double>(gpu.l2_bytes) / (1u << 20), gpu.clock_khz / 1000);
    for (const runtime::GpuInfo& peer : gpus) {
      if (peer.index == gpu.index) continue;
      int can = 0, rank = 0;
      (void)cudaDeviceCanAccessPeer(&can, gpu.index, peer.index);
      (void)cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, gpu.index, peer.index);
      fmt::print("  reaches GPU {}: {} (performance rank {})\n", peer.index, can != 0 ? "yes" : "no", rank);
    }
    print_partitions(gpu);
  }
  return 0;
}

}  // namespace dbo
