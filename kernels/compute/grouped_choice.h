// Which of the grouped GEMM's kernels to run, and how, from the rows of each expert: what a launch's tiles would cost,
// one after the other on every SM. For hosts that know the rows, as those that route a plan's tokens do. Plain C++.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/compute/grouped_tiles.h"
#include "kernels/moe_buffers.h"

namespace dbo::kernels {

/// Kernel variants, by what the columns of their matrix products are.
enum class GroupedTile : std::uint8_t {
  /// Columns of C: tiles of 128 tokens x 256 columns, which blocks take in turns; of e4m3 x 192 or 128, drawn.
  Columns,
  /// Tokens: tiles of 256 columns of C (e4m3: 128) x up to 192 tokens, which blocks draw from a counter.
  Tokens,
};

/// How the variants that draw their tiles go about their work: all but bf16 with columns of C. Results do not depend on
/// it.
struct GroupedTuning {
  int most_tokens = 0;  ///< of a tile, a multiple of its step; 0: what it can have
  TokenOrder order = TokenOrder::WideFirst;
  int columns = 0;  ///< of a tile of e4m3 with columns of C: 128 or 192; 0: 192
};

struct GroupedChoice {
  GroupedTile tile = GroupedTile::Tokens;
  GroupedTuning tuning = {};
};

/// Elements from block to block of the scales of e4m3 rows: the rows, rounded up to what their copies ask of a stride.
constexpr std::int64_t grouped_scale_stride(std::int64_t max_rows) {
  return (max_rows + 3) / 4 * 4;
}

struct GroupedShape {
  std::vector<std::int32_t> rows;  ///< of each expert
  int n = 0, k = 0;
  int out_columns = 0;  ///< of C
  int sms = 0;
  ElementType type = ElementType::Bf16;
};

/// Cycles a launch is expected to take. The tiles are those of the kernel, in its order.
double grouped_cycles(const GroupedChoice& choice, const GroupedShape& shape);

/// The variant expected to be fastest.
GroupedChoice choose_grouped(const GroupedShape& shape);

/// Those of op MLP's two products.
struct MlpChoice {
  GroupedChoice up, down;
};
MlpChoice choose_mlp(const std::vector<std::int32_t>& rows, int hidden, int intermediate, int sms,
                     ElementType type = ElementType::Bf16);

}  // namespace dbo::kernels
