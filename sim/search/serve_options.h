// The options that servers have: how many words follow each, so that a command is cut as its server would cut it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace dbo {

enum class Server : std::uint8_t { Vllm, Sglang };

enum class Takes : std::uint8_t { Nothing, Value, Values };

/// What follows the option, its name without dashes; nothing for an option that is not known. "no-NAME" is an option
/// where the server lets a switch be turned off so, and options of older versions are known too.
std::optional<Takes> find_option(Server server, std::string_view name);

/// All options of the version read; not those that are gone from it.
std::vector<std::string_view> option_names(Server server);

/// Whether the option is written with one dash: "-tp".
bool is_short_option(Server server, std::string_view name);

/// Of an option that the latest state read has no more: what to say instead, empty for nothing.
std::optional<std::string_view> gone_option(Server server, std::string_view name);

/// Long options that begin so: both servers take an option by any beginning that only it has.
std::vector<std::string_view> options_beginning(Server server, std::string_view beginning);

/// What a server takes after an option that says nothing of a step: a number from `low` (`above`: more than that) to
/// `high`.
struct OptionRange {
  std::string_view name;
  double low = 0, high = 0;
  bool above = false;
};
std::span<const OptionRange> option_ranges(Server server);

/// The files that the options were read from, and the commits they were read at.
std::string_view option_sources(Server server);

}  // namespace dbo
