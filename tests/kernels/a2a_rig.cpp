#include "tests/kernels/a2a_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace dbo::a2a_test {

using kernels::A2aLayout;

namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

/// Poisons a buffer but for its control part.
void poison(const A2aLayout& layout, std::vector<std::byte>& buffer) {
  std::fill(buffer.begin() + static_cast<std::ptrdiff_t>(layout.control_bytes), buffer.end(), kPoison);
}

std::vector<std::vector<std::int32_t>> received_rows(const Case& c,
                                                     const std::vector<std::vector<std::int32_t>>& send) {
  std::vector<std::vector<std::int32_t>> receive;
  for (int player = 0; player < players(c); ++player) {
    std::vector<std::int32_t>& mine = receive.emplace_back();
    for (int source = 0; source < c.shape.dims.ranks; ++source) {
      mine.push_back(send[at(sender_of(c, player, source))][at(addressed_rank(c, player, source))]);
    }
  }
  return receive;
}

/// Bound on the distance of a combined element from the exact sum, as a share of it. Two roundings to bf16 (8 bits, so
/// each is within 2^-8) are on every path: of a rank's (lsa-ll: an expert's) output and of the total. All terms of a
/// sum have one sign, so errors stay shares: (1 + 2^-8)^2 - 1 = 2^-7 + 2^-16, and less than 2^-16 for up to 250 fp32
/// roundings of 2^-24.
constexpr double kCombineBound = 1.0 / 128 + 1.0 / 32768;

std::string check_bound(const Case& c, const A2aLayout& layout, int player, const std::vector<TokenData>& data,
                        const std::vector<std::uint16_t>& got) {
  const std::vector<double> exact = exact_combine(c, layout, player, data);
  const bool is_exact = c.values == Values::Integers && layout.payload == kernels::ElementType::Bf16;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double bound = is_exact ? 0 : std::fabs(exact[i]) * kCombineBound;
    if (!(std::fabs(double{from_bf16(got[i])} - exact[i]) <= bound)) {
      return "combined element " + std::to_string(i) + " is " + std::to_string(from_bf16(got[i])) +
             ", the exact sum is " + std::to_string(exact[i]) + ", bound " + std::to_string(bound);
    }
  }
  return {};
}

std::string check_combine(const Case& c, const A2aLayout& layout, int player, const std::vector<TokenData>& data,
                          const std::vector<std::uint16_t>& got) {
  const std::vector<std::uint16_t> expected = expected_combine(c, layout, player, data);
  if (got.size() < expected.size()) return "combine returned too few elements";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) continue;
    return "combined token " + std::to_string(i / at(layout.dims.hidden)) + ", element " +
           std::to_string(i % at(layout.dims.hidden)) + ": " + std::to_string(from_bf16(got[i])) + ", expected " +
           std::to_string(from_bf16(expected[i]));
  }
  for (std::size_t i = expected.size(); i < got.size(); ++i) {
    if (got[i] != 0xa5a5) return "combine wrote beyond its tokens, element " + std::to_string(i);
  }
  return check_bound(c, layout, player, data, got);
}

/// Combine may write its receive area and nothing else of the data: everything but that must be as before.
std::string check_untouched(const A2aLayout& layout, int slot, const std::vector<std::byte>& before,
                            const std::vector<std::byte>& after) {
  const std::size_t first = kernels::slot_offset(layout, slot) + layout.combine_rows.offset;
  const std::size_t last = first + layout.combine_rows.bytes;
  for (const auto& [begin, end] : {std::pair{layout.control_bytes, first}, std::pair{last, before.size()}}) {
    if (std::memcmp(before.data() + begin, after.data() + begin, end - begin) == 0) continue;
    std::size_t i = begin;
    while (before[i] == after[i]) ++i;
    return "combine changed byte " + std::to_string(i) + " of the buffer";
  }
  return {};
}

std::string run_round(Rig& rig, const Case& c, const std::vector<A2aLayout>& layouts, int round) {
  const int slot = round % c.shape.slots;
  const bool sized = c.shape.transport == Transport::CopyEngine || c.shape.transport == Transport::Nccl;
  std::vector<TokenData> data;
  for (int player = 0; player < players(c); ++player)
    data.push_back(make_tokens(c, player, static_cast<std::uint64_t>(round)));
  const auto send = send_rows(c, data);
  std::string fault = sized && c.exact_rows ? rig.set_rows(send, received_rows(c, send)) : rig.set_rows({}, {});
  for (int player = 0; player < players(c) && fault.empty(); ++player) {
    std::vector<std::byte> buffer = rig.read(player);
    poison(layouts[at(player)], buffer);
    rig.write(player, buffer);
    fault = rig.set_tokens(player, data[at(player)]);
  }
  if (fault.empty()) fault = rig.dispatch(slot);
  std::vector<std::vector<std::byte>> buffers;
  for (int player = 0; player < players(c) && fault.empty(); ++player) {
    buffers.push_back(rig.read(player));
    const bool untouched_tail = !sized || c.exact_rows;
    fault = check_dispatch(c, layouts[at(player)], buffers.back(), player, slot, data, untouched_tail);
    if (!fault.empty()) return "dispatch, player " + std::to_string(player) + ": " + fault;
    write_outputs(c, layouts[at(player)], buffers.back(), player, slot, data);
    rig.write(player, buffers.back());
  }
  if (fault.empty()) fault = rig.combine(slot);
  for (int player = 0; player < players(c) && fault.empty(); ++player) {
    fault = check_combine(c, layouts[at(player)], player, data, rig.result(player));
    if (fault.empty()) fault = check_untouched(layouts[at(player)], slot, buffers[at(player)], rig.read(player));
    if (!fault.empty()) fault = "combine, player " + std::to_string(player) + ": " + fault;
  }
  return fault;
}

}  // namespace

std::string run_case(Rig& rig, const Case& c, int rounds) {
  std::vector<A2aLayout> layouts;
  for (int player = 0; player < players(c); ++player) {
    kernels::A2aShape shape = c.shape;
    shape.dims = dims_of(c, player);
    layouts.push_back(kernels::make_a2a_layout(shape));
  }
  std::string fault = rig.prepare(c, layouts);
  for (int round = 0; round < rounds && fault.empty(); ++round) {
    fault = run_round(rig, c, layouts, round);
    if (!fault.empty()) fault = "round " + std::to_string(round) + ": " + fault;
  }
  return fault;
}

}  // namespace dbo::a2a_test
