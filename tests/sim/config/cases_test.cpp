#include <doctest/doctest.h>

#include "tests/sim/config/config_text.h"

using namespace dbo;

TEST_CASE("cases: bad configs name the place, good ones are read") {
  const std::string folder = std::string(DBO_SOURCE_ROOT) + "/tests/cases/";
  const auto bad = load_json(folder + "bad.json");
  CHECK(bad->root.items().size() >= 5);
  for (const Json& test_case : bad->root.items()) {
    CAPTURE(test_case.find("name")->as_string());
    const std::string place = test_case.find("expect")->find("stderr_has")->as_string();
    CHECK(config_error(compact_json(*test_case.find("config"))).find(place) != std::string::npos);
  }
  const auto good = load_json(folder + "decide.json");
  for (const Json& test_case : good->root.items()) {
    CAPTURE(test_case.find("name")->as_string());
    CHECK(config_error(compact_json(*test_case.find("config"))) == "no error");
  }
}
