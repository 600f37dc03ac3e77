// Runs the exchange benchmarks on their own: exchange_bench a2a|overlap [--quick] [--only SECTION]
// [--csv FILE].
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/base/error.h"
#include "validate/cuda/bench/bench.h"

namespace {

int run(int argc, char** argv) {
  const char* usage = "usage: exchange_bench a2a|overlap [--quick] [--only decode|prefill|copy] [--csv FILE]\n";
  dbo::bench::BenchOptions options;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--csv") == 0 && i + 1 < argc) {
      options.csv = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fputs(usage, stderr);
      return 2;
    }
  }
  if (argc > 1 && std::strcmp(argv[1], "a2a") == 0) return dbo::bench::run_bench_a2a(options);
  if (argc > 1 && std::strcmp(argv[1], "overlap") == 0) return dbo::bench::run_bench_overlap(options);
  std::fputs(usage, stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  // Before the first CUDA or NCCL call: queues for all streams, and no NVLink multicast.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
  int code = 3;
  try {
    return run(argc, argv);
  } catch (const dbo::InputError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    code = 2;
  } catch (const dbo::InternalError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    code = 4;
  } catch (const dbo::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  // A GPU that hangs would hold up the ordinary end of the process.
  std::fflush(nullptr);
  _exit(code);
}
