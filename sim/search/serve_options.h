// The options that servers have: how many words follow each, so that a command is cut as its server would cut it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace dbo {

enum class Server : std::uint8_t { Vllm, Sglang };

enum class Takes : std::uint8_t { Nothing, Value, Values };

/// What follows the option, its name without dashes; nothing for an option that is not known. The lists are those that
/// serving commands use, not all of the server's: an option that is not here need not be wrong.
std::optional<Takes> find_option(Server server, std::string_view name);

std::vector<std::string_view> option_names(Server server);

}  // namespace dbo
