#include "validate/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/base/data_file.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/hash.h"

namespace dbo {

extern const DataFile kSuiteData[];
extern const unsigned kSuiteData_count;

}  // namespace dbo

namespace dbo::validate {
namespace {

/// The text of a suite that comes with the program, else the file's.
JsonRef suite_root(const std::string& path) {
  for (unsigned i = 0; i < kSuiteData_count; ++i) {
    if (path == kSuiteData[i].name) return JsonRef(json_document(kSuiteData[i].text, path, {.comments = true}));
  }
  return JsonRef(load_json(path, {.comments = true}));
}

bool fits_file_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

double at_share(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::ceil(share * last))];
}

/// Collects absolute errors under names, in order of first appearance.
class Table {
 public:
  void add(const std::string& what, double error, const std::string& name, double spread = 0) {
    const auto [at, fresh] = index_.emplace(what, lists_.size());
    if (fresh) lists_.push_back({what, {}, {}, 0, {}});
    List& list = lists_[at->second];
    list.errors.push_back(std::abs(error));
    list.spreads.push_back(spread);
    if (std::abs(error) < list.worst) return;
    list.worst = std::abs(error);
    list.worst_case = name;
  }

  std::vector<ErrorLine> lines() const {
    std::vector<ErrorLine> lines;
    for (List list : lists_) {
      std::sort(list.errors.begin(), list.errors.end());
      std::sort(list.spreads.begin(), list.spreads.end());
      lines.push_back({list.what, static_cast<int>(list.errors.size()), at_share(list.errors, 0.5),
                       at_share(list.errors, 0.95), list.errors.back(), list.worst_case, at_share(list.spreads, 0.5)});
    }
    return lines;
  }

 private:
  struct List {
    std::string what;
    std::vector<double> errors, spreads;
    double worst = 0;
    std::string worst_case;
  };
  std::vector<List> lists_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

Json overlay(const Json& base, const Json& over) {
  if (!base.is_object() || !over.is_object()) return over;
  Json out = base;
  for (const auto& [key, value] : over.members()) {
    const Json* below = base.find(key);
    out.set(key, below == nullptr ? value : overlay(*below, value));
  }
  return out;
}

Suite load_suite(const std::string& path) {
  const JsonRef root = suite_root(path);
  ObjectReader reader(root, "a suite");
  reader.require("format").integer(1, 1);
  Suite suite;
  suite.file = path;
  const Json base = reader.has("base") ? reader.require("base").value() : Json::object();
  std::set<std::string> names;
  for (const JsonRef& item : reader.require("configs").items()) {
    ObjectReader entry(item, "a config of a suite");
    const JsonRef name = entry.require("name");
    if (!fits_file_name(name.string())) name.fail("must be letters, digits, '-', '_' and '.' alone");
    if (!names.insert(name.string()).second) name.fail("is there twice");
    if (entry.has("file") == entry.has("config")) item.fail("needs either \"file\" or \"config\"");
    if (const auto file = entry.find("file")) {
      suite.entries.push_back({name.string(), load_config(folder_of(path) + file->string())});
    } else {
      const Json whole = overlay(base, entry.require("config").value());
      suite.entries.push_back(
          {name.string(), config_from_json(JsonRef(wrap_json(whole, path + ": " + name.string())))});
    }
    entry.done();
  }
  reader.done();
  if (suite.entries.empty()) throw InputError(path, "/configs", "is empty");
  return suite;
}

std::string pick_profile(const std::vector<std::string>& paths, const Config& config) {
  if (paths.empty())
    throw InputError(config.file, "/costs", "names no profile: --profile FILE says what was measured (dbo calibrate)");
  if (paths.size() == 1) return paths.front();
  std::string known;
  for (const std::string& path : paths) {
    const std::string name = load_profile(path).shape.name;
    if (name == config.model.name) return path;
    known += (known.empty() ? "" : ", ") + name;
  }
  throw InputError(config.file, "/model", "is " + config.model.name + ", the profiles are of " + known);
}

bool is_calibration_config(const Profile& profile, const Config& config) {
  const auto& ranks = config.workload.steps.front().ranks;
  const RankBatch& rank = ranks.front();
  if (rank.requests.empty()) return false;
  const std::int64_t tokens = rank.tokens();
  const bool prefill = rank.requests.front().query > kDecodeQueries;
  const std::int64_t context = rank.requests.front().seq;
  bool attention = false, transport = false;
  for (const ProfilePoint& p : profile.points) {
    if (!p.beside.empty() || p.tokens != tokens) continue;
    // A calibration's context counts the new token, or does not.
    if (p.op == "A1" && p.prefill == prefill && std::abs(p.context - context) <= 1) attention = true;
    if (p.transport == config.overlap.transport && p.ranks == config.cluster.gpus()) transport = true;
  }
  return attention && transport;
}

void check_suite(const Suite& suite, const std::vector<std::string>& profiles) {
  for (const SuiteEntry& entry : suite.entries) {
    const std::string path = pick_profile(profiles, entry.config);
    if (is_calibration_config(load_profile(path), entry.config))
      throw InputError(suite.file, "/configs",
                       "\"" + entry.name + "\" is a batch that " + path +
                           " was measured on: predicting it proves nothing; change its tokens or context");
  }
}

std::string outcome_key(const Config& config, const std::string& profile_text, int gpus) {
  return hash_text(content_hash(compact_json(config_to_json(config)) + profile_text + std::to_string(gpus)));
}

std::vector<ErrorLine> error_table(const std::vector<Outcome>& outcomes) {
  Table steps, kinds, windows;
  for (const Outcome& outcome : outcomes) {
    for (const WayOutcome& way : outcome.ways) {
      const std::string how = way.graph ? ", graph" : ", eager";
      const double spread = way.split.relative_spread();
      steps.add("step" + how, way.step_error(false), outcome.name, spread);
      steps.add("step" + how + ", normalised", way.step_error(true), outcome.name, spread);
      steps.add("un-split step" + how + ", normalised", way.unsplit_error(true), outcome.name,
                way.unsplit.relative_spread());
      steps.add("gain" + how, way.gain_error(), outcome.name, way.gain_spread());
      for (const ErrorRow& row : way.kinds) kinds.add(row.what + how, row.error, outcome.name);
      for (const ErrorRow& row : way.windows) windows.add("window " + row.what + how, row.error, outcome.name);
    }
  }
  std::vector<ErrorLine> lines = steps.lines();
  for (const Table* table : {&kinds, &windows}) {
    const std::vector<ErrorLine> more = table->lines();
    lines.insert(lines.end(), more.begin(), more.end());
  }
  return lines;
}

std::string suite_text(const std::vector<Outcome>& outcomes) {
  std::string text;
  std::size_t passed = 0;
  for (const Outcome& outcome : outcomes) passed += outcome.failures().empty() && !outcome.ways.empty() ? 1 : 0;
  text += fmt::format("{} of {} configs passed\n\n", passed, outcomes.size());
  text += fmt::format("{:<34} {:<6} {:>11} {:>11} {:>8} {:>8} {:>8} {:>8} {:>7}\n", "config", "way", "predicted us",
                      "measured us", "error", "norm.", "gain", "pred.", "spread");
  for (const Outcome& outcome : outcomes) {
    for (const WayOutcome& way : outcome.ways)
      text += fmt::format("{:<34} {:<6} {:>11.1f} {:>11.1f} {:>+7.1f}% {:>+7.1f}% {:>7.3f}x {:>7.3f}x {:>6.1f}%\n",
                          outcome.name, way.graph ? "graph" : "eager", way.predicted_split_us, way.split.median_us,
                          way.step_error(false) * 100, way.step_error(true) * 100, way.measured_gain(),
                          way.predicted_gain(), way.split.relative_spread() * 100);
    for (const std::string& failure : outcome.failures()) text += "    " + failure + "\n";
  }
  text += fmt::format("\n{:<44} {:>6} {:>9} {:>9} {:>9} {:>9}  {}\n", "absolute errors", "count", "median", "p95",
                      "worst", "spread", "worst config");
  for (const ErrorLine& line : error_table(outcomes))
    text += fmt::format("{:<44} {:>6} {:>8.1f}% {:>8.1f}% {:>8.1f}% {:>8.1f}%  {}\n", line.what, line.count,
                        line.median * 100, line.p95 * 100, line.worst * 100, line.spread * 100, line.worst_case);
  return text;
}

std::string suite_markdown(const std::vector<Outcome>& outcomes) {
  std::string text;
  const auto ran = std::find_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return !o.ways.empty(); });
  if (ran != outcomes.end()) {
    int gpus = 0;
    for (const Outcome& outcome : outcomes) gpus = std::max(gpus, outcome.gpus);
    text += fmt::format("{} x {}, {}.\n\n", gpus, ran->device, ran->versions);
  }
  text +=
      "| config | way | predicted us | measured us | error | normalised | predicted gain | measured gain | spread |\n";
  text += "|---|---|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const Outcome& outcome : outcomes) {
    for (const WayOutcome& way : outcome.ways)
      text += fmt::format("| {}{} | {} | {:.1f} | {:.1f} | {:+.1f} % | {:+.1f} % | {:.3f} | {:.3f} | {:.1f} % |\n",
                          outcome.name, outcome.emulated ? " (emulated)" : "", way.graph ? "graph" : "eager",
                          way.predicted_split_us, way.split.median_us, way.step_error(false) * 100,
                          way.step_error(true) * 100, way.predicted_gain(), way.measured_gain(),
                          way.split.relative_spread() * 100);
    if (outcome.ways.empty()) text += fmt::format("| {} | | | | | | | | |\n", outcome.name);
  }
  text +=
      "\n| absolute error of | count | median | p95 | worst | spread | worst config |\n|---|--:|--:|--:|--:|--:|---|\n";
  for (const ErrorLine& line : error_table(outcomes))
    text += fmt::format("| {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % | {} |\n", line.what, line.count,
                        line.median * 100, line.p95 * 100, line.worst * 100, line.spread * 100, line.worst_case);
  return text;
}

std::string suite_csv(const std::vector<Outcome>& outcomes) {
  std::string text =
      "config,what,gpus,emulated,way,predicted_us,measured_us,spread,error,normalised_error,predicted_unsplit_us,"
      "measured_unsplit_us,unsplit_spread,predicted_gain,measured_gain,drift,alone_us,tracing_us,order_findings,"
      "failures\n";
  for (const Outcome& outcome : outcomes) {
    for (const WayOutcome& way : outcome.ways)
      text += fmt::format(
          "{},\"{}\",{},{},{},{:.2f},{:.2f},{:.5f},{:.5f},{:.5f},{:.2f},{:.2f},{:.5f},{:.5f},{:.5f},"
          "{:.5f},{:.2f},{:.2f},{},{}\n",
          outcome.name, outcome.what, outcome.gpus, outcome.emulated ? 1 : 0, way.graph ? "graph" : "eager",
          way.predicted_split_us, way.split.median_us, way.split.relative_spread(), way.step_error(false),
          way.step_error(true), way.predicted_unsplit_us, way.unsplit.median_us, way.unsplit.relative_spread(),
          way.predicted_gain(), way.measured_gain(), way.drift.split, way.recomputed_us, way.tracing_us,
          way.order_findings, outcome.failures().size());
  }
  return text;
}

Json suite_to_json(const std::vector<Outcome>& outcomes) {
  Json json = Json::object();
  json.set("format", 1);
  Json& table = json.set("errors", Json::array());
  for (const ErrorLine& line : error_table(outcomes)) {
    Json one = Json::object();
    one.set("what", line.what);
    one.set("count", line.count);
    one.set("median", line.median);
    one.set("p95", line.p95);
    one.set("worst", line.worst);
    one.set("worst_config", line.worst_case);
    one.set("spread", line.spread);
    table.push(std::move(one));
  }
  Json& configs = json.set("configs", Json::array());
  for (const Outcome& outcome : outcomes) configs.push(outcome_to_json(outcome));
  return json;
}

void write_suite_tables(const std::string& folder, const std::vector<Outcome>& outcomes) {
  make_folder(folder);
  const std::string base = folder + "/suite";
  write_file(base + ".json", pretty_json(suite_to_json(outcomes)));
  write_file(base + ".txt", suite_text(outcomes));
  write_file(base + ".md", suite_markdown(outcomes));
  write_file(base + ".csv", suite_csv(outcomes));
}

}  // namespace dbo::validate
