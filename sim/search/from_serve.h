// From a serving command to a config: what the command says, what it leaves open, and what its server would refuse.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/config.h"
#include "sim/search/serve_command.h"

namespace dbo {

/// What a command does not say; empty or 0: assumed.
struct ServeHints {
  std::string model;  ///< preset, or path of a config.json
  std::string gpu;
  int gpus_per_node = 0;
  std::optional<Phase> phase;
  std::int64_t tokens = 0;   ///< a data-parallel rank
  std::int64_t context = 0;  ///< tokens
};

struct FromServe {
  Json config;                       ///< as a user would write it: no more than differs from the defaults
  std::string server, version;       ///< "vLLM" and what its rules were read from
  std::vector<std::string> took;     ///< "2 ubatches (--enable-dbo)"
  std::vector<std::string> assumed;  ///< what the command leaves open, and what is not modelled as it is
  std::vector<std::string> refused;  ///< what the server would stop at, and why
  std::vector<std::string> unread;   ///< options that change nothing here, or that are not known
};

/// Reads a command of vLLM or SGLang. What the server would refuse is reported, and the config made is that of the
/// nearest command it would take. Throws InputError for a command that cannot be read, a model that is not known, and
/// for what no config can say.
FromServe from_serve(const std::string& line, const ServeHints& hints);

}  // namespace dbo
