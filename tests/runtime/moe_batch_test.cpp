#include "runtime/moe_batch.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"

using namespace dbo;
using namespace dbo::runtime;
using Ints = std::vector<std::int32_t>;
using Tokens = std::vector<std::int64_t>;

namespace {

/// A load that is the rank's whole batch.
MoeBatch alone(const UbatchLoad& load) {
  return make_moe_batch(load, RequestPages({load}));
}

}  // namespace

TEST_CASE("moe batch: decode rows lie at the end of their contexts, pages one after the other from page 1") {
  // Three requests of one new token, the second of the two halves of a batch: tokens 3 to 5, padded to 5 rows.
  const UbatchLoad load{3, 6, 5, {0, 1, 2, 3}, {64, 65, 1000}};
  const MoeBatch batch = alone(load);
  CHECK(batch.tokens == 5);
  CHECK(batch.decode_requests == 3);
  CHECK(batch.query_tokens == 1);
  CHECK(batch.prefill_requests == 0);
  CHECK(batch.token_of_row == Tokens{3, 4, 5, -1, -1});
  CHECK(batch.positions == Ints{63, 64, 999, 0, 0});
  CHECK(batch.max_pages == 16);
  // Pages: 1 for 64 tokens, 2 for 65, 16 for 1000; page 0 stays for whoever has none.
  CHECK(RequestPages({load}).pages() == 1 + 1 + 2 + 16);
  CHECK(batch.block_table[0] == 1);
  CHECK(batch.block_table[1] == 0);
  CHECK(batch.block_table[16] == 2);
  CHECK(batch.block_table[17] == 3);
  CHECK(batch.block_table[47] == 19);
  // Position 63 on page 1, position 64 on the second page of its request, 999 = 15 * 64 + 39 on page 19.
  CHECK(batch.slot_mapping == Ints{64 + 63, 3 * 64, 19 * 64 + 39, -1, -1});
}

TEST_CASE("moe batch: requests that prefill come behind those that decode, tokens keep their number in the batch") {
  // facts: T2, the second slice: 5 tokens of a long request, then two that decode.
  const UbatchLoad load{7, 14, 7, {0, 5, 6, 7}, {512, 32, 48}};
  const MoeBatch batch = alone(load);
  // The first request sets the query of those that decode: all others differ from its 5.
  CHECK(batch.decode_requests == 1);
  CHECK(batch.query_tokens == 5);
  CHECK(batch.prefill_requests == 2);
  CHECK(batch.token_of_row == Tokens{7, 8, 9, 10, 11, 12, 13});
  const UbatchLoad decode_first{0, 7, 7, {0, 1, 2, 7}, {64, 96, 507}};
  const MoeBatch mixed = alone(decode_first);
  CHECK(mixed.decode_requests == 2);
  CHECK(mixed.prefill_requests == 1);
  CHECK(mixed.prefill_tokens == 5);
  CHECK(mixed.prefill_keys == 507);
  CHECK(mixed.prefill_query_blocks == 1);
  CHECK(mixed.query_start == Ints{0, 5});
  CHECK(mixed.kv_start == Ints{0, 507});
  CHECK(mixed.positions == Ints{63, 95, 502, 503, 504, 505, 506});
  // A prompt between requests that decode: its rows go last, its tokens keep their numbers.
  const MoeBatch between = alone({0, 6, 6, {0, 1, 5, 6}, {64, 4, 96}});
  CHECK(between.token_of_row == Tokens{0, 5, 1, 2, 3, 4});
  CHECK(between.seq_lens == Ints{64, 96, 4});
}

TEST_CASE("moe batch: a whole prompt prefills, however short; padded requests have no rows") {
  const MoeBatch prompt = alone({0, 3, 3, {0, 3}, {3}});
  CHECK(prompt.decode_requests == 0);
  CHECK(prompt.prefill_requests == 1);
  const MoeBatch padded = alone({0, 2, 4, {0, 1, 2, 2, 2}, {64, 64, 0, 0}});
  CHECK(padded.requests() == 2);
  CHECK(padded.tokens == 4);
  const MoeBatch empty = alone({0, 0, 8, {}, {}});
  CHECK(empty.requests() == 0);
  CHECK(empty.tokens == 8);
  CHECK(empty.slot_mapping == Ints(8, -1));
}

TEST_CASE("moe batch: arrays that contradict each other are refused") {
  CHECK_THROWS_WITH_AS(alone({0, 2, 2, {0, 1, 2}, {64}}), "a ubatch has 2 requests, but 1 context lengths", InputError);
  CHECK_THROWS_WITH_AS(alone({0, 5, 5, {0, 5}, {4}}), "request 0 of a ubatch has 5 new tokens in a context of 4",
                       InputError);
}

TEST_CASE("moe batch: the parts of a batch share the pages of its requests, also of one that is cut in two") {
  // A prompt of 200 tokens, cut behind token 100, and one of 30: pages 1 to 4, and 5.
  const UbatchLoad whole{0, 230, 230, {0, 200, 230}, {200, 30}};
  const UbatchLoad first{0, 100, 128, {0, 100}, {100}}, second{100, 230, 130, {0, 100, 130}, {200, 30}};
  const RequestPages pages({whole});
  CHECK(pages.pages() == 6);
  const MoeBatch early = make_moe_batch(first, pages), late = make_moe_batch(second, pages);
  CHECK(early.block_table == Ints{1, 2});
  CHECK(late.block_table == Ints{1, 2, 3, 4, 5, 0, 0, 0});
  // Token 100 is at position 100 of its request: row 36 of its second page.
  CHECK(late.positions[0] == 100);
  CHECK(late.slot_mapping[0] == 2 * 64 + 36);
  CHECK(late.slot_mapping[100] == 5 * 64);
  CHECK(early.slot_mapping[99] == 64 + 99);
  CHECK(early.slot_mapping[100] == -1);
  // Without the whole batch every part's requests are requests of their own.
  CHECK(RequestPages({first, second}).pages() == 1 + 2 + 4 + 1);
}

TEST_CASE("moe batch: a part that is not of the batch is refused") {
  const RequestPages pages({UbatchLoad{0, 100, 100, {0, 100}, {100}}});
  CHECK_THROWS_WITH_AS(make_moe_batch({100, 101, 1, {0, 1}, {1}}, pages),
                       "token 100 of a ubatch is not in the rank's whole batch", InputError);
  CHECK_THROWS_WITH_AS(make_moe_batch({50, 110, 60, {0, 60}, {110}}, pages),
                       "a ubatch's request reaches past its request in the rank's whole batch", InputError);
}
