#include "tools/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "sim/base/error.h"
#include "tools/version.h"

namespace dbo {
namespace {

template <typename T>
constexpr bool is_optional = false;
template <typename T>
constexpr bool is_optional<std::optional<T>> = true;

CLI::Option* add_option(CLI::App& app, const OptionSpec& spec) {
  CLI::Option* option = std::visit(
      [&](auto* target) -> CLI::Option* {
        if constexpr (std::is_same_v<decltype(target), bool*>) {
          return app.add_flag(spec.name, *target, spec.what);
        } else if constexpr (is_optional<std::remove_pointer_t<decltype(target)>>) {
          using Value = typename std::remove_pointer_t<decltype(target)>::value_type;
          return app.add_option_function<Value>(
              spec.name, [target](const Value& value) { *target = value; }, spec.what);
        } else {
          return app.add_option(spec.name, *target, spec.what);
        }
      },
      spec.target);
  if (spec.required) option->required();
  // An empty name is a variable that was not set; lists say so themselves, with what they may be.
  if (std::holds_alternative<std::string*>(spec.target) ||
      std::holds_alternative<std::vector<std::string>*>(spec.target))
    option->check([](const std::string& text) { return text.empty() ? std::string("is empty") : std::string(); });
  if (!spec.choices.empty()) option->check(CLI::IsMember(spec.choices));
  return option;
}

void add_command(CLI::App& app, const CommandSpec& command, std::function<int()>& chosen) {
  CLI::App* sub = app.add_subcommand(command.name, command.what);
  std::vector<CLI::Option*> options;
  for (const OptionSpec& spec : command.options) options.push_back(add_option(*sub, spec));
  for (std::size_t i = 0; i < options.size(); ++i)
    for (const std::string& other : command.options[i].excludes) options[i]->excludes(sub->get_option(other));
  sub->footer("Example: " + command.example);
  sub->callback([&chosen, &command] { chosen = command.run; });
}

int fail(Exit code, const ProgramSpec& program, const char* what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), what);
  return static_cast<int>(code);
}

/// Names that are not known, before anything is said about what is missing.
void check_names(const ProgramSpec& program, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::string name = argv[1];
  const auto command = std::find_if(program.commands.begin(), program.commands.end(),
                                    [&](const CommandSpec& c) { return c.name == name; });
  if (command == program.commands.end()) {
    std::vector<std::string_view> known;
    for (const CommandSpec& c : program.commands) known.push_back(c.name);
    for (const auto& [forwarded, what] : program.forwarded) known.push_back(forwarded);
    throw InputError("unknown command \"" + name + "\" " + known_names(name, known));
  }
  std::vector<std::string_view> known = {"--help"};
  for (const OptionSpec& spec : command->options)
    if (spec.name.starts_with("--")) known.push_back(std::string_view(spec.name).substr(0, spec.name.find(',')));
  for (int i = 2; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word = argv[i], option = word.substr(0, word.find('='));
    if (!option.starts_with("--") || std::find(known.begin(), known.end(), option) != known.end()) continue;
    throw InputError("unknown option \"" + std::string(option) + "\" of " + program.name + " " + name + " " +
                     known_names(option, known));
  }
}

/// A full disk or a closed pipe must not look like success.
void check_output() {
  errno = 0;
  if (std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  throw InputError("standard output", "", "cannot write" + why);
}

int parse_and_run(const ProgramSpec& program, int argc, char** argv) {
  CLI::App app{program.what, program.name};
  app.require_subcommand(1);
  app.set_version_flag("--version", program.name + " " + kVersion);
  std::function<int()> chosen;
  for (const CommandSpec& command : program.commands) add_command(app, command, chosen);
  for (const auto& [name, what] : program.forwarded) app.add_subcommand(name, what);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version end here too, with code 0.
    if (app.exit(error, std::cout, std::cerr) != 0) return static_cast<int>(Exit::Usage);
    check_output();
    return static_cast<int>(Exit::Ok);
  }
  const int code = chosen();
  check_output();
  return code;
}

}  // namespace

int run_program(const ProgramSpec& program, int argc, char** argv) {
  try {
    if (argc > 1)
      for (const auto& [name, what] : program.forwarded)
        if (name == argv[1]) return program.forward(argc, argv);
    check_names(program, argc, argv);
    return parse_and_run(program, argc, argv);
  } catch (const InputError& error) {
    return fail(Exit::Usage, program, error.what());
  } catch (const FindingError& error) {
    return fail(Exit::Finding, program, error.what());
  } catch (const CudaError& error) {
    return fail(Exit::Gpu, program, error.what());
  } catch (const NcclError& error) {
    return fail(Exit::Gpu, program, error.what());
  } catch (const std::bad_alloc&) {
    return fail(Exit::Usage, program, "out of memory: the input asks for more than this machine has");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(Exit::Usage, program, error.what());
  } catch (const std::system_error& error) {
    // What prints throws this when the stream is full or closed.
    const bool stream = std::ferror(stdout) != 0 || std::ferror(stderr) != 0;
    const std::string what = "standard output: cannot write: " + error.code().message();
    return stream ? fail(Exit::Usage, program, what.c_str()) : fail(Exit::Bug, program, error.what());
  } catch (const std::exception& error) {
    return fail(Exit::Bug, program, error.what());
  }
}

}  // namespace dbo
