#include "kernels/compute/grouped_choice.h"

#include <algorithm>
#include <numeric>

namespace dbo::kernels {

namespace {

// Measured on an H200 (`dbo-gpu bench gemm`), and held against the times of every size measured there, which those of
// bf16 meet within 6 % (root mean square, at the clock of the dense product beside each).
constexpr double kL2BytesPerCycle = 50;        // what the L2 delivers to an SM bounds a step of a narrow tile
constexpr double kMemoryBytesPerCycle = 3100;  // to all: 4.2 TB/s at 1.36 GHz
constexpr double kHalfTile = 0.62;             // of a whole one
constexpr double kTokensLaunch = 9000, kColumnsLaunch = 10000;
// bf16 with columns of C: a step of a tile of 128 rows x 256 columns, of one whose second 64 rows are not there, and a
// tile's end, which is hidden behind the next tile but for this.
constexpr double kColumnStep = 1064, kColumnStepHalf = 850, kColumnsEnd = 1500;
constexpr int kRowBytes = 128;     // of a step
constexpr int kCopiedTokens = 16;  // tokens are copied in multiples of it

/// Cycles of the variants that draw their tiles.
struct DrawnCosts {
  int rows;               // of weights of a tile
  TokenCut cut;           // most tokens
  double step, token;     // of a step, and for each token, as they are multiplied
  double end, end_token;  // of a tile's end, which is mostly writing C
};
DrawnCosts drawn_costs(const GroupedChoice& choice, ElementType type) {
  if (type == ElementType::Bf16) return {kTokenTileRows, {kTokenTileMost, kTokenTileStep}, 0, 8 / 0.95, 600, 20};
  if (choice.tile == GroupedTile::Tokens) {
    return {kTokenTileRowsFp8, {kTokenTileMostFp8, kTokenTileStepFp8}, 200, 5.34, 0, 22};
  }
  const int half = kRowTileTokens / 2;
  if (choice.tuning.columns == kScaleBlock) return {kScaleBlock, {kRowTileTokens, half}, 266, 4.22, 0, 24};
  return {kRowTileColumns, {kRowTileTokens, half}, 360, 5.67, 0, 33};
}

int number_of_bytes(ElementType type) {
  return type == ElementType::Bf16 ? 2 : 1;
}
/// Steps along K.
int steps_of(const GroupedShape& s) {
  return tiles_up(s.k * number_of_bytes(s.type), kRowBytes);
}

/// A tile's cycles and bytes.
struct Work {
  double step = 0;   ///< cycles of one along K when memory keeps up
  double steps = 0;  ///< of K, and the tile's end counted in them
  double bytes = 0;  ///< that it must read from memory or write there
};
Work make_work(int steps, double step, double end, double bytes) {
  return {step, steps + end / step, bytes};
}

struct Running {
  double step, left, bytes_per_step;
  std::size_t number;
};

/// Cycles that no step is shorter than, so that all together ask memory for no more than it delivers: blocks have as
/// many copies under way each, so that all wait for as long.
double shortest_step(const std::vector<Running>& running) {
  double demand = 0, longest = 0;
  for (const Running& r : running) {
    demand += r.bytes_per_step / r.step;
    longest = std::max(longest, r.step);
  }
  if (demand <= kMemoryBytesPerCycle) return 0;
  // From above: with fewer of them held up, the others' share falls.
  double shortest = longest * demand / kMemoryBytesPerCycle;
  while (true) {
    double held = 0, free = kMemoryBytesPerCycle;
    for (const Running& r : running) {
      if (r.step < shortest) {
        held += r.bytes_per_step;
      } else {
        free -= r.bytes_per_step / r.step;
      }
    }
    if (held <= 0 || free <= 0) return shortest;
    const double next = held / free;
    if (next >= shortest * (1 - 1e-6)) return next;
    shortest = next;
  }
}

/// Cycles of that work on `sms` blocks. `drawn`: a block that is done takes the next; else block b has b, b + sms, and
/// so on.
double run(const std::vector<Work>& work, int sms, bool drawn) {
  const auto begin = [&](std::size_t number) {
    const Work& w = work[number];
    return Running{w.step, w.steps, w.bytes / w.steps, number};
  };
  std::vector<Running> running;
  std::size_t next = 0;
  while (next < work.size() && next < static_cast<std::size_t>(sms)) running.push_back(begin(next++));
  double time = 0;
  while (!running.empty()) {
    const double shortest = shortest_step(running);
    double elapsed = running[0].left * std::max(running[0].step, shortest);
    for (const Running& r : running) elapsed = std::min(elapsed, r.left * std::max(r.step, shortest));
    time += elapsed;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running r = running[i];
      r.left -= elapsed / std::max(r.step, shortest);
      if (r.left <= 1e-6) {
        const std::size_t after = drawn ? next++ : r.number + static_cast<std::size_t>(sms);
        if (after >= work.size()) continue;
        r = begin(after);
      }
      running[kept++] = r;
    }
    running.resize(kept);
  }
  return time;
}

std::vector<std::int32_t> offsets(const std::vector<std::int32_t>& rows) {
  std::vector<std::int32_t> offset{0};
  for (const std::int32_t r : rows) offset.push_back(offset.back() + r);
  return offset;
}

/// What a tile moves: its part of weights that `sharing` tiles read, of tokens that all of a row of tiles read, and C.
double bytes_of(const GroupedShape& s, int tokens, int columns, int sharing) {
  const double part = static_cast<double>(columns) / s.n, number = number_of_bytes(s.type);
  return number * columns * s.k / sharing + tokens * part * (number * s.k + 2.0 * s.out_columns);
}

double drawn_cycles(const GroupedChoice& choice, const GroupedShape& s) {
  DrawnCosts costs = drawn_costs(choice, s.type);
  TokenCut& cut = costs.cut;
  if (choice.tuning.most_tokens > 0) cut.most = choice.tuning.most_tokens;
  const TokenOrder order = choice.tuning.order;
  const auto offset = offsets(s.rows);
  const auto parts_of = [&](std::size_t e) { return TokenParts(s.rows[e], cut); };
  std::vector<std::uint16_t> by_place(s.rows.size());
  std::iota(by_place.begin(), by_place.end(), std::uint16_t{0});
  std::stable_sort(by_place.begin(), by_place.end(), [&](std::uint16_t a, std::uint16_t b) {
    return place_of_expert(parts_of(a), order) > place_of_expert(parts_of(b), order);
  });
  std::vector<std::int32_t> start{0};
  int several = 0;
  for (const std::uint16_t e : by_place) {
    const int count = TokenTiles::count_of(s.rows[e], s.n, costs.rows, cut);
    start.push_back(start.back() + count);
    several += parts_of(e).parts > 1 ? count : 0;
  }
  TokenTiles tiles(offset.data(), by_place.data(), start.data(), static_cast<int>(s.rows.size()), several, s.n,
                   costs.rows, cut, order, s.sms);
  std::vector<Work> work;
  for (int i = 0; i < tiles.count(); ++i) {
    const TokenTile t = tiles.find(i);
    const double width = tiles_up(t.tokens, cut.step) * cut.step;
    const double copied = costs.rows + tiles_up(t.tokens, kCopiedTokens) * kCopiedTokens;
    const double step = std::max(costs.step + costs.token * width, copied * kRowBytes / kL2BytesPerCycle);
    work.push_back(make_work(
        steps_of(s), step * (t.rows < costs.rows ? kHalfTile : 1.0),
        (costs.end + costs.end_token * width) * t.rows / costs.rows,
        bytes_of(s, t.tokens, std::min(t.rows, s.n - t.column), parts_of(static_cast<std::size_t>(t.expert)).parts)));
  }
  return kTokensLaunch + run(work, s.sms, true);
}

double columns_cycles(const GroupedShape& s) {
  const auto offset = offsets(s.rows);
  int whole = 0;
  for (const std::int32_t r : s.rows) whole += ColumnTiles::count_of(r, s.n);
  ColumnTiles tiles(offset.data(), whole, s.n, s.sms);
  std::vector<Work> work;
  for (int i = 0; i < tiles.count(); ++i) {
    const ColumnTile t = tiles.find(i);
    const double step = t.rows > kColumnTileRows / 2 ? kColumnStep : kColumnStepHalf;
    const auto expert = static_cast<std::size_t>((t.weight_row - t.column) / s.n);
    work.push_back(
        make_work(steps_of(s), step * (t.columns < kColumnTileColumns ? kHalfTile : 1.0), kColumnsEnd,
                  bytes_of(s, t.rows, std::min(t.columns, s.n - t.column), tiles_up(s.rows[expert], kColumnTileRows))));
  }
  return kColumnsLaunch + run(work, s.sms, false);
}

}  // namespace

double grouped_cycles(const GroupedChoice& choice, const GroupedShape& shape) {
  if (std::all_of(shape.rows.begin(), shape.rows.end(), [](std::int32_t r) { return r < 1; })) return 0;
  const bool drawn = choice.tile == GroupedTile::Tokens || shape.type == ElementType::Fp8E4m3;
  return drawn ? drawn_cycles(choice, shape) : columns_cycles(shape);
}

GroupedChoice choose_grouped(const GroupedShape& shape) {
  // Where nothing speaks for narrower tiles: fewer wide ones cost less than is counted.
  constexpr double kNarrower = 1.03;
  constexpr double kColumnsFp8 = 1.01;  // where memory bounds both, those of tokens are a bit faster
  constexpr int kMost[] = {192, 176, 160, 144, 128};
  static_assert(kMost[0] == kTokenTileMost && kMost[0] == kTokenTileMostFp8);
  const bool fp8 = shape.type == ElementType::Fp8E4m3;
  GroupedChoice best{fp8 ? GroupedTile::Tokens : GroupedTile::Columns, {}};
  double cycles = grouped_cycles(best, shape);
  const auto consider = [&](const GroupedChoice& choice, double factor) {
    const double own = grouped_cycles(choice, shape) * factor;
    if (own >= cycles) return;
    cycles = own;
    best = choice;
  };
  for (const int columns : {kRowTileColumns, kScaleBlock}) {
    if (!fp8) break;
    consider({GroupedTile::Columns, {0, TokenOrder::WideFirst, columns}}, kColumnsFp8);
    consider({GroupedTile::Columns, {0, TokenOrder::Mixed, columns}}, kColumnsFp8);
  }
  for (const int most : kMost) {
    for (const TokenOrder order : {TokenOrder::WideFirst, TokenOrder::Mixed}) {
      consider({GroupedTile::Tokens, {most, order}}, most < kMost[0] ? kNarrower : 1);
    }
  }
  return best;
}

MlpChoice choose_mlp(const std::vector<std::int32_t>& rows, int hidden, int intermediate, int sms, ElementType type) {
  return {choose_grouped({rows, 2 * intermediate, hidden, intermediate, sms, type}),
          choose_grouped({rows, hidden, intermediate, hidden, sms, type})};
}

}  // namespace dbo::kernels
