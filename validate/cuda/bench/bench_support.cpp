#include "validate/cuda/bench/bench_support.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

#include "kernels/compute/clock_sample.h"
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
  DBO_BENCH_CHECK(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking));
  scratch_ = Memory(static_cast<std::int64_t>(kernels::kDenseScratchBytes));
  DBO_BENCH_CHECK(kernels::create_dense_context(scratch_.get(), kernels::kDenseScratchBytes, dense_));
  measure_ceilings();
}

Session::~Session() {
  kernels::destroy_dense_context(dense_);
  (void)cudaStreamDestroy(side_stream_);
  (void)cudaStreamDestroy(stream_);
}

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A captured sequence of launches.
class Graph {
 public:
  Graph(cudaStream_t stream, int calls, const std::function<void(int)>& issue) : stream_(stream) {
    for (int i = 0; i < calls; ++i) issue(i);  // first use of kernels and libraries stays out of the capture
    DBO_BENCH_CHECK(cudaStreamSynchronize(stream_));
    DBO_BENCH_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < calls; ++i) issue(i);
    DBO_BENCH_CHECK(cudaStreamEndCapture(stream_, &graph_));
    DBO_BENCH_CHECK(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);  // nothing to do about a failure here
    (void)cudaGraphDestroy(graph_);
  }
  void launch() const { DBO_BENCH_CHECK(cudaGraphLaunch(exec_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

/// Seconds of each of `repeats` runs of `work` on the stream, after one that warms up.
std::vector<double> time_on_stream(cudaStream_t stream, int repeats, const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  DBO_BENCH_CHECK(cudaEventCreate(&begin));
  DBO_BENCH_CHECK(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int r = -1; r < repeats; ++r) {
    DBO_BENCH_CHECK(cudaEventRecord(begin, stream));
    work();
    DBO_BENCH_CHECK(cudaEventRecord(end, stream));
    DBO_BENCH_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    DBO_BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 0) seconds.push_back(static_cast<double>(ms) * 1e-3);
  }
  DBO_BENCH_CHECK(cudaEventDestroy(begin));
  DBO_BENCH_CHECK(cudaEventDestroy(end));
  return seconds;
}

}  // namespace

double Session::time(int calls, int replays, const std::function<void(int)>& issue) const {
  const Graph graph(stream_, calls, issue);
  return median(time_on_stream(stream_, replays, [&] { graph.launch(); })) / calls;
}

std::vector<double> Session::time_in_turns(const std::vector<Sequence>& sequences, int rounds) const {
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const Sequence& s : sequences) graphs.push_back(std::make_unique<Graph>(stream_, s.calls, s.issue));
  std::vector<std::vector<double>> seconds(sequences.size());
  for (int r = 0; r < rounds; ++r) {
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      seconds[i].push_back(time_on_stream(stream_, 1, [&] { graphs[i]->launch(); }).front());
    }
  }
  std::vector<double> result;
  for (std::size_t i = 0; i < graphs.size(); ++i) result.push_back(median(seconds[i]) / sequences[i].calls);
  return result;
}

Session::Timed Session::time_and_clock(int calls, int replays, const std::function<void(int)>& issue) const {
  const Graph graph(stream_, calls, issue);
  Timed timed;
  timed.seconds = median(time_on_stream(stream_, replays, [&] { graph.launch(); })) / calls;
  // Replays for 4 ms; the sample takes 1 ms that begins when the first has begun.
  const int again = static_cast<int>(4e-3 / (timed.seconds * calls)) + 2;
  const Memory cycles(16);
  for (int i = 0; i < again; ++i) graph.launch();
  DBO_BENCH_CHECK(kernels::launch_clock_sample({cycles.as<std::int64_t>(), 1'000'000}, side_stream_));
  DBO_BENCH_CHECK(cudaStreamSynchronize(side_stream_));
  DBO_BENCH_CHECK(cudaStreamSynchronize(stream_));
  std::int64_t counted[2] = {};
  DBO_BENCH_CHECK(cudaMemcpy(counted, cycles.get(), sizeof counted, cudaMemcpyDeviceToHost));
  timed.clock_hz = static_cast<double>(counted[0]) / static_cast<double>(counted[1]) * 1e9;
  return timed;
}

double Session::time_dense(int m, int n, int k, int replays) {
  const Sequence s = dense_sequence(m, n, k, 4);
  return time(s.calls, replays, s.issue);
}

Session::Sequence Session::dense_sequence(int m, int n, int k, int calls) {
  // Held by what issues the calls.
  struct Operands {
    Memory a, w, c;
  };
  const auto held = std::make_shared<Operands>();
  held->a = random_memory(std::int64_t{m} * k, 1, 1.0f, stream_);
  held->w = random_memory(std::int64_t{n} * k, 2, 0.02f, stream_);
  held->c = Memory(std::int64_t{m} * n * 2);
  kernels::DenseGemmArgs g;
  g.a = held->a.get();
  g.w = held->w.get();
  g.c = held->c.get();
  g.m = m;
  g.n = n;
  g.k = k;
  g.a_stride = g.w_stride = k;
  g.c_stride = n;
  return {calls, [this, g, held](int) { DBO_BENCH_CHECK(kernels::launch_dense_gemm(dense_, g, stream_)); }};
}

double Session::time_copies(void* to, const void* from, std::int64_t bytes) const {
  return median(time_on_stream(stream_, 9,
                               [&] {
                                 for (int i = 0; i < 4; ++i) {
                                   DBO_BENCH_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes),
                                                                   cudaMemcpyDeviceToDevice, stream_));
                                 }
                               })) /
         4;
}

void Session::measure_ceilings() {
  // The matrix product first: it wakes the clocks.
  dense_flops_per_s_ = kCeilingFlops / time_dense(kCeilingSide, kCeilingSide, kCeilingSide, 9);
  // Gigabytes, so that starting does not count, and as plain copies: a copy that is a node of a graph may take another
  // and slower way through the device, which is printed beside it.
  const std::int64_t bytes = std::int64_t{4} << 30;
  const Memory from = random_memory(bytes / 2, 3, 1.0f, stream_), to(bytes);
  copy_bytes_per_s_ = 2.0 * static_cast<double>(bytes) / time_copies(to.get(), from.get(), bytes);
  graph_copy_bytes_per_s_ = 2.0 * static_cast<double>(bytes) / time(2, 3, [&](int) {
                              DBO_BENCH_CHECK(cudaMemcpyAsync(to.get(), from.get(), static_cast<std::size_t>(bytes),
                                                              cudaMemcpyDeviceToDevice, stream_));
                            });
}

void Session::print_head(const char* title) const {
  int driver = 0, runtime = 0;
  DBO_BENCH_CHECK(cudaDriverGetVersion(&driver));
  DBO_BENCH_CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("# %s on %s, %d SMs, L2 %.0f MiB, CUDA driver %d runtime %d\n", title, device_name_.c_str(), sms_,
              static_cast<double>(l2_bytes_) / (1 << 20), driver, runtime);
  std::printf(
      "# ceilings of this run: copy of 4 GiB %.2f TB/s read + written (as a graph node %.2f), cuBLAS bf16 8192^3 %.0f "
      "TFLOP/s; random data\n",
      copy_bytes_per_s_ * 1e-12, graph_copy_bytes_per_s_ * 1e-12, dense_flops_per_s_ * 1e-12);
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

Records::Records(std::string file, const std::vector<std::string>& columns)
    : file_(std::move(file)), columns_(columns.size()) {
  write(columns, std::ios::trunc);
}

void Records::row(const std::vector<std::string>& cells) {
  write(cells, std::ios::app);
}

void Records::write(const std::vector<std::string>& cells, std::ios_base::openmode mode) {
  DBO_CHECK(cells.size() == columns_, "a record has another number of cells than columns");
  if (file_.empty()) return;
  std::ofstream file(file_, mode);
  for (std::size_t i = 0; i < cells.size(); ++i) file << (i == 0 ? "" : ",") << cells[i];
  file << '\n';
  if (!file) throw InputError(file_, "", "cannot be written");
}

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace dbo::bench
