#include "sim/base/json_reader.h"

#include <doctest/doctest.h>

#include <functional>

#include "sim/base/error.h"

using namespace dbo;

namespace {
std::string error_of(std::string_view text, const std::function<void(ObjectReader&)>& read) {
  try {
    ObjectReader reader{JsonRef(json_document(text, "f.json"))};
    read(reader);
    reader.done();
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}
}  // namespace

TEST_CASE("json_reader: an unknown key names the known ones and the nearest") {
  CHECK(error_of(R"({"overlapp": {}})", [](ObjectReader& r) {
          r.find("model");
          r.find("overlap");
        }) == "f.json: /overlapp: unknown key \"overlapp\" (known: model, overlap; did you mean \"overlap\"?)");
  // Asked for twice, named once.
  CHECK(error_of(R"({"x": 1})", [](ObjectReader& r) {
          r.find("experts");
          r.find("layers");
          r.find("experts");
        }) == "f.json: /x: unknown key \"x\" (known: experts, layers)");
}

TEST_CASE("json_reader: counts reject signs, fractions, strings and huge values with pointer and value") {
  const auto count = [](ObjectReader& r) { r.require("n").count(1); };
  CHECK(error_of(R"({"n": 3})", count) == "no error");
  CHECK(error_of(R"({"n": -4})", count) == "f.json: /n: must be a whole number of at least 1, is -4");
  CHECK(error_of(R"({"n": 2.5})", count) == "f.json: /n: must be a whole number of at least 1, is 2.5");
  CHECK(error_of(R"({"n": 2.0})", count) ==
        "f.json: /n: must be a whole number of at least 1, written without point or exponent, is 2.0");
  CHECK(error_of(R"({"n": 1e9})", count) ==
        "f.json: /n: must be a whole number of at least 1, written without point or exponent, is 1e+09");
  CHECK(error_of(R"({"n": "3"})", count) == "f.json: /n: must be a whole number of at least 1, is \"3\"");
  CHECK(error_of(R"({"n": 1e300})", count) == "f.json: /n: must be a whole number of at least 1, is 1e+300");
  CHECK(error_of(R"({"n": 9007199254740993})", count) ==
        "f.json: /n: must be a whole number of at least 1, is 9007199254740993");
  CHECK(error_of(R"({})", count) == "f.json: /: missing key \"n\"");
}

TEST_CASE("json_reader: numbers have bounds and choices have names") {
  CHECK(error_of(R"({"t": 0.7})", [](ObjectReader& r) { r.require("t").number(0, 0.5); }) ==
        "f.json: /t: must be a number from 0 to 0.5, is 0.7");
  CHECK(error_of(R"({"m": "v2"})", [](ObjectReader& r) {
          r.require("m").one_of({"v1", "mrv2"}, "coordination");
        }) == "f.json: /m: unknown coordination \"v2\" (known: v1, mrv2; did you mean \"v1\"?)");
  CHECK(error_of(R"({"a": [1, [2, "x"]]})", [](ObjectReader& r) { r.require("a").items()[1].integers(0, 9); }) ==
        "f.json: /a/1/1: must be a whole number from 0 to 9, is \"x\"");
}

TEST_CASE("json_reader: a long value is cut in the message, not inside a character") {
  const std::string text = value_text(Json(std::string(29, 'a') + std::string(40, '\xC3')), 31);
  CHECK(text.size() <= 34);
  CHECK(text.substr(text.size() - 3) == "...");
}

TEST_CASE("json_reader: a document can collect the keys that readers ask for") {
  const auto document =
      std::make_shared<JsonDocument>(JsonDocument{"f.json", parse_json(R"({"a": [{}, {}]})", "f.json"), {}});
  document->asked = std::make_shared<std::set<std::string>>();
  ObjectReader root{JsonRef(document)};
  for (const JsonRef& item : root.require("a").items()) ObjectReader(item).find("b");
  CHECK(*document->asked == std::set<std::string>{"/a", "/a/0/b", "/a/1/b"});
}
