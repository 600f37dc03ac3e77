#include "sim/base/units.h"

#include <doctest/doctest.h>

using namespace dbo;

TEST_CASE("units: microseconds round to the nearest nanosecond") {
  CHECK(ns_from_us(40) == Ns{40000});
  CHECK(ns_from_us(0.0004) == Ns{0});
  CHECK(ns_from_us(0.0005) == Ns{1});
  CHECK(ns_from_us(12.3456) == Ns{12346});
}

TEST_CASE("units: nanoseconds print as microseconds with three decimals") {
  CHECK(us_text(0) == "0.000");
  CHECK(us_text(7) == "0.007");
  CHECK(us_text(1234567) == "1234.567");
  CHECK(us_text(-1500) == "-1.500");
  CHECK(us_text(INT64_MAX) == "9223372036854775.807");
  CHECK(us_text(INT64_MIN) == "-9223372036854775.808");
}

TEST_CASE("units: ceil_div rounds up and only then") {
  CHECK(ceil_div(0, 3) == 0);
  CHECK(ceil_div(6, 3) == 2);
  CHECK(ceil_div(7, 3) == 3);
}
