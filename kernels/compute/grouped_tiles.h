// How the grouped GEMM cuts its work into tiles: the same arithmetic in the kernels and in tests. Plain C++.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DBO_TILES_FUNCTION __host__ __device__ __forceinline__
#else
#define DBO_TILES_FUNCTION inline
#endif

namespace dbo::kernels {

/// Rows of weights of a tile; a half tile has half of them.
inline constexpr int kTokenTileRows = 256;     ///< bf16
inline constexpr int kTokenTileRowsFp8 = 128;  ///< e4m3: the height of a block of weights with one scale
/// Most tokens of a tile, and what its width is rounded up to: of e4m3 two of the tensor cores' steps, since threads
/// read the scales of so many tokens at once.
inline constexpr int kTokenTileMost = 192;     ///< bf16
inline constexpr int kTokenTileMostFp8 = 192;  ///< e4m3
inline constexpr int kTokenTileStep = 8;       ///< bf16
inline constexpr int kTokenTileStepFp8 = 16;   ///< e4m3
/// Of the e4m3 kernel whose columns are C's: tokens, and most columns.
inline constexpr int kRowTileTokens = 128;
inline constexpr int kRowTileColumns = 192;
/// Scales of e4m3 tokens are copied from a multiple of this: the hardware takes a copy that begins at no multiple of 16
/// bytes for an illegal instruction. A box holds those of a tile from any token on.
inline constexpr int kTokenScaleStep = 4;
inline constexpr int kTokenScaleBox = kTokenTileMostFp8 + kTokenScaleStep;

constexpr DBO_TILES_FUNCTION int tiles_up(int a, int b) {
  return (a + b - 1) / b;
}

/// Rows of A and columns of C of a tile of the kernel whose columns are C's; a half tile has half the columns.
inline constexpr int kColumnTileRows = 128;
inline constexpr int kColumnTileColumns = 256;

struct ColumnTile {
  int row = 0;         // first row of A
  int rows = 0;        // 1 to kColumnTileRows
  int column = 0;      // first of the product's columns, in the expert
  int columns = 0;     // of the tile; those past n are not there
  int weight_row = 0;  // of `column`, in W
  bool alone = false;  // no other tile reads these weights
};

/// When a last round of `last` whole tiles keeps at most half of the blocks busy, its tiles are cut in two.
DBO_TILES_FUNCTION bool last_round_is_small(int last, int blocks) {
  return last > 0 && 2 * last <= blocks;
}

/// All tiles of such a launch, in rounds of `blocks`: block b takes tiles b, b + blocks, ...
class ColumnTiles {
 public:
  /// `offset` [experts + 1] first row of each expert; `whole` sum of count_of over the experts.
  DBO_TILES_FUNCTION ColumnTiles(const std::int32_t* offset, int whole, int n, int blocks)
      : offset_(offset), n_(n), n_tiles_(tiles_up(n, kColumnTileColumns)) {
    const int last = whole % blocks;
    const bool halve = last_round_is_small(last, blocks);
    first_half_ = halve ? whole - last : whole;
    count_ = halve ? whole + last : whole;
  }

  static DBO_TILES_FUNCTION int count_of(int rows, int n) {
    return tiles_up(rows, kColumnTileRows) * tiles_up(n, kColumnTileColumns);
  }

  DBO_TILES_FUNCTION int count() const { return count_; }

  /// Numbers of one caller only grow.
  DBO_TILES_FUNCTION ColumnTile find(int number) {
    const bool half = number >= first_half_;
    const int whole = half ? first_half_ + (number - first_half_) / 2 : number;
    while (end_ <= whole) {
      first_ = offset_[++expert_];
      rows_ = offset_[expert_ + 1] - first_;
      start_ = end_;
      end_ += count_of(rows_, n_);
    }
    const int local = whole - start_;
    // Row blocks vary fastest inside a band, so that the blocks at work at one time form a near square: each weight
    // tile leaves HBM once, and the band of A stays in L2.
    const int band = local / (kBand * n_tiles_), in_band = local - band * kBand * n_tiles_;
    const int m_tiles = tiles_up(rows_, kColumnTileRows) - band * kBand;
    const int band_rows = kBand < m_tiles ? kBand : m_tiles;
    const int row = (band * kBand + in_band % band_rows) * kColumnTileRows;
    ColumnTile tile;
    tile.row = first_ + row;
    tile.rows = rows_ - row < kColumnTileRows ? rows_ - row : kColumnTileRows;
    tile.columns = half ? kColumnTileColumns / 2 : kColumnTileColumns;
    tile.column = in_band / band_rows * kColumnTileColumns;
    if (half && (number - first_half_) % 2 != 0) tile.column += tile.columns;
    tile.weight_row = expert_ * n_ + tile.column;
    tile.alone = rows_ <= kColumnTileRows;
    return tile;
  }

 private:
  static constexpr int kBand = 16;
  const std::int32_t* offset_;
  int n_, n_tiles_;
  int first_half_ = 0, count_ = 0;
  // The expert of the tile found last, its rows, and its tiles among all.
  int expert_ = -1, first_ = 0, rows_ = 0, start_ = 0, end_ = 0;
};

struct TokenTile {
  int token = 0;   ///< first row of A
  int tokens = 0;  ///< 0: no tile
  int column = 0;  ///< first of the product's columns, in the expert
  int rows = 0;    ///< of weights
  int expert = 0;
  int part = 0;        ///< of the expert's tokens; all parts read the same weights
  bool alone = false;  ///< it is the only part
};

/// How an expert's tokens may be cut: parts of at most `most`, a multiple of `step`.
struct TokenCut {
  int most = 0, step = 0;
};

/// An expert's tokens in parts: all are whole steps but the last, so that only that one is rounded up, and they differ
/// by at most one step, the wider first.
struct TokenParts {
  int step = 0;
  int steps = 0;
  int parts = 0;

  DBO_TILES_FUNCTION TokenParts(int tokens, TokenCut cut)
      : step(cut.step), steps(tiles_up(tokens, cut.step)), parts(tiles_up(steps, cut.most / cut.step)) {}
  /// Columns of the widest part as the kernel multiplies them.
  DBO_TILES_FUNCTION int width() const { return parts > 0 ? tiles_up(steps, parts) * step : 0; }
  /// First token of a part, of the expert's; of `parts`: at least their number.
  DBO_TILES_FUNCTION int begin(int part) const {
    const int wider = steps % parts;
    return (part * (steps / parts) + (part < wider ? part : wider)) * step;
  }
};

/// In which order blocks draw tiles.
enum class TokenOrder : std::uint8_t {
  WideFirst,  ///< what is left for the last ones is small
  /// Tiles of experts with several parts, whose products take longer than their weights' way from memory, and those of
  /// experts with one part, which wait for it, by turns, so that both resources are at work all the time; of the latter
  /// the smallest, for half of the blocks, come last.
  Mixed,
};

/// Experts whose tiles stand before the others' when a launch is planned.
DBO_TILES_FUNCTION int place_of_expert(const TokenParts& parts, TokenOrder order) {
  constexpr int kBefore = 1 << 16;  // more than any width
  return parts.width() + (order == TokenOrder::Mixed && parts.parts > 1 ? kBefore : 0);
}

/// All tiles of a launch, in the order in which blocks draw them. When the last round would keep at most half of the
/// blocks busy, or, with wide ones first, is of narrower tiles than the first, its tiles are cut in two along the
/// weights.
class TokenTiles {
 public:
  /// `offset` [experts + 1] first row of each expert; `by_place` [experts] experts by falling place_of_expert; `start`
  /// [experts + 1] tiles of the experts before it in that order; `several` tiles of experts with several parts; `rows`
  /// of weights of a tile.
  DBO_TILES_FUNCTION TokenTiles(const std::int32_t* offset, const std::uint16_t* by_place, const std::int32_t* start,
                                int experts, int several, int n, int rows, TokenCut cut, TokenOrder order, int blocks)
      : offset_(offset), by_place_(by_place), start_(start), n_(n), rows_(rows), cut_(cut) {
    const int whole = start[experts], last = rows % (2 * kHalfRows) == 0 ? whole % blocks : 0;
    bool halve = last_round_is_small(last, blocks);
    if (order == TokenOrder::Mixed) {
      const int single = whole - several;
      several_ = several;
      mixed_ = whole - (single < blocks / 2 ? single : blocks / 2);
    } else if (last > 0 && !halve) {
      int i = experts - 1;
      while (start[i] > whole - last) --i;
      halve = 4 * parts_of(0).width() > 5 * parts_of(i).width();
    }
    first_half_ = halve ? whole - last : whole;
    count_ = halve ? whole + last : whole;
  }

  static DBO_TILES_FUNCTION int count_of(int tokens, int n, int rows, TokenCut cut) {
    return TokenParts(tokens, cut).parts * tiles_up(n, rows);
  }

  DBO_TILES_FUNCTION int count() const { return count_; }

  /// Numbers of one caller only grow.
  DBO_TILES_FUNCTION TokenTile find(int number) {
    const bool half = number >= first_half_;
    const int piece = half ? (number - first_half_) % 2 : 0;
    const int whole = unmixed(half ? first_half_ + (number - first_half_) / 2 : number);
    const bool of_several = whole < several_;
    int at = of_several ? at_several_ : at_;
    while (start_[at + 1] <= whole) ++at;
    (of_several ? at_several_ : at_) = at;
    const int expert = by_place_[at], local = whole - start_[at];
    const int first = offset_[expert], tokens = offset_[expert + 1] - first;
    const TokenParts parts(tokens, cut_);
    const int row_tiles = tiles_up(n_, rows_);
    // Parts vary fastest inside a band, so that the blocks at work at one time form a near square: each weight tile
    // leaves HBM once, and the band of tokens stays in L2.
    const int band = local / (kBand * row_tiles), in_band = local - band * kBand * row_tiles;
    const int band_parts = kBand < parts.parts - band * kBand ? kBand : parts.parts - band * kBand;
    TokenTile tile;
    tile.part = band * kBand + in_band % band_parts;
    const int begin = parts.begin(tile.part), end = parts.begin(tile.part + 1);
    tile.token = first + begin;
    tile.tokens = (end < tokens ? end : tokens) - begin;
    tile.rows = half ? rows_ / 2 : rows_;
    tile.column = in_band / band_parts * rows_ + piece * tile.rows;
    tile.expert = expert;
    tile.alone = parts.parts == 1;
    return tile;
  }

 private:
  static constexpr int kBand = 12;
  static constexpr int kHalfRows = 64;  // rows of weights of a half tile are a multiple of it, as they are copied

  DBO_TILES_FUNCTION TokenParts parts_of(int at) const {
    const int expert = by_place_[at];
    return TokenParts(offset_[expert + 1] - offset_[expert], cut_);
  }

  /// Where the tile that is drawn as `drawn` stands among the tiles by place: of the first `mixed_` drawn, those of
  /// experts with several parts are spread evenly.
  DBO_TILES_FUNCTION int unmixed(int drawn) const {
    if (several_ == 0 || drawn >= mixed_) return drawn;
    const auto before = [&](int count) { return static_cast<int>(std::int64_t{count} * several_ / mixed_); };
    const int of_several = before(drawn);
    return before(drawn + 1) > of_several ? of_several : several_ + drawn - of_several;
  }

  const std::int32_t* offset_;
  const std::uint16_t* by_place_;
  const std::int32_t* start_;
  int n_, rows_;
  TokenCut cut_;
  int first_half_ = 0, count_ = 0;
  int several_ = 0, mixed_ = 0;  // none, unless tiles are mixed
  int at_ = 0, at_several_ = 0;  // of the experts, by place
};

}  // namespace dbo::kernels
