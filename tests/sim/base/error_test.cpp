#include "sim/base/error.h"

#include <doctest/doctest.h>

using namespace dbo;

TEST_CASE("error: an InputError puts file, pointer and message in one line") {
  CHECK(std::string(InputError("a.json", "/x/1", "too big").what()) == "a.json: /x/1: too big");
  CHECK(std::string(InputError("a.json", "", "cannot open").what()) == "a.json: cannot open");
  CHECK(std::string(InputError("no such command").what()) == "no such command");
}

TEST_CASE("error: the nearest name is a likely typing error or nothing") {
  CHECK(nearest_name("com0", {"known", "comm0", "compute0"}) == "comm0");
  CHECK(nearest_name("deepseek-v33", {"kimi-k2", "deepseek-v3"}) == "deepseek-v3");
  CHECK(nearest_name("H200", {"h20", "h200-nvl72", "h200-sxm"}) == "h200-sxm");
  CHECK(nearest_name("tokens", {"phase", "decode_tokens", "prefill_tokens"}) == "decode_tokens");
  CHECK(nearest_name("experts", {"redundant_experts", "expert"}) == "expert");
  CHECK(nearest_name("kens", {"decode_tokens"}) == "");
  CHECK(nearest_name("zebra", {"kimi-k2", "deepseek-v3"}) == "");
  CHECK(known_names("overlapp", {"model", "overlap"}) == "(known: model, overlap; did you mean \"overlap\"?)");
}

TEST_CASE("error: DBO_CHECK throws InternalError with condition and detail") {
  CHECK_NOTHROW([] { DBO_CHECK(1 + 1 == 2, "arithmetic"); }());
  try {
    DBO_CHECK(1 + 1 == 3, "arithmetic");
    CHECK(false);
  } catch (const InternalError& error) {
    CHECK(std::string(error.what()).find("arithmetic [1 + 1 == 3]") != std::string::npos);
  }
}
