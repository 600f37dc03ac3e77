#include "validate/cuda/bench/bench_support.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>

#include "kernels/compute/pointwise.h"
#include "sim/base/error.h"

namespace dbo::bench {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw CudaError(std::string(what) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
  }
}

Memory::Memory(std::int64_t bytes) {
  DBO_BENCH_CHECK(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
}
Memory::Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}
Memory::~Memory() {
  (void)cudaFree(data_);  // nothing to do about a failure here
}

Memory random_memory(std::int64_t elements, std::uint64_t seed, float scale, cudaStream_t stream) {
  Memory m(elements * 2);
  kernels::FillArgs fill;
  fill.out = m.get();
  fill.count = elements;
  fill.seed = seed;
  fill.scale = scale;
  DBO_BENCH_CHECK(kernels::launch_fill(fill, stream));
  return m;
}

Memory upload(const std::vector<std::int32_t>& values) {
  Memory m(static_cast<std::int64_t>(values.size()) * 4);
  DBO_BENCH_CHECK(cudaMemcpy(m.get(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  DBO_BENCH_CHECK(cudaDeviceSynchronize());  // the copy's last part may still run, and our streams do not wait for it
  return m;
}

Session::Session(int device) {
  DBO_BENCH_CHECK(cudaSetDevice(device));
  cudaDeviceProp properties{};
  DBO_BENCH_CHECK(cudaGetDeviceProperties(&properties, device));
  device_name_ = properties.name;
  sms_ = properties.multiProcessorCount;
  l2_bytes_ = properties.l2CacheSize;
  DBO_BENCH_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  scratch_ = Memory(static_cast<std::int64_t>(kernels::kDenseScratchBytes));
  DBO_BENCH_CHECK(kernels::create_dense_context(scratch_.get(), kernels::kDenseScratchBytes, dense_));
  measure_ceilings();
}

Session::~Session() {
  kernels::destroy_dense_context(dense_);
  (void)cudaStreamDestroy(stream_);
}

double Session::time(int calls, int replays, const std::function<void(int)>& issue) const {
  for (int i = 0; i < calls; ++i) issue(i);  // first use of kernels and libraries stays out of the capture
  DBO_BENCH_CHECK(cudaStreamSynchronize(stream_));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  DBO_BENCH_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  for (int i = 0; i < calls; ++i) issue(i);
  DBO_BENCH_CHECK(cudaStreamEndCapture(stream_, &graph));
  DBO_BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  DBO_BENCH_CHECK(cudaEventCreate(&begin));
  DBO_BENCH_CHECK(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int r = -1; r < replays; ++r) {
    DBO_BENCH_CHECK(cudaEventRecord(begin, stream_));
    DBO_BENCH_CHECK(cudaGraphLaunch(exec, stream_));
    DBO_BENCH_CHECK(cudaEventRecord(end, stream_));
    DBO_BENCH_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    DBO_BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 0) seconds.push_back(static_cast<double>(ms) * 1e-3 / calls);  // the first one warms up
  }
  DBO_BENCH_CHECK(cudaEventDestroy(begin));
  DBO_BENCH_CHECK(cudaEventDestroy(end));
  DBO_BENCH_CHECK(cudaGraphExecDestroy(exec));
  DBO_BENCH_CHECK(cudaGraphDestroy(graph));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double Session::time_dense(int m, int n, int k, int replays) {
  const Memory a = random_memory(std::int64_t{m} * k, 1, 1.0f, stream_),
               w = random_memory(std::int64_t{n} * k, 2, 0.02f, stream_);
  const Memory c(std::int64_t{m} * n * 2);
  kernels::DenseGemmArgs g;
  g.a = a.get();
  g.w = w.get();
  g.c = c.get();
  g.m = m;
  g.n = n;
  g.k = k;
  g.a_stride = g.w_stride = k;
  g.c_stride = n;
  return time(4, replays, [&](int) { DBO_BENCH_CHECK(kernels::launch_dense_gemm(dense_, g, stream_)); });
}

void Session::measure_ceilings() {
  const std::int64_t bytes = std::int64_t{2} << 30;
  const Memory from = random_memory(bytes / 2, 3, 1.0f, stream_), to(bytes);
  const double copy = time(2, 9, [&](int) {
    DBO_BENCH_CHECK(
        cudaMemcpyAsync(to.get(), from.get(), static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
  });
  copy_bytes_per_s_ = 2.0 * static_cast<double>(bytes) / copy;
  dense_flops_per_s_ = 2.0 * 8192 * 8192 * 8192 / time_dense(8192, 8192, 8192, 9);
}

void Session::print_head(const char* title) const {
  int driver = 0, runtime = 0;
  DBO_BENCH_CHECK(cudaDriverGetVersion(&driver));
  DBO_BENCH_CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("# %s on %s, %d SMs, L2 %.0f MiB, CUDA driver %d runtime %d\n", title, device_name_.c_str(), sms_,
              static_cast<double>(l2_bytes_) / (1 << 20), driver, runtime);
  std::printf("# ceilings of this run: copy %.2f TB/s (read + written), cuBLAS bf16 8192^3 %.0f TFLOP/s; random data\n",
              copy_bytes_per_s_ * 1e-12, dense_flops_per_s_ * 1e-12);
}

Table::Table(std::string name, std::vector<std::string> columns, std::string csv_file)
    : name_(std::move(name)), csv_file_(std::move(csv_file)) {
  for (const std::string& c : columns) widths_.push_back(std::max<std::size_t>(c.size(), 8) + 2);
  std::printf("\n## %s\n", name_.c_str());
  row(columns);
}

void Table::row(const std::vector<std::string>& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    std::printf("%*s", static_cast<int>(i == 0 ? std::max<std::size_t>(widths_[i], 26) : widths_[i]), cells[i].c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
  if (csv_file_.empty()) return;
  std::ofstream file(csv_file_, std::ios::app);
  file << name_;
  for (const std::string& c : cells) file << ',' << c;
  file << '\n';
  if (!file) throw InputError(csv_file_, "", "cannot be written");
}

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace dbo::bench
