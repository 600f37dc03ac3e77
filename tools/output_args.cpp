// What arguments that name outputs may be.
#include <filesystem>

#include "sim/base/error.h"
#include "tools/commands.h"

namespace dbo {
namespace {

/// The file a path stands for, be it there or not.
std::filesystem::path file_of(const std::string& path) {
  std::error_code none;
  std::filesystem::path file = std::filesystem::weakly_canonical(path, none);
  return none ? std::filesystem::path(path) : file;
}

}  // namespace

bool check_outputs(bool json, const std::vector<NamedFile>& outputs, const std::vector<std::string>& inputs) {
  int taken = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    if (output.path.empty()) continue;
    if (output.path == "-") {
      ++taken;
      continue;
    }
    for (const std::string& input : inputs)
      if (file_of(output.path) == file_of(input))
        throw InputError(std::string(output.option) + " " + output.path + ": is what is read: name another file");
    for (std::size_t j = 0; j < i; ++j)
      if (!outputs[j].path.empty() && outputs[j].path != "-" && file_of(outputs[j].path) == file_of(output.path))
        throw InputError(std::string(outputs[j].option) + " and " + output.option + " both name " + output.path +
                         ": name another file for one");
  }
  if (taken + (json ? 1 : 0) > 1 && taken > 0)
    throw InputError(json ? "--json and an output file \"-\" both want standard output: name a file"
                          : "two output files are \"-\", standard output: name a file for one");
  return taken > 0;
}

void check_folder(const std::string& out) {
  if (out == "-")
    throw InputError("--out: must be a folder, is \"-\", which is standard output: leave it out, or print with --json");
}

}  // namespace dbo
