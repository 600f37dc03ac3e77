// What to tell a server so that it runs the setting a sweep advises.
#pragma once

#include <string>
#include <vector>

#include "sim/search/tune_report.h"

namespace dbo {

/// The files whose flags and rules these are, and the commits they were read at. Each is of another commit: no state of
/// the server was read as a whole.
std::string vllm_version();
std::string sglang_version();

struct ServingFlags {
  std::string version;               ///< of the server, that the flags were read for
  std::vector<std::string> env;      ///< NAME=VALUE
  std::vector<std::string> command;  ///< words; MODEL stands for the model's name. Empty: leave it off
  std::string where_it_pays;         ///< left off: a line that splits other batches alone, where those pay and it can
  std::vector<std::string> notes;    ///< what the flags cannot say, or what to know about them
  std::string line() const;          ///< to paste into a shell; empty when there is no command
};

/// The flags of an advice; without a command when it is to leave splitting off, or when the setting's transport is none
/// the server has.
ServingFlags serving_flags(const Config& config, const Advice& advice);

/// The advice in a sentence with numbers: what splitting gains at the batch, and how sure that is.
std::string advice_text(const Advice& advice);
/// "from 57 tokens a rank on".
std::string crossover_text(const Crossover& crossover);

}  // namespace dbo
