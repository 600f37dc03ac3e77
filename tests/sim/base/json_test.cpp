#include "sim/base/json.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"

using namespace dbo;

namespace {
std::string error_of(std::string_view text, JsonParseOptions options = {}) {
  try {
    parse_json(text, "f.json", options);
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}
}  // namespace

TEST_CASE("json: members keep their order and integers stay integers") {
  const Json value =
      parse_json(R"({"b": 1, "a": [1.0, -2, 9223372036854775807, 18446744073709551615], "c": null})", "f");
  CHECK(compact_json(value) == R"({"b":1,"a":[1.0,-2,9223372036854775807,18446744073709551616.0],"c":null})");
  CHECK(value.find("b")->is_int());
  CHECK(value.find("a")->items()[0].is_double());
  CHECK(value.find("zz") == nullptr);
}

TEST_CASE("json: a duplicate key is an error that names its pointer, in small and large objects") {
  CHECK(error_of(R"({"x": {"y": 1, "y": 2}})") == "f.json: /x/y: duplicate key \"y\" (each key once)");
  CHECK(error_of(R"([{"a/b": 1, "a/b": 2}])") == "f.json: /0/a~1b: duplicate key \"a/b\" (each key once)");
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i) + "\": 0, ";
  CHECK(error_of(many + "\"k3\": 1}") == "f.json: /k3: duplicate key \"k3\" (each key once)");
  CHECK(error_of(many + "\"k39\": 1}") == "f.json: /k39: duplicate key \"k39\" (each key once)");
}

TEST_CASE("json: a syntax error names line and column") {
  CHECK(error_of("{\"a\": 1,\n \"b\" 2}").substr(0, 22) == "f.json:2:6: not JSON: ");
  CHECK(error_of("").substr(0, 22) == "f.json:1:1: not JSON: ");
  CHECK(error_of("{} {}").find("not JSON") != std::string::npos);
}

TEST_CASE("json: comments only where they are allowed, and depth has a limit") {
  CHECK(error_of("// c\n{}", {.comments = true}) == "no error");
  CHECK(error_of("// c\n{}") != "no error");
  CHECK(error_of(std::string(600, '[') + std::string(600, ']')).find("512 levels") != std::string::npos);
}

TEST_CASE("json: strings are escaped so that any reader takes them") {
  std::string out;
  append_json_string(out, "a\"b\\c\n\x01\x7f\xC3\xA9\xFF\xC0\x80");
  CHECK(out == "\"a\\\"b\\\\c\\n\\u0001\\u007f\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(parse_json(out, "f").as_string().size() == 8 + 2 + 3 * 3);
}

TEST_CASE("json: text reads back as the same value") {
  const char* texts[] = {R"({"a":[1,2.5,"x",null,true,{"b":[]}],"c":{}})", "[]", "1e-7", R"("\u00e9")"};
  for (const char* text : texts) {
    const Json value = parse_json(text, "f");
    CHECK(parse_json(compact_json(value), "f") == value);
    CHECK(parse_json(pretty_json(value), "f") == value);
  }
}
