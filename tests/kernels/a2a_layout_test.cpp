#include "kernels/a2a/layout.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/a2a/call.h"
#include "sim/base/error.h"
#include "tests/kernels/a2a_reference.h"

namespace dbo::kernels {
namespace {

A2aShape shape_of(Transport transport, ElementType payload) {
  return {.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 128, .top_k = 8, .hidden = 7168, .max_tokens = 4096},
          .payload = payload,
          .transport = transport,
          .slots = 2};
}

constexpr Transport kOurs[] = {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine, Transport::Nccl};

TEST_CASE("a2a layout: areas are aligned, apart by a guard, and inside their slot") {
  for (Transport transport : kOurs) {
    for (ElementType payload : {ElementType::Bf16, ElementType::Fp8E4m3}) {
      A2aShape shape = shape_of(transport, payload);
      shape.dims.max_tokens = 100;
      shape.dims.hidden = 2176;
      const A2aLayout l = make_a2a_layout(shape);
      std::size_t free_from = 0;
      for (const NamedArea& named : slot_areas(l)) {
        CAPTURE(named.name);
        CHECK(named.area.offset % kAreaAlign == 0);
        CHECK(named.area.offset >= free_from);
        free_from = named.area.offset + named.area.bytes + kAreaGuardBytes;
      }
      CHECK(free_from <= l.slot_stride);
      CHECK(l.control_bytes % kAreaAlign == 0);
      CHECK(l.control_stride * 2 <= l.clock_box);
      CHECK(slot_offset(l, 1) + l.slot_stride <= l.total_bytes);
    }
  }
}

TEST_CASE("a2a layout: sizes of the views, by hand") {
  // 2 ranks x 4096 tokens x 7168 bf16 = 117,440,512 bytes a slot, and as much for the outputs.
  const A2aLayout ht = make_a2a_layout(shape_of(Transport::LsaHt, ElementType::Bf16));
  CHECK(ht.rows.bytes == 117'440'512u);
  CHECK(ht.outputs.bytes == 117'440'512u);
  CHECK(ht.scales.bytes == 0u);
  CHECK(ht.combine_rows.bytes == 0u);
  CHECK(ht.count.bytes == 8u);
  CHECK(dispatch_row_bytes(ht) == 14336u);
  // fp8: one byte an element and a float per 128: 7168 + 56 * 4.
  const A2aLayout fp8 = make_a2a_layout(shape_of(Transport::LsaHt, ElementType::Fp8E4m3));
  CHECK(fp8.rows.bytes == 58'720'256u);
  CHECK(fp8.scales.bytes == 8192u * 56 * 4);
  CHECK(dispatch_row_bytes(fp8) == 7392u);
  // lsa-ll with 128 tokens: 256 (expert, source) cells of 128 rows; 128 x 8 combine cells.
  A2aShape low = shape_of(Transport::LsaLl, ElementType::Fp8E4m3);
  low.dims.max_tokens = 128;
  const A2aLayout ll = make_a2a_layout(low);
  CHECK(ll.rows.bytes == 256u * 128 * 7168);
  CHECK(ll.combine_rows.bytes == 128u * 8 * 14336);
  CHECK(ll.count.bytes == 1024u);
  CHECK(ll.expert.bytes == 0u);
  CHECK(ll.source_k.bytes == 256u * 128 * 4);
}

TEST_CASE("a2a layout: the same on every rank") {
  for (Transport transport : kOurs) {
    A2aShape shape = shape_of(transport, ElementType::Bf16);
    const A2aLayout first = make_a2a_layout(shape);
    shape.dims.rank = 1;
    const A2aLayout second = make_a2a_layout(shape);
    CHECK(first.total_bytes == second.total_bytes);
    CHECK(first.outputs.offset == second.outputs.offset);
  }
}

TEST_CASE("a2a layout: views point into the slot") {
  const A2aLayout l = make_a2a_layout(shape_of(Transport::CopyEngine, ElementType::Fp8E4m3));
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 30);
  const RankMajorView view = rank_major_view(l, base, 1);
  CHECK(view.rows == base + l.control_bytes + l.slot_stride + l.rows.offset);
  CHECK(reinterpret_cast<std::byte*>(view.scales) == base + slot_offset(l, 1) + l.scales.offset);
  CHECK(expert_outputs(l, base, 0) == base + l.control_bytes + l.outputs.offset);
  CHECK_THROWS_AS(expert_major_view(l, base, 0), InternalError);
  const A2aLayout bf16 = make_a2a_layout(shape_of(Transport::LsaHt, ElementType::Bf16));
  CHECK(rank_major_view(bf16, base, 0).scales == nullptr);
}

TEST_CASE("a2a layout: dims out of range are refused with the value and what is allowed") {
  const auto refused = [](auto change, const char* message) {
    A2aShape shape = shape_of(Transport::LsaHt, ElementType::Bf16);
    change(shape);
    CHECK_THROWS_WITH_AS(make_a2a_layout(shape), message, InputError);
  };
  refused([](A2aShape& s) { s.dims.top_k = 12; }, "all-to-all: top_k is 12 (allowed: 1 to 11)");
  refused([](A2aShape& s) { s.dims.hidden = 7000; }, "all-to-all: hidden is 7000 (allowed: multiples of 128)");
  refused([](A2aShape& s) { s.dims.rank = 2; }, "all-to-all: rank is 2 (allowed: 0 to 1)");
  refused([](A2aShape& s) { s.dims.experts_per_rank = 5000; }, "all-to-all: experts is 10000 (allowed: 1 to 8192)");
  refused([](A2aShape& s) { s.transport = Transport::Ll; },
          "all-to-all: transport \"ll\" is simulated only (allowed: lsa-ht, lsa-ll, copy-engine, nccl)");
}

TEST_CASE("a2a call: experts map to ranks as a division would, for every expert and rank size") {
  for (int per_rank = 1; per_rank <= kA2aMaxExperts; per_rank += per_rank < 40 ? 1 : 37) {
    const ExpertRanks ranks(per_rank);
    int wrong = 0;
    for (int expert = 0; expert < (1 << 16); ++expert) wrong += ranks.rank_of(expert) != expert / per_rank ? 1 : 0;
    CHECK(wrong == 0);
  }
}

TEST_CASE("a2a call: route entries keep rank and slot; no entry is kNoRoute") {
  for (int rank : {0, 1, 63, kA2aMaxRanks - 1}) {
    for (int slot : {0, 1, 4095, kA2aMaxTokens - 1}) {
      CHECK(route_rank(pack_route(rank, slot)) == rank);
      CHECK(route_slot(pack_route(rank, slot)) == slot);
      CHECK(pack_route(rank, slot) != kNoRoute);
    }
  }
}

}  // namespace
}  // namespace dbo::kernels

namespace dbo::a2a_test {
namespace {

TEST_CASE("a2a reference: e4m3 by hand, and every code survives a round trip") {
  CHECK(to_e4m3(0.0f) == 0x00);
  CHECK(to_e4m3(-0.0f) == 0x80);
  CHECK(to_e4m3(1.0f) == 0x38);        // exponent 7 - 7, fraction 0
  CHECK(to_e4m3(-1.125f) == 0xb9);     // one step of 1/8 more
  CHECK(to_e4m3(448.0f) == 0x7e);      // largest
  CHECK(to_e4m3(1000.0f) == 0x7e);     // saturates
  CHECK(to_e4m3(0.001953125f) == 1);   // 2^-9, the smallest subnormal
  CHECK(to_e4m3(0.0009765625f) == 0);  // half of it: a tie, to even
  CHECK(to_e4m3(1.0625f) == 0x38);     // tie between 1 and 1.125: to even
  CHECK(to_e4m3(1.1875f) == 0x3a);     // tie between 1.125 and 1.25: to even
  CHECK(to_e4m3(465.0f) == 0x7e);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    CHECK(to_e4m3(from_e4m3(static_cast<std::uint8_t>(code))) == code);
  }
}

TEST_CASE("a2a reference: tokens go once to a rank, in order") {
  // Two ranks of two experts; the tokens' choices: {0, 1}, {2, -1}, {3, 0}, {-1, -1}.
  Case c;
  c.shape.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 2, .top_k = 2, .hidden = 128, .max_tokens = 4};
  TokenData data;
  data.tokens = 4;
  data.expert = {0, 1, 2, -1, 3, 0, -1, -1};
  CHECK(tokens_to(c.shape.dims, data, 0) == std::vector<int>{0, 2});
  CHECK(tokens_to(c.shape.dims, data, 1) == std::vector<int>{1, 2});
  CHECK(send_rows(c, {data}) == std::vector<std::vector<std::int32_t>>{{2, 2}});
}

}  // namespace
}  // namespace dbo::a2a_test
