#include "kernels/compute/grouped_tiles.h"

#include "kernels/compute/grouped_choice.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace dbo::kernels;

namespace {

/// What the kernel plans before it starts, by the standard library.
struct Planned {
  std::vector<std::int32_t> offset{0}, start{0};
  std::vector<std::uint16_t> order;
  int n, tile_rows, blocks;
  TokenCut cut;

  Planned(const std::vector<int>& rows, int columns, TokenCut how, int block_count, int weight_rows = kTokenTileRows)
      : order(rows.size()), n(columns), tile_rows(weight_rows), blocks(block_count), cut(how) {
    for (const int r : rows) offset.push_back(offset.back() + r);
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      const auto width = [&](int e) { return TokenParts(rows[static_cast<std::size_t>(e)], cut).width(); };
      return width(a) > width(b);
    });
    for (const int e : order) {
      start.push_back(start.back() + TokenTiles::count_of(rows[static_cast<std::size_t>(e)], n, tile_rows, cut));
    }
  }
  TokenTiles tiles() const {
    return TokenTiles(offset.data(), order.data(), start.data(), static_cast<int>(order.size()), n, tile_rows, cut,
                      blocks);
  }
};

struct PlannedColumns {
  std::vector<std::int32_t> offset{0};
  int whole = 0, n, blocks;

  PlannedColumns(const std::vector<int>& rows, int columns, int block_count) : n(columns), blocks(block_count) {
    for (const int r : rows) {
      offset.push_back(offset.back() + r);
      whole += ColumnTiles::count_of(r, n);
    }
  }
  ColumnTiles tiles() const { return ColumnTiles(offset.data(), whole, n, blocks); }
};

const std::vector<std::vector<int>> kRows = {{128},
                                             {1},
                                             {0, 0, 0},
                                             {0, 5, 0, 130, 64, 0},
                                             {7, 33, 257, 1, 96},
                                             {2048, 2048},
                                             {753, 376, 251, 188, 150, 125, 107, 94},
                                             {100033, 1}};

}  // namespace

TEST_CASE("grouped tiles: every row of every expert meets every column exactly once, whatever the blocks") {
  for (const std::vector<int>& rows : kRows) {
    for (const int n : {8, 128, 136, 256, 264, 1408}) {
      for (const TokenCut cut : {TokenCut{64, 16}, {128, 8}, {136, 8}, {192, 16}}) {
        for (const int weight_rows : {kTokenTileRows, kTokenTileRowsFp8}) {
          for (const int blocks : {1, 3, 64, 132}) {
            const Planned plan(rows, n, cut, blocks, weight_rows);
            TokenTiles tiles = plan.tiles();
            // Columns in pieces of half a tile, the finest that tiles are cut to.
            const int half = weight_rows / 2, pieces = tiles_up(n, half);
            std::vector<std::vector<int>> seen(static_cast<std::size_t>(plan.offset.back()),
                                               std::vector<int>(static_cast<std::size_t>(pieces), 0));
            if (rows[0] > 10000 && (n > 256 || blocks == 3)) continue;
            int previous = 1 << 30;
            for (int i = 0; i < tiles.count(); ++i) {
              const TokenTile t = tiles.find(i);
              REQUIRE(t.tokens > 0);
              REQUIRE(t.tokens <= cut.most);
              REQUIRE(t.token >= plan.offset[static_cast<std::size_t>(t.expert)]);
              REQUIRE(t.token + t.tokens <= plan.offset[static_cast<std::size_t>(t.expert) + 1]);
              const int width = TokenParts(rows[static_cast<std::size_t>(t.expert)], cut).width();
              REQUIRE(width <= previous);  // wide first
              previous = width;
              for (int row = t.token; row < t.token + t.tokens; ++row) {
                for (int c = t.column; c < std::min(t.column + t.rows, n); c += half) {
                  ++seen[static_cast<std::size_t>(row)][static_cast<std::size_t>(c / half)];
                }
              }
            }
            bool once = true;
            for (const auto& row : seen)
              once = once && std::all_of(row.begin(), row.end(), [](int s) { return s == 1; });
            CHECK_MESSAGE(once,
                          "experts " << rows.size() << ", n " << n << ", most " << cut.most << ", blocks " << blocks);
          }
        }
      }
    }
  }
}

TEST_CASE("grouped column tiles: every row of every expert meets every column exactly once, whatever the blocks") {
  for (const std::vector<int>& rows : kRows) {
    for (const int n : {8, 128, 136, 256, 264, 1408}) {
      for (const int blocks : {1, 3, 64, 132}) {
        if (rows[0] > 10000 && (n > 256 || blocks == 3)) continue;
        const PlannedColumns plan(rows, n, blocks);
        constexpr int kHalf = kColumnTileColumns / 2;
        const int pieces = tiles_up(n, kHalf), experts = static_cast<int>(rows.size());
        std::vector<std::vector<int>> seen(static_cast<std::size_t>(plan.offset.back()),
                                           std::vector<int>(static_cast<std::size_t>(pieces), 0));
        ColumnTiles tiles = plan.tiles();
        for (int i = 0; i < tiles.count(); ++i) {
          const ColumnTile t = tiles.find(i);
          REQUIRE(t.rows > 0);
          REQUIRE(t.rows <= kColumnTileRows);
          const int expert = (t.weight_row - t.column) / n;
          REQUIRE(expert < experts);
          REQUIRE(t.weight_row == expert * n + t.column);
          REQUIRE(t.row >= plan.offset[static_cast<std::size_t>(expert)]);
          REQUIRE(t.row + t.rows <= plan.offset[static_cast<std::size_t>(expert) + 1]);
          for (int row = t.row; row < t.row + t.rows; ++row) {
            for (int c = t.column; c < std::min(t.column + t.columns, n); c += kHalf) {
              ++seen[static_cast<std::size_t>(row)][static_cast<std::size_t>(c / kHalf)];
            }
          }
        }
        bool once = true;
        for (const auto& row : seen) once = once && std::all_of(row.begin(), row.end(), [](int s) { return s == 1; });
        CHECK_MESSAGE(once, "experts " << experts << ", n " << n << ", blocks " << blocks);
      }
    }
  }
}

TEST_CASE("grouped column tiles: a block's tile of any number is found without those of other blocks") {
  const PlannedColumns plan({753, 0, 376, 251, 188, 150, 125, 107, 94}, 1408, 20);
  ColumnTiles all = plan.tiles();
  std::vector<ColumnTile> walked;
  for (int i = 0; i < all.count(); ++i) walked.push_back(all.find(i));
  for (int block = 0; block < 20; ++block) {
    ColumnTiles own = plan.tiles();
    for (int i = block; i < own.count(); i += 20) {
      const ColumnTile t = own.find(i), same = walked[static_cast<std::size_t>(i)];
      CHECK(t.row == same.row);
      CHECK(t.weight_row == same.weight_row);
      CHECK(t.columns == same.columns);
    }
  }
}

TEST_CASE("grouped column tiles: a last round of at most half the blocks is cut in two, a fuller one is not") {
  // 8 experts of 2 x 128 rows, 28 tiles of columns: 448 = 3 x 132 + 52.
  const PlannedColumns cut(std::vector<int>(8, 256), 7168, 132);
  ColumnTiles tiles = cut.tiles();
  CHECK(tiles.count() == 3 * 132 + 2 * 52);
  CHECK(tiles.find(395).columns == kColumnTileColumns);
  const ColumnTile left = tiles.find(396), right = tiles.find(397);
  CHECK(left.columns == kColumnTileColumns / 2);
  CHECK(right.column == left.column + kColumnTileColumns / 2);
  CHECK(right.row == left.row);
  // 8 x 2 x 16 = 256 = 132 + 124.
  CHECK(PlannedColumns(std::vector<int>(8, 256), 4096, 132).tiles().count() == 256);
}

TEST_CASE("grouped tiles: a last round of at most half the blocks is cut in two, a fuller one is not") {
  // 8 experts of 256 tokens in two parts, 28 tiles of columns: 448 = 3 x 132 + 52.
  const Planned cut(std::vector<int>(8, 256), 7168, {192, 8}, 132);
  TokenTiles tiles = cut.tiles();
  CHECK(tiles.count() == 3 * 132 + 2 * 52);
  CHECK(tiles.find(395).rows == kTokenTileRows);
  CHECK(tiles.find(396).rows == kTokenTileRows / 2);
  // 8 x 2 x 16 = 256 = 132 + 124.
  CHECK(Planned(std::vector<int>(8, 256), 4096, {192, 8}, 132).tiles().count() == 256);
  // 128 tiles on 64 blocks: nothing is left over.
  CHECK(Planned(std::vector<int>(8, 192), 4096, {192, 8}, 64).tiles().count() == 128);
}

TEST_CASE("grouped tiles: where narrow tiles end a launch that began with wide ones, they are halved") {
  // 8 experts, 1 / 1 to 1 / 8 of 753: 13 parts of 16 tiles are 208 = 132 + 76, the widest 192, the last 128 and less.
  const Planned plan({753, 376, 251, 188, 150, 125, 107, 94}, 4096, {192, 8}, 132);
  CHECK(plan.tiles().count() == 208 + 76);
}

TEST_CASE("grouped tiles: parts of an expert are even, and only the last is rounded up") {
  // 257 tokens are 33 steps of 8: 17 and 16 of them, the second with one token in its last step.
  const TokenParts two(257, {176, 8});
  CHECK(two.parts == 2);
  CHECK(two.width() == 136);
  CHECK(two.begin(1) == 136);
  CHECK(two.begin(2) == 264);
  // In steps of 16 they are 17: 9 and 8.
  CHECK(TokenParts(257, {192, 16}).width() == 144);
  CHECK(TokenParts(257, {192, 16}).begin(2) == 272);
  // 500 are 63 steps of 8, in three parts of 21; 32 of 16, in 11, 11 and 10.
  const TokenParts three(500, {176, 8});
  CHECK(three.parts == 3);
  CHECK(three.begin(1) == 168);
  CHECK(three.begin(2) == 336);
  CHECK(TokenParts(500, {192, 16}).begin(1) == 176);
  CHECK(TokenParts(500, {192, 16}).begin(2) == 352);
  CHECK(TokenParts(0, {176, 8}).width() == 0);
  CHECK(TokenParts(176, {176, 8}).parts == 1);
  CHECK(TokenParts(177, {176, 8}).width() == 96);
  for (const TokenCut how : {TokenCut{176, 8}, {136, 8}, {192, 16}}) {
    for (int tokens = 1; tokens < 1000; ++tokens) {
      const TokenParts cut(tokens, how);
      CHECK(cut.width() <= how.most);
      CHECK(cut.begin(cut.parts) == tiles_up(tokens, how.step) * how.step);
      for (int part = 0; part < cut.parts; ++part) {
        const int width = cut.begin(part + 1) - cut.begin(part);
        CHECK(width <= cut.width());
        CHECK(width >= cut.width() - how.step);
        CHECK(cut.begin(part) < tokens);
      }
    }
  }
}

TEST_CASE("grouped choice: the kernel that measured faster is chosen") {
  // H200; microseconds of columns and tokens: 234 and 127, 194 and 197, 307 and 234, 372 and 381, 547 and 500.
  const auto gate_up = [](int rows) { return choose_grouped_tile({rows, 8, 4096, 7168, 132}); };
  CHECK(gate_up(64) == GroupedTile::Tokens);  // 113 both
  CHECK(gate_up(128) == GroupedTile::Columns);
  CHECK(gate_up(130) == GroupedTile::Tokens);
  CHECK(gate_up(256) == GroupedTile::Columns);
  CHECK(gate_up(300) == GroupedTile::Tokens);
  CHECK(gate_up(512) == GroupedTile::Columns);
  CHECK(gate_up(700) == GroupedTile::Tokens);
  // 102 and 107, 165 and 116, 163 and 124, 189 and 207.
  const auto down = [](int rows) { return choose_grouped_tile({rows, 8, 7168, 2048, 132}); };
  CHECK(down(256) == GroupedTile::Columns);
  CHECK(down(257) == GroupedTile::Tokens);
  CHECK(down(300) == GroupedTile::Tokens);
  CHECK(down(512) == GroupedTile::Columns);
  // DeepSeek-V2-Lite: 199 and 147, 304 and 309, 433 and 418, 583 and 613; 64 rows of unequal experts, 113 and 102.
  const auto lite = [](int rows) { return choose_grouped_tile({rows, 32, 2816, 2048, 132}); };
  CHECK(lite(64) == GroupedTile::Tokens);
  CHECK(lite(192) == GroupedTile::Tokens);
  CHECK(lite(500) == GroupedTile::Columns);
  CHECK(lite(700) == GroupedTile::Tokens);
  CHECK(lite(1024) == GroupedTile::Columns);
}

TEST_CASE("grouped choice: cycles are launch, rounds and steps along K") {
  // 8 x 2 x 16 tiles of 128 x 256 are two rounds of 132: 112 steps each, and a tile's end.
  CHECK(grouped_cycles(GroupedTile::Columns, {256, 8, 4096, 7168, 132}) == 10000 + 2 * (112 * 1064 + 1500));
  CHECK(grouped_cycles(GroupedTile::Columns, {256, 8, 4096, 7168, 64}) == 10000 + 4 * (112 * 1064 + 1500));
  // 8 x 2 x 28 are three rounds and 52 tiles, cut in halves.
  CHECK(grouped_cycles(GroupedTile::Columns, {256, 8, 7168, 2048, 132}) ==
        doctest::Approx(10000 + 3.62 * (32 * 1064 + 1500)));
  // 160 tokens are one part: 8 x 16 tiles are a round.
  CHECK(grouped_cycles(GroupedTile::Tokens, {160, 8, 4096, 7168, 132}) ==
        doctest::Approx(1.02 * (9000 + 112 * 1330 + 160 * 20)));
  CHECK(grouped_cycles(GroupedTile::Tokens, {0, 8, 4096, 7168, 132}) == 0);
}
