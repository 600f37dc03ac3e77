#include "sim/base/hash.h"

#include <doctest/doctest.h>

using namespace dbo;

TEST_CASE("hash: content_hash is FNV-1a") {
  // Published test vectors of the 64-bit FNV-1a.
  CHECK(content_hash("") == 0xcbf29ce484222325ULL);
  CHECK(content_hash("a") == 0xaf63dc4c8601ec8cULL);
  CHECK(content_hash("foobar") == 0x85944171f73967e8ULL);
  CHECK(hash_text(0x85944171f73967e8ULL) == "85944171f73967e8");
}

TEST_CASE("hash: mix is the SplitMix64 sequence of its seed") {
  // First outputs of SplitMix64 seeded with 1234567, as published with the generator.
  CHECK(mix(1234567, 0) == 6457827717110365317ULL);
  CHECK(mix(1234567, 1) == 3203168211198807973ULL);
}

TEST_CASE("hash: mix_below stays below its bound and reaches every value of a small one") {
  int seen[7] = {};
  for (std::uint64_t i = 0; i < 700; ++i) ++seen[mix_below(3, i, 7)];
  for (const int count : seen) CHECK(count > 50);
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(mix_below(9, i, 1) == 0);
  // bound 2^63: the result is the top 63 bits of the mixed value.
  CHECK(mix_below(1234567, 0, 1ULL << 63) == 6457827717110365317ULL >> 1);
}
