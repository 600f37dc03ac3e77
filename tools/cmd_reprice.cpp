// dbo reprice: what `validate` measured before, by today's prediction.
#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/commands.h"
#include "tools/version.h"
#include "validate/reprice.h"

namespace dbo {
namespace {

int reprice_all(const RepriceCommand& command, const validate::RepriceOptions& options) {
  const validate::RepricedSuite again =
      validate::reprice_suite(validate::load_suite(command.suite), command.measured, options);
  fmt::print(
      "{}", command.json ? pretty_json(validate::suite_to_json(again.outcomes)) : validate::suite_text(again.outcomes));
  for (const std::string& name : again.lacking)
    fmt::print(command.json ? stderr : stdout, "lacking: {} holds no outcome of {}\n", command.measured, name);
  bool ok = again.lacking.empty();
  for (const validate::Outcome& outcome : again.outcomes) ok = ok && outcome.failures().empty();
  return static_cast<int>(ok ? Exit::Ok : Exit::Finding);
}

/// As `validate` names it: "examples/teaching.json" is "teaching".
std::string name_of(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  return name.substr(0, name.rfind(".json"));
}

}  // namespace

int run_reprice(const RepriceCommand& command) {
  if (command.config.empty() == command.suite.empty())
    throw InputError("say what " + command.measured + " was measured of: --config FILE, or --suite FILE");
  validate::RepriceOptions options;
  options.profiles = command.profiles;
  options.program = fmt::format("dbo {}", kVersion);
  options.out = command.out;
  if (!command.suite.empty()) return reprice_all(command, options);
  const Config config = load_config(command.config);
  if (options.profiles.empty() && config.costs.source == CostSource::Profile && !config.costs.profile.empty())
    options.profiles.push_back(config.profile_path());
  const validate::Outcome outcome =
      validate::reprice_config(config, name_of(command.config), command.measured, options);
  fmt::print("{}", command.json ? pretty_json(validate::outcome_to_json(outcome)) : validate::outcome_text(outcome));
  return static_cast<int>(outcome.failures().empty() ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
