// Runs the compute benchmarks on their own: compute_bench gemm|attention [--quick] [--csv FILE].
#include <cstdio>
#include <cstring>
#include <exception>

#include "sim/base/error.h"
#include "validate/cuda/bench/bench.h"

int main(int argc, char** argv) {
  const char* usage = "usage: compute_bench gemm|attention [--quick] [--csv FILE]\n";
  dbo::bench::BenchOptions options;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--csv") == 0 && i + 1 < argc) {
      options.csv = argv[++i];
    } else {
      std::fputs(usage, stderr);
      return 2;
    }
  }
  try {
    if (argc > 1 && std::strcmp(argv[1], "gemm") == 0) return dbo::bench::run_bench_gemm(options);
    if (argc > 1 && std::strcmp(argv[1], "attention") == 0) return dbo::bench::run_bench_attention(options);
  } catch (const dbo::InputError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const dbo::CudaError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
  std::fputs(usage, stderr);
  return 2;
}
