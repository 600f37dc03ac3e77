#include "traces/json_scanner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>

using namespace dbo;

namespace {

std::string scan_string(std::string_view text, bool strict = false) {
  JsonScanner scanner(text, strict);
  return std::string(scanner.string());
}

std::string error_of(std::string_view text, bool strict) {
  JsonScanner scanner(text, strict);
  try {
    scanner.skip_value();
    return "none";
  } catch (const ScanError& error) {
    return error.what();
  }
}

/// Hands the text out a few bytes at a time, as a slow pipe would.
JsonScanner::Source drip(const std::string& text, std::size_t piece) {
  auto at = std::make_shared<std::size_t>(0);
  return [&text, piece, at](char* to, std::size_t size) {
    const std::size_t n = std::min({piece, size, text.size() - *at});
    std::memcpy(to, text.data() + *at, n);
    *at += n;
    return n;
  };
}

}  // namespace

TEST_CASE("json_scanner: strings come with their escapes resolved, surrogate pairs included") {
  CHECK(scan_string(R"("plain")") == "plain");
  CHECK(scan_string(R"("a\"b\\c\/\n\u00e9\ud83d\ude00")") == "a\"b\\c/\n\xC3\xA9\xF0\x9F\x98\x80");
  CHECK(scan_string(R"("\ud83d alone")") == "\xEF\xBF\xBD alone");
}

TEST_CASE("json_scanner: what profilers write wrongly in names is read, and refused when strict") {
  CHECK(scan_string("\"kernel<\"f\">(x)\", ") == "kernel<\"f\">(x)");
  CHECK(scan_string("\"a\x01z\"") == "a\x01z");
  CHECK(scan_string("\"C:\\dir\"") == "C:\\dir");
  CHECK(error_of("\"a\x01z\"", true).find("control character") != std::string::npos);
  CHECK(error_of("\"C:\\dir\"", true).find("unknown escape") != std::string::npos);
  CHECK(error_of("[1,]", true).find("expected a value") != std::string::npos);
  CHECK(error_of("[1,]", false) == "none");
  CHECK(error_of("{\"a\":1,}", true) != "none");
  CHECK(error_of("{\"a\":1,}", false) == "none");
  CHECK(error_of("[NaN]", true) == "byte 4: \"NaN\" is no JSON value");
  CHECK(error_of("[NaN]", false) == "none");
  for (const char* text : {"01", "1.", ".5", "+1", "1e", "-"}) CHECK(error_of(text, true) != "none");
  for (const char* text : {"0", "-0.5", "1e+9", "12.25E-3"}) CHECK(error_of(text, true) == "none");
}

TEST_CASE("json_scanner: errors carry the byte offset and say whether the file was cut") {
  JsonScanner scanner("{\"a\": [1, 2");
  try {
    scanner.skip_value();
    FAIL("no error");
  } catch (const ScanError& error) {
    CHECK(error.offset() == 11);
    CHECK(error.truncated());
  }
  CHECK(error_of("{\"a\" 1}", false) == "byte 5: expected ':'");
  CHECK(error_of(std::string(2000, '['), false).find("512 levels") != std::string::npos);
}

TEST_CASE("json_scanner: a stream in pieces of any size reads like the text in memory") {
  std::string text = "[";
  for (int i = 0; i < 3000; ++i)
    text += "{\"name\" : \"k\\u0065rnel \\\"" + std::to_string(i) + "\\\"\" , \"ts\":" + std::to_string(i * 1000) +
            ".125,\"args\":{\"deep\":[[{}]]}},\n  ";
  text += "{\"name\":\"" + std::string(3 << 20, 'x') + "\"}]";
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{65537}, std::size_t{97}}) {
    JsonScanner scanner(drip(text, piece));
    int events = 0;
    std::size_t longest = 0;
    scanner.array([&] {
      scanner.object([&](std::string_view key) {
        if (key == "name") {
          const std::string_view name = scanner.string();
          longest = std::max(longest, name.size());
          if (events < 3000 && name != "kernel \"" + std::to_string(events) + "\"") FAIL("wrong name");
        } else {
          scanner.skip_value();
        }
      });
      ++events;
    });
    CHECK(events == 3001);
    CHECK(longest == 3 << 20);
    CHECK(scanner.offset() == text.size());
  }
}

TEST_CASE("json_scanner: after a broken object the next one of the array is found") {
  const std::string text = R"([{"a": 1 "b": 2, "args": {"c": 3}}, {"ok": 1}])";
  JsonScanner scanner(text);
  scanner.expect('[');
  CHECK_THROWS_AS(scanner.skip_value(), ScanError);
  REQUIRE(scanner.resync());
  CHECK(text.substr(scanner.offset(), 8) == "{\"ok\": 1");
  scanner.skip_value();
  CHECK_FALSE(scanner.resync());
}

TEST_CASE("json_scanner: a raw value is rebuilt as JSON") {
  JsonScanner scanner(R"({ "a" : [ 1 , "x\"y" , null ] , "b" : NaN, })");
  CHECK(scanner.raw_value() == R"({"a":[1,"x\"y",null],"b":null})");
}
