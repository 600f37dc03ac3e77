// Inspecting a large trace: a synthetic decode profile of a two-ubatch low-latency schedule, as long as asked for.
// Usage: inspect_bench [MiB, default 1024] [FILE to keep, default a temporary one]
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "sim/base/hash.h"
#include "traces/inspect.h"
#include "traces/output_file.h"

using namespace dbo;

namespace {

/// Writes events as PyTorch's profiler does: host operators, a launch, a kernel with all its args, and arrows.
class Generator {
 public:
  explicit Generator(const std::string& path) : file_(path) {
    put("{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [{\"id\": 0, \"name\": \"NVIDIA H200\", \"numSms\": "
        "132}],\n"
        "  \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": 3, \"world_size\": 16},\n  \"traceEvents\": [\n");
  }

  std::uint64_t bytes() const { return bytes_; }

  void step(int number) {
    const std::int64_t begin = host_;
    for (int layer = 0; layer < 58; ++layer) pair_of_layers();
    put("  {\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#" + std::to_string(number) +
        "\", \"pid\": 4242, \"tid\": 4242, \"ts\": " + us(begin) + ", \"dur\": " + us_text(host_ - begin) +
        ", \"args\": {}},\n");
    host_ = std::max(host_, gpu_);
    flush();
  }

  void finish() {
    put("  {\"name\": \"Record Window End\", \"ph\": \"i\", \"s\": \"g\", \"pid\": \"\", \"tid\": \"\", \"ts\": " +
        us(gpu_) + "}\n  ],\n  \"traceName\": \"synthetic.pt.trace.json\"\n}\n");
    flush();
    file_.commit();
  }

 private:
  static std::string us(std::int64_t ns) { return us_text(1'740'461'679'000'000'000 + ns); }

  void put(const std::string& text) {
    buffer_ += text;
    if (buffer_.size() > (1 << 20)) flush();
  }
  void flush() {
    bytes_ += buffer_.size();
    file_.write(buffer_);
    buffer_.clear();
  }

  void pair_of_layers() {
    attention();
    kernel("void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*, float*, int*, long*)", 18);
    attention();
    kernel("void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*, float*, int*, long*)", 60);
    kernel("void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*, float*, int*, long*)", 18);
    experts();
    kernel("void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*, float*, int*, long*)", 60);
    for (int ubatch = 0; ubatch < 2; ++ubatch) {
      kernel("void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*, int*, void*, float const*)", 18);
      kernel("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, (deep_gemm::GemmType)0>(float*, int*)", 18);
      kernel("void vllm::act_and_mul_kernel<c10::BFloat16, &(vllm::silu_kernel)>(c10::BFloat16*)", 4);
      kernel("void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 128u, (deep_gemm::GemmType)0>(float*, int*)", 11);
      if (ubatch == 0) experts();
      kernel("void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*, int*, void*, float const*)", 20);
    }
  }
  void attention() {
    for (const char* name :
         {"void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float)",
          "void deep_gemm::fp8_gemm_kernel<2112u, 7168u, 128u, (deep_gemm::GemmType)0>(float*, int*)",
          "void vllm::rotary_embedding_kernel<c10::BFloat16, false>(long const*, c10::BFloat16*)",
          "void vllm::concat_and_cache_mla_kernel<unsigned short, unsigned char>(unsigned short const*)"})
      kernel(name, 9);
    kernel("void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>, true>(Params)", 249);
    kernel("void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, float, long, 512, 64, 128>(Params)", 11);
    for (const char* name :
         {"nvjet_tst_128x64_64x10_1x2_h_bz_TNT",
          "void deep_gemm::fp8_gemm_kernel<7168u, 16384u, 128u, (deep_gemm::GemmType)0>(float*, int*)",
          "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float)",
          "void vllm::moe::grouped_topk_fused_kernel<float, int>(float*, float*, int*)"})
      kernel(name, 15);
  }
  void experts() {
    kernel("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, (deep_gemm::GemmType)2>(float*, int*)", 81);
    kernel("_silu_mul_fp8_quant_deep_gemm", 8);
    kernel("void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 128u, (deep_gemm::GemmType)2>(float*, int*)", 39);
  }

  void kernel(const std::string& name, int typical_us) {
    ++correlation_;
    const std::string id = std::to_string(correlation_);
    host_ += 6000 + static_cast<std::int64_t>(mix_below(1, correlation_, 3000));
    const std::int64_t dur = typical_us * 950 + static_cast<std::int64_t>(mix_below(2, correlation_, 100)) * typical_us;
    gpu_ = std::max(gpu_ + 1500, host_ + 4000);
    const std::string host = "\"pid\": 4242, \"tid\": 4242, \"ts\": ", gpu = "\"pid\": 0, \"tid\": 7, \"ts\": ";
    put("  {\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"vllm::op\", " + host + us(host_ - 4000) +
        ", \"dur\": 5.250,\n    \"args\": {\n      \"External id\": " + id +
        ",\"Record function id\": 0, \"Ev Idx\": " + id +
        ", \"Input Dims\": [[128, 7168], [7168, 2112]], \"Input type\": [\"c10::BFloat16\", \"c10::BFloat16\"]\n    "
        "}\n  },\n");
    put("  {\n    \"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", " + host + us(host_) +
        ", \"dur\": 4.100,\n    \"args\": {\n      \"External id\": " + id + ", \"cbid\": 211, \"correlation\": " + id +
        "\n    }\n  },\n");
    put("  {\n    \"ph\": \"s\", \"id\": " + id + ", " + host + us(host_) +
        ",\n    \"cat\": \"ac2g\", \"name\": \"ac2g\"\n  },\n");
    put("  {\n    \"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"" + name + "\", " + gpu + us(gpu_) +
        ", \"dur\": " + us_text(dur) + ",\n    \"args\": {\n      \"External id\": " + id +
        ",\n      \"queued\": 0, \"device\": 0, \"context\": 1,\n      \"stream\": 7, \"correlation\": " + id +
        ",\n      \"registers per thread\": 168,\n      \"shared memory\": 203776,\n      \"blocks per SM\": "
        "0.848485,\n"
        "      \"warps per SM\": 10.181818,\n      \"grid\": [112, 1, 1],\n      \"block\": [384, 1, 1],\n"
        "      \"est. achieved occupancy %\": 0\n    }\n  },\n");
    put("  {\n    \"ph\": \"f\", \"id\": " + id + ", " + gpu + us(gpu_) +
        ",\n    \"cat\": \"ac2g\", \"name\": \"ac2g\", \"bp\": \"e\"\n  },\n");
    gpu_ += dur;
  }

  OutputFile file_;
  std::string buffer_;
  std::uint64_t bytes_ = 0, correlation_ = 0;
  std::int64_t host_ = 0, gpu_ = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t wanted = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  const bool keep = argc > 2;
  const std::string path =
      keep ? argv[2] : (std::filesystem::temp_directory_path() / "dbo-inspect-bench.json").string();
  if (!std::filesystem::exists(path)) {
    Generator generator(path);
    for (int step = 0; generator.bytes() < wanted; ++step) generator.step(step);
    generator.finish();
  }
  const auto size = static_cast<double>(std::filesystem::file_size(path));
  const auto start = std::chrono::steady_clock::now();
  const Inspection inspection = inspect_trace(path);
  const std::string text = inspection_text(inspection);
  const double seconds = seconds_since(start);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%.2f GiB, %lld events, %zu kernels of %d steps: %.1f s (%.0f MB/s), peak memory %ld MiB\n",
              size / (1 << 30), static_cast<long long>(inspection.classified.raw.events),
              inspection.classified.info.size(), inspection.classified.steps, seconds, size / seconds / 1e6,
              usage.ru_maxrss / 1024);
  std::printf("%s", text.substr(0, text.find("\n  kernel")).c_str());
  if (!keep) std::filesystem::remove(path);
  // The aim: 1 GiB in under 60 s and 512 MiB.
  const bool good = seconds < 60 * size / (1 << 30) && usage.ru_maxrss / 1024 < 512;
  std::printf("%s the aim of 60 s a GiB and 512 MiB\n", good ? "within" : "MISSES");
  return good ? 0 : 1;
}
