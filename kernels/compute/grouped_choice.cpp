#include "kernels/compute/grouped_choice.h"

#include <algorithm>

#include "kernels/compute/grouped_tiles.h"

namespace dbo::kernels {

namespace {

// Measured on an H200 (`dbo-gpu bench gemm`, by tile). A step is 64 along K. Narrow tiles of tokens are bound by what
// the L2 delivers, some 50 bytes a cycle and SM, wide ones by the tensor cores, 8 cycles a token.
constexpr double kStepCycles[] = {746, 746, 746, 746, 765, 800, 930, 1045, 1180, 1330, 1470};
constexpr int kStepWidths = 16;  // tokens between two of them
static_assert(sizeof kStepCycles / sizeof kStepCycles[0] == kTokenTileMost / kStepWidths);
constexpr double kTokensLaunch = 9000;
constexpr double kTokensToken = 20;  // of a tile's end, which is mostly writing C
// Whole launches take that much longer than their tiles alone, over all shapes.
constexpr double kTokensDrift = 1.02;
constexpr double kHalfTile = 0.62;  // of a whole one
constexpr double kColumnsStep = 1064, kColumnsLaunch = 10000, kColumnsTile = 1500;
constexpr int kStepK = 64;
constexpr int kFewRows = 96;

std::int64_t up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Cycles of that many tiles, of which a small last round is cut in halves.
double rounds_of(std::int64_t tiles, int sms, double tile) {
  const auto last = static_cast<int>(tiles % sms);
  return static_cast<double>(tiles / sms) * tile +
         (last == 0 ? 0.0 : tile * (last_round_is_small(last, sms) ? kHalfTile : 1.0));
}

double tokens_cycles(const GroupedShape& s) {
  const TokenParts cut(static_cast<int>(s.rows_per_expert), {kTokenTileMost, kTokenTileStep});
  const std::int64_t tiles = up(s.n, kTokenTileRows) * cut.parts * s.experts;
  // Parts differ by one step at most: their mean width serves.
  const double width = static_cast<double>(cut.steps) / cut.parts * kTokenTileStep;
  const double place = std::max(width / kStepWidths - 1, 0.0);
  const int at = std::min(static_cast<int>(place), kTokenTileMost / kStepWidths - 2);
  const double step = kStepCycles[at] + (place - at) * (kStepCycles[at + 1] - kStepCycles[at]);
  const double tile = static_cast<double>(up(s.k, kStepK)) * step + width * kTokensToken;
  return (kTokensLaunch + rounds_of(tiles, s.sms, tile)) * kTokensDrift;
}

double columns_cycles(const GroupedShape& s) {
  const std::int64_t tiles = up(s.rows_per_expert, kColumnTileRows) * up(s.n, kColumnTileColumns) * s.experts;
  const double tile = static_cast<double>(up(s.k, kStepK)) * kColumnsStep + kColumnsTile;
  return kColumnsLaunch + rounds_of(tiles, s.sms, tile);
}

}  // namespace

double grouped_cycles(GroupedTile tile, const GroupedShape& shape) {
  if (shape.rows_per_expert < 1) return 0;
  return tile == GroupedTile::Tokens ? tokens_cycles(shape) : columns_cycles(shape);
}

GroupedTile choose_grouped_tile(const GroupedShape& shape) {
  // Up to a tile of tokens the weights' way from HBM is longer than any product. Both kernels are as fast, but for
  // unequal experts, whose small ones drawing puts beside the large.
  if (shape.rows_per_expert <= kColumnTileRows) {
    return shape.rows_per_expert <= kFewRows ? GroupedTile::Tokens : GroupedTile::Columns;
  }
  return grouped_cycles(GroupedTile::Tokens, shape) < grouped_cycles(GroupedTile::Columns, shape)
             ? GroupedTile::Tokens
             : GroupedTile::Columns;
}

}  // namespace dbo::kernels
