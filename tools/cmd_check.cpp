// dbo check: proves a config's or a plan's order sound, or says what is wrong with it.
#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/plan/plan_json.h"
#include "sim/search/check_config.h"
#include "sim/search/predict.h"
#include "tools/commands.h"

namespace dbo {
namespace {

PlanCheck check_file(const std::string& path) {
  const auto document = load_json(path, {.comments = true});
  if (looks_like_plan(document->root)) return check_plan(plan_from_json(JsonRef(document)));
  return check_config(config_from_json(JsonRef(document)));
}

const char* severity(const PlanFinding& finding) {
  return finding.stops ? "error" : "warning";
}

Json to_json(const PlanCheck& check) {
  Json findings = Json::array();
  std::int64_t errors = 0;
  for (const PlanFinding& f : check.findings) {
    errors += f.stops ? 1 : 0;
    findings.push(Json(Json::Object{{"code", f.code},
                                    {"name", failure_name(f.code)},
                                    {"severity", severity(f)},
                                    {"text", f.text},
                                    {"rank", f.rank},
                                    {"times", f.times}}));
  }
  Json out = Json::object();
  out.set("sound", check.findings.empty());
  out.set("errors", errors);
  out.set("warnings", static_cast<std::int64_t>(check.findings.size()) - errors);
  out.set("findings", std::move(findings));
  out.set("launches", check.ops);
  out.set("programs", check.programs);
  return out;
}

}  // namespace

std::string finding_line(const PlanFinding& f) {
  std::string line = fmt::format("{}: {} ({}): {}", severity(f), f.code, failure_name(f.code), f.text);
  if (f.times > 1) line += fmt::format(" [{} times on rank {}]", f.times, f.rank);
  return line;
}

void print_warnings(const std::vector<PlanFinding>& warnings) {
  for (const PlanFinding& warning : warnings) fmt::print(stderr, "dbo: {}\n", finding_line(warning));
}

void print_profile_warnings(const Config& config) {
  for (const std::string& warning : profile_warnings(config)) fmt::print(stderr, "dbo: warning: {}\n", warning);
}

void print_sm_warnings(const Config& config) {
  for (const std::string& warning : sm_warnings(config.overlap)) fmt::print(stderr, "dbo: warning: {}\n", warning);
}

int run_check(const std::string& path, bool json) {
  const PlanCheck check = check_file(path);
  const auto errors =
      std::count_if(check.findings.begin(), check.findings.end(), [](const PlanFinding& f) { return f.stops; });
  if (json) {
    fmt::print("{}", pretty_json(to_json(check)));
  } else {
    for (const PlanFinding& finding : check.findings) fmt::print("{}\n", finding_line(finding));
    std::string scope = fmt::format("{} launches", check.ops);
    if (check.programs > 1) scope += fmt::format(" of {} different sets of programs", check.programs);
    if (check.findings.empty())
      fmt::print("sound: no deadlock, no race, no slot overrun ({})\n", scope);
    else
      fmt::print("{} error{}, {} warning{} ({})\n", errors, errors == 1 ? "" : "s",
                 static_cast<std::ptrdiff_t>(check.findings.size()) - errors,
                 static_cast<std::ptrdiff_t>(check.findings.size()) - errors == 1 ? "" : "s", scope);
  }
  return check.findings.empty() ? static_cast<int>(Exit::Ok) : static_cast<int>(Exit::Finding);
}

}  // namespace dbo
