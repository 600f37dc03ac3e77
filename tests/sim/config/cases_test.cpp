#include <doctest/doctest.h>

#include "sim/batch/decide.h"
#include "sim/batch/decision_json.h"
#include "tests/sim/config/config_text.h"

using namespace dbo;

namespace {
/// Where `got` lacks or differs from something that `want` says, or empty.
std::string difference(const Json& want, const Json& got, const std::string& at = "") {
  if (want.is_object() && got.is_object()) {
    for (const Json::Member& member : want.members()) {
      const Json* value = got.find(member.first);
      if (value == nullptr) return at + "/" + member.first + ": missing";
      const std::string found = difference(member.second, *value, at + "/" + member.first);
      if (!found.empty()) return found;
    }
    return {};
  }
  if (want.is_array() && got.is_array() && want.items().size() == got.items().size()) {
    for (std::size_t i = 0; i < want.items().size(); ++i) {
      const std::string found = difference(want.items()[i], got.items()[i], at + "/" + std::to_string(i));
      if (!found.empty()) return found;
    }
    return {};
  }
  return want == got ? "" : at + ": want " + value_text(want) + ", got " + value_text(got);
}
}  // namespace

TEST_CASE("cases: bad configs name the place") {
  const std::string folder = std::string(DBO_SOURCE_ROOT) + "/tests/cases/";
  const auto bad = load_json(folder + "bad.json");
  CHECK(bad->root.items().size() >= 5);
  for (const Json& test_case : bad->root.items()) {
    CAPTURE(test_case.find("name")->as_string());
    const std::string place = test_case.find("expect")->find("stderr_has")->as_string();
    CHECK(config_error(compact_json(*test_case.find("config"))).find(place) != std::string::npos);
  }
}

TEST_CASE("cases: decisions are as worked out by hand") {
  const auto cases = load_json(std::string(DBO_SOURCE_ROOT) + "/tests/cases/decide.json");
  for (const Json& test_case : cases->root.items()) {
    CAPTURE(test_case.find("name")->as_string());
    const Config config = read_config(compact_json(*test_case.find("config")));
    const Decision decision = decide(config.workload.steps.front(), decide_settings(config));
    CHECK(difference(*test_case.find("expect"), decision_to_json(decision)) == "");
  }
}
