// A list of configs to validate, and the table of errors over what came back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/cost/profile.h"
#include "validate/outcome.h"

namespace dbo::validate {

struct SuiteEntry {
  std::string name;
  Config config;
};

struct Suite {
  std::string file;
  std::vector<SuiteEntry> entries;
};

/// The suite that comes with the program: two models, decode and prefill, three batch sizes, three transports, SM
/// splits.
inline constexpr std::string_view kDefaultSuite = "default";

/// A file, or the name of a suite that comes with the program ("default", "ep8").
/// {"format": 1, "base": {...}, "configs": [{"name": "...", "config": {...}} or {"name": "...", "file": "..."}]}: the
/// keys of `config` lie over those of `base`, objects member by member. Throws InputError with the place; names must be
/// different and fit for file names.
Suite load_suite(const std::string& path);

/// `over` laid over `base`, objects member by member.
Json overlay(const Json& base, const Json& over);

/// Of several profiles that of the config's model; the only one where there is one. Throws InputError when none is.
std::string pick_profile(const std::vector<std::string>& paths, const Config& config);

/// Whether the config's batch was itself measured for the profile, with its transport and ranks: then predicting it
/// proves nothing.
bool is_calibration_config(const Profile& profile, const Config& config);

/// Throws InputError when a config of the suite is one that the profile it would be predicted by was measured on.
void check_suite(const Suite& suite, const std::vector<std::string>& profiles);

/// What an outcome stands for: it is used again only while config, profile and number of GPUs are the same.
std::string outcome_key(const Config& config, const std::string& profile_text, int gpus);

/// Absolute errors over a suite.
struct ErrorLine {
  std::string what;
  int count = 0;
  double median = 0, p95 = 0, worst = 0;
  std::string worst_case;  ///< name of the config
  double spread = 0;       ///< median of the measurements' own spread, where there is one
};
/// "step, graph", the same anchor-normalised, "gain, graph", every op kind and window; in that order.
std::vector<ErrorLine> error_table(const std::vector<Outcome>& outcomes);

/// The table, and one line a config: steps, gains and what failed.
std::string suite_text(const std::vector<Outcome>& outcomes);
/// The same two tables for a README, with machine and versions.
std::string suite_markdown(const std::vector<Outcome>& outcomes);
/// A line for each config and way.
std::string suite_csv(const std::vector<Outcome>& outcomes);
Json suite_to_json(const std::vector<Outcome>& outcomes);
/// All four in a folder: suite.json, .txt, .md and .csv.
void write_suite_tables(const std::string& folder, const std::vector<Outcome>& outcomes);

}  // namespace dbo::validate
