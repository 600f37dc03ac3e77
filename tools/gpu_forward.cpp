#include "tools/gpu_forward.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace dbo {
namespace {

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_dbo_gpu() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && is_program(self.parent_path() / "dbo-gpu")) return self.parent_path() / "dbo-gpu";
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (!folder.empty() && is_program(std::filesystem::path(folder) / "dbo-gpu"))
      return std::filesystem::path(folder) / "dbo-gpu";
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
  }
  return {};
}

int forward_to_gpu(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const std::string program = find_dbo_gpu();
  if (program.empty())
    throw InputError(
        "dbo " + command +
        " needs dbo-gpu, which was not built: it needs nvcc, cuBLAS, CUPTI and NCCL of one toolkit; with them on this "
        "machine, "
        "run `meson setup --reconfigure build -Dgpu=enabled && ninja -C build`, or copy a bundle made by tools/bundle");
  std::vector<char*> arguments(argv, argv + argc);
  std::string name = program;
  arguments[0] = name.data();
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw InputError(program, "", std::string("cannot start: ") + std::strerror(errno));
}

}  // namespace dbo
