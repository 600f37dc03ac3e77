// The command line of a program as plain data; CLI11 stays in cli.cpp. One place for usage errors, --help, --version
// and exit codes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dbo {

/// Where an option's value goes; its type is what the option takes. A flag is a bool. An optional stays empty when the
/// option is not given, so that no value (0, "") has to stand for that.
using OptionTarget = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                                  std::optional<std::int64_t>*, std::optional<double>*, std::optional<std::string>*>;

struct OptionSpec {
  std::string name;  ///< "--out,-o", or "CONFIG" for a positional one
  std::string what;  ///< one line; says unit and default where there is one
  OptionTarget target;
  bool required = false;
  std::vector<std::string> choices;   ///< empty: any value
  std::vector<std::string> excludes;  ///< options (by first name) that contradict this one
};

struct CommandSpec {
  std::string name;
  std::string what;     ///< one line in the program's help
  std::string example;  ///< shown at the end of the command's help
  std::vector<OptionSpec> options;
  std::function<int()> run;  ///< returns the exit code
};

struct ProgramSpec {
  std::string name, what;
  std::vector<CommandSpec> commands;
  /// Called with the arguments when the first one names a command listed here, before any parsing (for commands that
  /// another program runs).
  std::vector<std::pair<std::string, std::string>> forwarded;  ///< name, what
  std::function<int(int argc, char** argv)> forward;
};

/// Parses, runs the command and turns exceptions into messages on stderr and exit codes: 0 ok, 1 a finding, 2 bad input
/// or usage, 3 CUDA or NCCL, 4 our bug.
int run_program(const ProgramSpec& program, int argc, char** argv);

}  // namespace dbo
