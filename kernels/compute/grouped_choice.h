// Which of the bf16 grouped GEMM's kernels to run, from what their tiles cost. Plain C++, no CUDA.
#pragma once

#include <cstdint>

namespace dbo::kernels {

/// Kernel variants of bf16 operands, by what the columns of their matrix products are. There is one for e4m3, which is
/// like Tokens with tiles of 128 columns of C.
enum class GroupedTile : std::uint8_t {
  Columns,  ///< columns of C: tiles of 128 tokens x 256 columns, blocks take them in turns
  Tokens,   ///< tokens: tiles of 256 columns of C x up to 176 tokens, blocks draw them from a counter
};

/// Elements from block to block of the scales of e4m3 rows: the rows, rounded up to what their copies ask of a stride.
constexpr std::int64_t grouped_scale_stride(std::int64_t max_rows) {
  return (max_rows + 3) / 4 * 4;
}

struct GroupedShape {
  std::int64_t rows_per_expert = 0;
  int experts = 0;
  int n = 0, k = 0;
  int sms = 0;
};

/// Cycles a launch takes when every expert gets that many rows and memory keeps up.
double grouped_cycles(GroupedTile tile, const GroupedShape& shape);

/// The variant expected to be faster.
GroupedTile choose_grouped_tile(const GroupedShape& shape);

}  // namespace dbo::kernels
