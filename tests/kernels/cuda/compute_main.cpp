// Runs each group of test cases in a process of its own with a time limit: a kernel that faults or hangs ends its group
// and not the others. Words choose groups by how they begin (`compute_cuda_test fp8 layer`); with arguments that begin
// with a dash it is an ordinary doctest program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr const char* kGroups[] = {"grouped*",    "fp8*",        "permute*",     "pointwise*",   "router*",
                                   "mla decode*", "gqa decode*", "mla prefill*", "gqa prefill*", "layer*"};
constexpr std::chrono::seconds kLimit{25};

/// Exit status of the program run with that filter, or -1 when it had to be stopped.
int run_group(const char* program, const char* filter) {
  const std::string argument = std::string("--test-case=") + filter;
  const pid_t child = fork();
  if (child == 0) {
    execl(program, program, argument.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (!words.empty() && words[0].starts_with('-')) return doctest::Context(argc, argv).run();
  // Asked in a child: a process that has touched CUDA must not fork others that use it.
  const pid_t probe = fork();
  if (probe == 0) {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      std::printf("no GPU: %s\n", cudaGetErrorString(status));
      std::fflush(stdout);
      _exit(77);
    }
    cudaDeviceProp device{};
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
      std::printf("the kernels need compute capability 9.0, this GPU (%s) has %d.%d\n", device.name, device.major,
                  device.minor);
      std::fflush(stdout);
      _exit(77);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(probe, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
  int failed = 0, run = 0;
  for (const char* group : kGroups) {
    const auto begins = [&](std::string_view word) { return std::string_view(group).starts_with(word); };
    if (!words.empty() && std::none_of(words.begin(), words.end(), begins)) continue;
    ++run;
    const auto begin = std::chrono::steady_clock::now();
    std::printf("== %s\n", group);
    std::fflush(stdout);
    const int result = run_group("/proc/self/exe", group);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("== %s %s (%.1f s)\n", group,
                result == 0    ? "passed"
                : result == -1 ? "STOPPED: time limit"
                               : "FAILED",
                took.count());
    std::fflush(stdout);
    failed += result != 0;
  }
  std::printf("%d of %d groups failed\n", failed, run);
  return failed > 0 || run == 0 ? 1 : 0;
}
