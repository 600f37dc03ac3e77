// What dispatch and combine must produce, worked out on the CPU from the tokens alone, and the comparison with what a
// rank's buffer holds afterwards. Used by the tests that emulate the kernels and by those that run them on GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/a2a/call.h"
#include "kernels/a2a/layout.h"
#include "tests/kernels/e4m3.h"

namespace dbo::a2a_test {

std::uint16_t to_bf16(float x);  ///< round to nearest even
float from_bf16(std::uint16_t x);
using fp8::from_e4m3;
using fp8::to_e4m3;

/// How the tokens of a case choose their experts.
enum class Routing {
  Random,     ///< top_k distinct experts, any
  OneExpert,  ///< every token's only expert is the last one; the other choices are unused
  OneRank,    ///< all choices on rank 1 (or 0 if there is one rank only)
  Holes,      ///< random, a third of the choices unused, some tokens without any expert
  Dense       ///< expert (token + k) mod experts
};

enum class Values {
  Integers,  ///< small enough that bf16 payloads, outputs and sums are all exact
  Random     ///< uniform over +-4, bf16
};

struct TokenData {
  int tokens = 0;
  std::vector<std::uint16_t> rows;   ///< [tokens][hidden] bf16
  std::vector<std::int32_t> expert;  ///< [tokens][top_k]
  std::vector<float> weight;         ///< [tokens][top_k]
};

struct Case {
  std::string name;
  kernels::A2aShape shape;  ///< dims.rank is set per player
  std::vector<int> tokens;  ///< per player
  Routing routing = Routing::Random;
  Values values = Values::Integers;
  int blocks = 2;
  bool mirrored = false;   ///< then players (1 or 2) play all ranks
  bool exact_rows = true;  ///< copy-engine, nccl: messages sized by the true counts, not padded
  std::uint64_t seed = 1;
  kernels::ScatterTuning tuning = {};
};

/// Buffers that take part: the ranks, or one or two of a mirrored exchange.
inline int players(const Case& c) {
  return static_cast<int>(c.tokens.size());
}
kernels::MoeDims dims_of(const Case& c, int player);
/// Who sends what lies in `source`'s part of the player's views, and which rank it addressed.
int sender_of(const Case& c, int player, int source);
int addressed_rank(const Case& c, int player, int source);

TokenData make_tokens(const Case& c, int player, std::uint64_t salt);

/// Tokens of `data` that have an expert on `rank`, ascending.
std::vector<int> tokens_to(const kernels::MoeDims& dims, const TokenData& data, int rank);
/// Rows each player sends to each rank: [player][rank].
std::vector<std::vector<std::int32_t>> send_rows(const Case& c, const std::vector<TokenData>& data);

/// A dispatched row: payload as the wire carries it, and the scales (fp8).
struct WireRow {
  std::vector<std::byte> payload;
  std::vector<float> scales;
};
WireRow wire_row(const kernels::A2aLayout& layout, const TokenData& data, int token);
/// The row as the experts see it.
std::vector<float> decoded_row(const kernels::A2aLayout& layout, const WireRow& row);

inline constexpr std::byte kPoison{0xa5};

/// Compares the views in a player's buffer with the tokens: every filled row, counts, and that nothing else in the
/// views, the guards or the other slot was touched since it was poisoned. Empty if all is right, else the first fault.
/// `untouched_tail`: rows beyond the counts must still be poison.
std::string check_dispatch(const Case& c, const kernels::A2aLayout& layout, const std::vector<std::byte>& buffer,
                           int player, int slot, const std::vector<TokenData>& data, bool untouched_tail);

/// Puts stand-in expert outputs for all filled rows into the buffer's outputs area: expert e of player p multiplies by
/// expert_gain(p, e); rank-major rows are weighted and added over k as moe_buffers.h says.
void write_outputs(const Case& c, const kernels::A2aLayout& layout, std::vector<std::byte>& buffer, int player,
                   int slot, const std::vector<TokenData>& data);
float expert_gain(int player, int local_expert);

/// What combine must return to the player, bit for bit: [tokens][hidden] bf16.
std::vector<std::uint16_t> expected_combine(const Case& c, const kernels::A2aLayout& layout, int player,
                                            const std::vector<TokenData>& data);
/// The same sum in double precision without any rounding. Weights and gains are positive, so all its terms have the
/// sign of the element, and it is its own condition.
std::vector<double> exact_combine(const Case& c, const kernels::A2aLayout& layout, int player,
                                  const std::vector<TokenData>& data);

}  // namespace dbo::a2a_test
