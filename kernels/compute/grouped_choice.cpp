#include "kernels/compute/grouped_choice.h"

#include <algorithm>

#include "kernels/compute/grouped_tiles.h"

namespace dbo::kernels {

namespace {

// Measured on an H200 (`dbo-gpu bench gemm`, by tile). A step is 64 along K. Narrow tiles of tokens are bound by what
// the L2 delivers, some 45 bytes a cycle and SM, wide ones by the tensor cores, 8 cycles a token.
constexpr double kStepCycles[] = {900, 900, 930, 964, 1000, 1023, 1086, 1190, 1250, 1347, 1440, 1640};
static_assert(sizeof kStepCycles / sizeof kStepCycles[0] == kTokenTileMost / kTokenTileStep);
constexpr double kTokensLaunch = 13500, kTokensTile = 3000;
// Whole launches take that much longer than their tiles alone, over all shapes.
constexpr double kTokensDrift = 1.08;
constexpr double kHalfTile = 0.62;  // of a whole one
constexpr double kColumnsStep = 1064, kColumnsLaunch = 11500, kColumnsTile = 4200;
constexpr int kColumnsRows = 128, kColumnsColumns = 256, kStepK = 64;

std::int64_t up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

double tokens_cycles(const GroupedShape& s) {
  const TokenParts cut(static_cast<int>(s.rows_per_expert), kTokenTileMost);
  const std::int64_t tiles = up(s.n, kTokenTileRows) * cut.parts * s.experts;
  const std::int64_t rounds = tiles / s.sms, last = tiles % s.sms;
  // Parts differ by one step of 16 at most: their mean width serves.
  const double width = static_cast<double>(cut.steps) / cut.parts - 1;
  const int at = std::min(static_cast<int>(width), kTokenTileMost / kTokenTileStep - 2);
  const double step = kStepCycles[at] + (width - at) * (kStepCycles[at + 1] - kStepCycles[at]);
  const double tile = static_cast<double>(up(s.k, kStepK)) * step + kTokensTile;
  double cycles = kTokensLaunch - kTokensTile + static_cast<double>(rounds) * tile;
  if (last > 0) cycles += tile * (2 * last <= s.sms ? kHalfTile : 1.0);
  return cycles * kTokensDrift;
}

double columns_cycles(const GroupedShape& s) {
  const std::int64_t rounds = up(up(s.rows_per_expert, kColumnsRows) * up(s.n, kColumnsColumns) * s.experts, s.sms);
  const double tile = static_cast<double>(up(s.k, kStepK)) * kColumnsStep + kColumnsTile;
  return kColumnsLaunch - kColumnsTile + static_cast<double>(rounds) * tile;
}

}  // namespace

double grouped_cycles(GroupedTile tile, const GroupedShape& shape) {
  if (shape.rows_per_expert < 1) return 0;
  return tile == GroupedTile::Tokens ? tokens_cycles(shape) : columns_cycles(shape);
}

GroupedTile choose_grouped_tile(const GroupedShape& shape) {
  // Up to a tile of tokens the weights' way from HBM is longer than any product, and the smaller start counts. But an
  // SM takes in only so much: where tiles would keep at most half of the SMs busy (few experts), halves of them bring
  // the weights sooner.
  if (shape.rows_per_expert <= kColumnsRows) {
    const std::int64_t tiles = up(shape.n, kColumnsColumns) * shape.experts;
    return 2 * tiles <= shape.sms ? GroupedTile::Tokens : GroupedTile::Columns;
  }
  return grouped_cycles(GroupedTile::Tokens, shape) < grouped_cycles(GroupedTile::Columns, shape)
             ? GroupedTile::Tokens
             : GroupedTile::Columns;
}

}  // namespace dbo::kernels
