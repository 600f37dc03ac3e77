#include "kernels/compute/grouped_tiles.h"

#include "kernels/compute/grouped_choice.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

using namespace dbo::kernels;

namespace {

/// What the kernel plans before it starts, by the standard library.
struct Planned {
  std::vector<std::int32_t> offset{0}, start{0};
  std::vector<std::uint16_t> by_place;
  int n, tile_rows, blocks, several = 0;
  TokenCut cut;
  TokenOrder order;

  Planned(const std::vector<int>& rows, int columns, TokenCut how, int block_count, int weight_rows = kTokenTileRows,
          TokenOrder in = TokenOrder::WideFirst)
      : by_place(rows.size()), n(columns), tile_rows(weight_rows), blocks(block_count), cut(how), order(in) {
    const auto parts = [&](int e) { return TokenParts(rows[static_cast<std::size_t>(e)], cut); };
    for (const int r : rows) offset.push_back(offset.back() + r);
    std::iota(by_place.begin(), by_place.end(), std::uint16_t{0});
    std::stable_sort(by_place.begin(), by_place.end(), [&](int a, int b) {
      const bool more = parts(a).parts > 1, other = parts(b).parts > 1;
      if (order == TokenOrder::Mixed && more != other) return more;
      return parts(a).width() > parts(b).width();
    });
    for (const int e : by_place) {
      const int count = TokenTiles::count_of(rows[static_cast<std::size_t>(e)], n, tile_rows, cut);
      start.push_back(start.back() + count);
      if (parts(e).parts > 1) several += count;
    }
  }
  TokenTiles tiles() const {
    return TokenTiles(offset.data(), by_place.data(), start.data(), static_cast<int>(by_place.size()), several, n,
                      tile_rows, cut, order, blocks);
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

namespace {

/// Whether every row of every expert meets every column exactly once.
bool covers(const Planned& plan, const std::vector<int>& rows) {
  TokenTiles tiles = plan.tiles();
  // Columns in pieces of half a tile, the finest that tiles are cut to.
  const int half = plan.tile_rows / 2, pieces = tiles_up(plan.n, half);
  std::vector<std::vector<int>> seen(static_cast<std::size_t>(plan.offset.back()),
                                     std::vector<int>(static_cast<std::size_t>(pieces), 0));
  int previous = 1 << 30;
  for (int i = 0; i < tiles.count(); ++i) {
    const TokenTile t = tiles.find(i);
    const auto expert = static_cast<std::size_t>(t.expert);
    REQUIRE(t.tokens > 0);
    REQUIRE(t.tokens <= plan.cut.most);
    REQUIRE(t.token >= plan.offset[expert]);
    REQUIRE(t.token + t.tokens <= plan.offset[expert + 1]);
    const int width = TokenParts(rows[expert], plan.cut).width();
    if (plan.order == TokenOrder::WideFirst) REQUIRE(width <= previous);
    previous = width;
    for (int row = t.token; row < t.token + t.tokens; ++row) {
      for (int c = t.column; c < std::min(t.column + t.rows, plan.n); c += half) {
        ++seen[static_cast<std::size_t>(row)][static_cast<std::size_t>(c / half)];
      }
    }
  }
  return std::all_of(seen.begin(), seen.end(), [](const std::vector<int>& row) {
    return std::all_of(row.begin(), row.end(), [](int s) { return s == 1; });
  });
}

}  // namespace

TEST_CASE("grouped tiles: every row of every expert meets every column exactly once, whatever the blocks and order") {
  for (const std::vector<int>& rows : kRows) {
    for (const int n : {8, 128, 136, 256, 264, 1408}) {
      for (const TokenCut cut : {TokenCut{64, 16}, {128, 8}, {136, 8}, {192, 16}}) {
        for (const int weight_rows : {kTokenTileRows, kTokenTileRowsFp8, kRowTileColumns}) {
          for (const int blocks : {1, 3, 64, 132}) {
            if (rows[0] > 10000 && (n > 256 || blocks == 3)) continue;
            for (const TokenOrder order : {TokenOrder::WideFirst, TokenOrder::Mixed}) {
              CHECK_MESSAGE(covers(Planned(rows, n, cut, blocks, weight_rows, order), rows),
                            "experts " << rows.size() << ", n " << n << ", most " << cut.most << ", blocks " << blocks);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("grouped tiles: mixed, experts with several parts are spread over all but the last, the smallest come last") {
  // Of 8 tiles of columns: 500 rows are three parts, 24 tiles; the others are one part each, 48 tiles. With 32 blocks
  // the last 16 are those of 20 and 10 rows, and before them each tile of the first expert has 32 / 24 others.
  const std::vector<int> rows{10, 100, 500, 20, 90, 80, 70};
  const Planned plan(rows, 2048, {192, 8}, 32, kTokenTileRows, TokenOrder::Mixed);
  TokenTiles tiles = plan.tiles();
  CHECK(tiles.count() == 72 + 8);  // two rounds and a quarter, whose tiles are halves
  int several = 0;
  for (int i = 0; i < 56; ++i) {
    const TokenTile t = tiles.find(i);
    several += t.expert == 2 ? 1 : 0;
    CHECK(several == (i + 1) * 24 / 56);
  }
  for (int i = 56; i < 80; ++i) CHECK(tiles.find(i).expert == (i < 64 ? 3 : 0));
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

TEST_CASE("grouped tiles: tiles whose halves could not be copied are never cut") {
  // Weights are copied by 64 rows: tiles of 192 stay whole, though of 8 x 2 x 22 on 344 blocks 8 are left; of 128 they
  // are cut.
  CHECK(Planned(std::vector<int>(8, 256), 4096, {128, 64}, 344, kRowTileColumns).tiles().count() == 352);
  CHECK(Planned(std::vector<int>(8, 256), 4096, {128, 64}, 500, 128).tiles().count() == 512 + 12);
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

namespace {

/// DeepSeek-V3's two products on 8 experts, DeepSeek-V2-Lite's on 32.
GroupedShape gate_up(std::vector<std::int32_t> rows) {
  return {std::move(rows), 4096, 7168, 2048, 132, ElementType::Bf16};
}
GroupedShape down(std::vector<std::int32_t> rows) {
  return {std::move(rows), 7168, 2048, 7168, 132, ElementType::Bf16};
}
GroupedShape lite_gate_up(std::vector<std::int32_t> rows) {
  return {std::move(rows), 2816, 2048, 1408, 132, ElementType::Bf16};
}
std::vector<std::int32_t> equal(int experts, int rows) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(experts), rows);
}
std::vector<std::int32_t> zipf(int experts, int mean) {
  double sum = 0;
  for (int e = 0; e < experts; ++e) sum += 1.0 / (e + 1);
  std::vector<std::int32_t> rows;
  for (int e = 0; e < experts; ++e) rows.push_back(static_cast<int>(mean * experts / sum / (e + 1)));
  return rows;
}

}  // namespace

TEST_CASE("grouped choice: the kernel that measured faster is chosen") {
  // H200; microseconds of columns and tokens: 240 and 151, 271 and 135, 197 and 202, 320 and 234, 369 and 383, 554 and
  // 516.
  const auto tile = [](const GroupedShape& shape) { return choose_grouped(shape).tile; };
  CHECK(tile(gate_up(equal(8, 130))) == GroupedTile::Tokens);
  CHECK(tile(gate_up(equal(8, 192))) == GroupedTile::Tokens);
  CHECK(tile(gate_up(equal(8, 256))) == GroupedTile::Columns);
  CHECK(tile(gate_up(equal(8, 300))) == GroupedTile::Tokens);
  CHECK(tile(gate_up(equal(8, 512))) == GroupedTile::Columns);
  CHECK(tile(gate_up(equal(8, 700))) == GroupedTile::Tokens);
  // 106 and 113, 165 and 113, 160 and 124, 191 and 215.
  CHECK(tile(down(equal(8, 256))) == GroupedTile::Columns);
  CHECK(tile(down(equal(8, 257))) == GroupedTile::Tokens);
  CHECK(tile(down(equal(8, 300))) == GroupedTile::Tokens);
  CHECK(tile(down(equal(8, 512))) == GroupedTile::Columns);
  // 202 and 138, 309 and 320, 586 and 618.
  CHECK(tile(lite_gate_up(equal(32, 192))) == GroupedTile::Tokens);
  CHECK(tile(lite_gate_up(equal(32, 500))) == GroupedTile::Columns);
  CHECK(tile(lite_gate_up(equal(32, 1024))) == GroupedTile::Columns);
}

TEST_CASE("grouped choice: unequal experts are counted one by one") {
  // 236 us with columns, 229 in tiles of up to 192 tokens, 210 of up to 176, where 753 rows are five parts, not four.
  const GroupedChoice narrower = choose_grouped(gate_up(zipf(8, 256)));
  CHECK(narrower.tile == GroupedTile::Tokens);
  CHECK(narrower.tuning.most_tokens == 176);
  CHECK(narrower.tuning.order == TokenOrder::WideFirst);
  // 192 with columns or wide ones first, 182 mixed: 20 of 32 experts have less than 168 rows, which wait for weights.
  CHECK(choose_grouped(lite_gate_up(zipf(32, 256))).tuning.order == TokenOrder::Mixed);
  CHECK(choose_grouped(gate_up(zipf(8, 1024))).tile == GroupedTile::Columns);  // 729 and 761
}

TEST_CASE("grouped choice: of e4m3, tiles of 128 tokens where they are full") {
  // H200; microseconds of tokens, columns in tiles of 192 and of 128: 105, 136 and 131; 212, 188 and 210; 79, 91
  // and 69.
  const auto choose = [](int rows) {
    GroupedShape shape = gate_up(equal(8, rows));
    shape.type = ElementType::Fp8E4m3;
    return choose_grouped(shape);
  };
  CHECK(choose(64).tile == GroupedTile::Tokens);  // 60, 75 and 62
  CHECK(choose(192).tile == GroupedTile::Tokens);
  CHECK(choose(384).tile == GroupedTile::Columns);
  CHECK(choose(384).tuning.columns == 192);
  CHECK(choose(128).tile == GroupedTile::Columns);
  CHECK(choose(128).tuning.columns == 128);
}

TEST_CASE("grouped choice: cycles are launch, tiles one after the other, and what memory holds up") {
  // 8 x 2 x 16 tiles of 128 x 256 are two rounds of 132: 112 steps each, and a tile's end.
  const GroupedChoice columns{GroupedTile::Columns, {}}, tokens{GroupedTile::Tokens, {}};
  CHECK(grouped_cycles(columns, gate_up(equal(8, 256))) == doctest::Approx(10000 + 2 * (112 * 1064 + 1500)));
  GroupedShape fewer = gate_up(equal(8, 256));
  fewer.sms = 64;
  CHECK(grouped_cycles(columns, fewer) == doctest::Approx(10000 + 4 * (112 * 1064 + 1500)));
  // 8 x 2 x 28 are three rounds and 52 tiles, cut in halves.
  CHECK(grouped_cycles(columns, down(equal(8, 256))) ==
        doctest::Approx(10000 + 3 * (32 * 1064 + 1500) + 0.62 * 32 * 1064 + 1500));
  // 192 tokens are one part: 8 x 16 tiles are a round. 8 / 0.95 cycles a token and step.
  CHECK(grouped_cycles(tokens, gate_up(equal(8, 192))) ==
        doctest::Approx(9000 + 112 * 192 * 8 / 0.95 + 600 + 192 * 20));
  // One row each: 8 x 4096 x 7168 weights, their rows and results, at 3,100 bytes a cycle.
  const double bytes = 8.0 * 2 * (4096.0 * 7168 + 7168 + 2048);
  CHECK(grouped_cycles(tokens, gate_up(equal(8, 1))) == doctest::Approx(9000 + bytes / 3100).epsilon(0.001));
  CHECK(grouped_cycles(tokens, gate_up(equal(8, 0))) == 0);
}
