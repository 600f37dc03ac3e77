// The words of a serving command: environment, server, options. What they mean is from_serve.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/search/serve_options.h"

namespace dbo {

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
  const std::vector<std::pair<std::string, std::string>>& environment() const { return environment_; }

  /// Whether a switch is on: "--x" or, where the server has it, "--no-x"; the last one counts.
  bool has(std::string_view name);
  /// The same for a switch of several names.
  bool has_one_of(const std::vector<std::string_view>& names);
  /// The values of the last option with one of the names. Throws InputError when it has none.
  std::optional<std::vector<std::string>> values(const std::vector<std::string_view>& names);
  std::optional<std::string> value(const std::vector<std::string_view>& names);
  /// Throws InputError for what is no whole number.
  std::optional<std::int64_t> count(const std::vector<std::string_view>& names);
  /// As count(), and 25.6k, 32K, 1m: k, m, g, t are thousands and may have a fraction, K, M, G, T are of 1024.
  std::optional<std::int64_t> readable_count(const std::vector<std::string_view>& names);
  std::optional<double> number(const std::vector<std::string_view>& names);
  /// An option whose value is a JSON object, with members also given as "--name.member value".
  Json object(const std::vector<std::string_view>& names);

  /// What the server's parser would stop at: a misspelt option, a beginning that several options have, "--no-" where
  /// there is none, the wrong number of dashes.
  const std::vector<std::string>& refused() const { return refused_; }
  /// Options that only other versions than the one read have.
  const std::vector<std::string>& of_other_versions() const { return other_versions_; }

  /// Options and variables that none of `said` names, as written: an option by any of the names it was looked up with.
  /// One that the version read does not have says so.
  std::vector<std::string> unread(const std::vector<std::string>& said) const;

 private:
  void read_options(const std::vector<std::string>& words, std::size_t first);
  /// The option's name in full; what is wrong with it goes to refused_ and other_versions_.
  std::string full_name(const std::string& name, const std::string& dashes);
  const ServeOption* find(const std::vector<std::string_view>& names);

  Server server_ = Server::Vllm;
  std::string model_;
  std::vector<std::pair<std::string, std::string>> environment_;
  std::vector<ServeOption> options_;
  std::vector<std::vector<std::string>> known_;  ///< names looked up together
  std::vector<std::string> refused_, other_versions_;
};

}  // namespace dbo
