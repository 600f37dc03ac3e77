// The words of a serving command: environment, server, options. What they mean is from_serve.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json_reader.h"

namespace dbo {

enum class Server : std::uint8_t { Vllm, Sglang };

/// One option as given, its name without dashes ("enable-dbo", "tp"), and what follows it up to the next option.
struct ServeOption {
  std::string name;
  std::vector<std::string> values;
};

/// Looks options up by name; what nobody asked for can be listed.
class ServeCommand {
 public:
  /// Splits as a shell does: quotes, backslashes and line ends after one. Throws InputError for an open quote, and when
  /// no word starts a server that is known ("vllm serve", "sglang serve", or their Python modules).
  explicit ServeCommand(const std::string& line);

  Server server() const { return server_; }
  /// The positional model; empty: none.
  const std::string& model() const { return model_; }
  std::optional<std::string> environment(std::string_view name) const;

  /// Whether a switch is on: "--x" or, where the server has it, "--no-x"; the last one counts.
  bool has(std::string_view name);
  /// The values of the last option with one of the names. Throws InputError when it has none.
  std::optional<std::vector<std::string>> values(const std::vector<std::string_view>& names);
  std::optional<std::string> value(const std::vector<std::string_view>& names);
  /// Throws InputError for what is no whole number.
  std::optional<std::int64_t> count(const std::vector<std::string_view>& names);
  std::optional<double> number(const std::vector<std::string_view>& names);
  /// An option whose value is a JSON object, with members also given as "--name.member value".
  Json object(const std::vector<std::string_view>& names);

  /// Options that nobody looked up, as written.
  std::vector<std::string> unread() const;

 private:
  void read_options(const std::vector<std::string>& words, std::size_t first);
  const ServeOption* find(const std::vector<std::string_view>& names);

  Server server_ = Server::Vllm;
  std::string model_;
  std::vector<std::pair<std::string, std::string>> environment_;
  std::vector<ServeOption> options_;
  std::vector<std::string> known_;  ///< names looked up
};

}  // namespace dbo
