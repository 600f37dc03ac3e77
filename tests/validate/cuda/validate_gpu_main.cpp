// Runs each group of test cases in a process of its own with a time limit: a planted fault that takes its process
// with it ends its group and not the others. Words choose groups by how they begin (`validate_gpu_test sound inject`);
// with arguments that begin with a dash it is an ordinary doctest program.
#define DOCTEST_CONFIG_IMPLEMENT
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

#include "runtime/cuda/process.h"

namespace {

struct Group {
  const char* filter;
  int exit_code;  ///< that the group must end with
  int limit_s;
};

constexpr Group kGroups[] = {{"sound one*", 0, 90},   {"sound two*", 0, 90},   {"inject F3:*", 0, 40},
                             {"inject F4:*", 0, 60},  {"inject F5:*", 0, 40},  {"inject F7:*", 0, 40},
                             {"inject F8:*", 0, 40},  {"inject F12:*", 0, 40}, {"inject F14:*", 0, 40},
                             {"inject F16:*", 0, 40}, {"inject F17:*", 0, 40}, {"inject two*", 0, 150}};

/// Exit status of the program run with that filter, or -1 when it had to be stopped.
int run_group(const Group& group) {
  const std::string argument = std::string("--test-case=") + group.filter;
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "validate_gpu_test", argument.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(group.limit_s);
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
  dbo::runtime::prepare_process();
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (!words.empty() && words[0].starts_with('-')) return doctest::Context(argc, argv).run();
  // Asked in a child: a process that has touched CUDA must not fork others that use it.
  const pid_t probe = fork();
  if (probe == 0) {
    const std::string problem = dbo::runtime::gpu_problem();
    if (!problem.empty()) std::printf("no GPU: %s\n", problem.c_str());
    std::fflush(stdout);
    _exit(problem.empty() ? 0 : 77);
  }
  int status = 0;
  waitpid(probe, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
  int failed = 0, run = 0;
  for (const Group& group : kGroups) {
    const auto begins = [&](std::string_view word) { return std::string_view(group.filter).starts_with(word); };
    if (!words.empty() && std::none_of(words.begin(), words.end(), begins)) continue;
    ++run;
    const auto begin = std::chrono::steady_clock::now();
    std::printf("== %s\n", group.filter);
    std::fflush(stdout);
    const int result = run_group(group);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const bool passed = result == group.exit_code;
    std::printf("== %s %s (exit %d, %.1f s)\n", group.filter,
                passed         ? "passed"
                : result == -1 ? "STOPPED: time limit"
                               : "FAILED",
                result, took.count());
    std::fflush(stdout);
    failed += passed ? 0 : 1;
  }
  std::printf("%d of %d groups failed\n", failed, run);
  return failed > 0 || run == 0 ? 1 : 0;
}
