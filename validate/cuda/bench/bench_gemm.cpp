#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/work.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/bench_fp8.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {

namespace {

using kernels::GroupedEpilogue;
using kernels::GroupedTile;

/// One of the two products of the experts of a rank.
struct Shape {
  const char* name;
  int experts, n, k;
  GroupedEpilogue epilogue;
};

/// Kernel and how it goes about its work.
struct Variant {
  const char* name;
  kernels::GroupedChoice how;
};
constexpr Variant kVariants[] = {{"columns", {GroupedTile::Columns, {}}},
                                 {"tokens", {GroupedTile::Tokens, {}}},
                                 {"tok 128", {GroupedTile::Tokens, {128}}},
                                 {"mixed", {GroupedTile::Tokens, {0, kernels::TokenOrder::Mixed}}}};
constexpr std::size_t kVariantCount = std::size(kVariants);

/// What a choice is, in a word.
std::string name_of(const kernels::GroupedChoice& how) {
  if (how.tile == GroupedTile::Columns) return "columns";
  const int most = how.tuning.most_tokens > 0 ? how.tuning.most_tokens : kernels::kTokenTileMost;
  return (how.tuning.order == kernels::TokenOrder::Mixed ? "mixed " : "tok ") + std::to_string(most);
}

/// Inputs of the largest case, in as many weight sets as exceed three L2.
class Experts {
 public:
  Experts(const Session& session, const kernels::TensorMapEncoder& encoder, const Shape& shape, int most_rows)
      : session_(session),
        encoder_(encoder),
        shape_(shape),
        most_rows_(std::int64_t{most_rows} * shape.experts),
        a_(random_memory(most_rows_ * shape.k, 1, 1.0f, session.stream())),
        c_(most_rows_ * shape.n * 2) {
    const std::int64_t set = std::int64_t{shape.experts} * shape.n * shape.k;
    const auto sets = std::max<std::int64_t>(2, 3 * session.l2_bytes() / (set * 2) + 1);
    const auto scale = static_cast<float>(std::sqrt(3.0 / shape.k));
    for (std::int64_t i = 0; i < sets; ++i) {
      w_.push_back(random_memory(set, static_cast<std::uint64_t>(i + 2), scale, session.stream()));
    }
  }

  /// cuBLAS expert by expert, over all weight sets; a call is one expert's product, without SwiGLU.
  Session::Sequence dense_sequence(Session& session, const std::vector<int>& rows) const {
    std::vector<kernels::DenseGemmArgs> calls;
    for (const Memory& w : w_) {
      std::int64_t row = 0;
      for (std::size_t e = 0; e < rows.size(); ++e) {
        if (rows[e] == 0) continue;
        kernels::DenseGemmArgs g;
        g.a = a_.as<std::uint16_t>() + row * shape_.k;
        g.w = w.as<std::uint16_t>() + static_cast<std::int64_t>(e) * shape_.n * shape_.k;
        g.c = c_.as<std::uint16_t>() + row * shape_.n;
        g.m = rows[e];
        g.n = shape_.n;
        g.k = shape_.k;
        g.a_stride = g.w_stride = shape_.k;
        g.c_stride = shape_.n;
        calls.push_back(g);
        row += rows[e];
      }
    }
    return {static_cast<int>(calls.size()), [&session, calls](int i) {
              DBO_BENCH_CHECK(
                  kernels::launch_dense_gemm(session.dense(), calls[static_cast<std::size_t>(i)], session.stream()));
            }};
  }

  /// Launches over all weight sets for that many rows of each expert.
  Session::Sequence sequence(const std::vector<int>& rows, const kernels::GroupedChoice& how, int sms) const {
    std::vector<std::int32_t> offset{0};
    for (const int r : rows) offset.push_back(offset.back() + r);
    // Held by what issues the calls.
    struct Launches {
      Memory offsets, ticket;
      std::vector<kernels::GroupedGemmArgs> args;
    };
    const auto held = std::make_shared<Launches>();
    held->offsets = upload(offset);
    held->ticket = upload({0, 0});
    held->args.resize(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      kernels::GroupedGemmArgs& g = held->args[i];
      DBO_BENCH_CHECK(kernels::make_grouped_a_map(encoder_, a_.get(), most_rows_, shape_.k, g.a));
      DBO_BENCH_CHECK(kernels::make_grouped_w_map(encoder_, w_[i].get(), shape_.experts, shape_.n, shape_.k, g.w));
      g.offset = held->offsets.as<std::int32_t>();
      g.c = c_.get();
      g.c_stride = shape_.epilogue == GroupedEpilogue::SwiGlu ? shape_.n / 2 : shape_.n;
      g.experts = shape_.experts;
      g.n = shape_.n;
      g.k = shape_.k;
      g.sms = sms;
      g.tile = how.tile;
      g.early_start = sms == session_.sms();  // as op MLP launches it
      g.tuning = how.tuning;
      g.ticket = held->ticket.as<std::int32_t>();
      g.epilogue = shape_.epilogue;
    }
    const int calls = static_cast<int>(w_.size()) * (offset.back() <= 512 * shape_.experts ? 4 : 1);
    return {calls, [stream = session_.stream(), held](int i) {
              DBO_BENCH_CHECK(
                  kernels::launch_grouped_gemm(held->args[static_cast<std::size_t>(i) % held->args.size()], stream));
            }};
  }

  Session::Timed time_and_clock(const std::vector<int>& rows, const kernels::GroupedChoice& how, int sms,
                                int replays) const {
    const Session::Sequence s = sequence(rows, how, sms);
    return session_.time_and_clock(s.calls, replays, s.issue);
  }

 private:
  const Session& session_;
  kernels::TensorMapEncoder encoder_;
  Shape shape_;
  std::int64_t most_rows_;
  Memory a_, c_;
  std::vector<Memory> w_;
};

/// Time of every variant and of the one that op MLP would run for `rows` of each expert, and how near that one comes to
/// what the device can do. They take turns with the dense product whose rate is the bound's (`ceiling`) and with a
/// dense product of the same rows: clocks move with what ran before.
std::vector<std::string> measure(Session& session, const Session::Sequence& ceiling, const Experts& experts,
                                 const Shape& shape, const std::vector<int>& rows, int replays) {
  std::int64_t total = 0;
  for (const int r : rows) total += r;
  const int out_columns = shape.epilogue == GroupedEpilogue::SwiGlu ? shape.n / 2 : shape.n;
  const auto flops_of = [&](std::int64_t r) { return 2.0 * static_cast<double>(r) * shape.n * shape.k; };
  const auto bytes_of = [&](std::int64_t r) {
    return 2.0 * ((r > 0 ? 1.0 : 0.0) * shape.n * shape.k + static_cast<double>(r) * (shape.k + out_columns));
  };
  const auto used = static_cast<double>(std::count_if(rows.begin(), rows.end(), [](int r) { return r > 0; }));
  const double flops = flops_of(total);
  const kernels::GroupedChoice how =
      kernels::choose_grouped({rows, shape.n, shape.k, out_columns, session.sms(), kernels::ElementType::Bf16});
  std::vector<Session::Sequence> sequences{
      ceiling, session.dense_sequence(static_cast<int>(total), shape.n, shape.k, 4),
      experts.dense_sequence(session, rows), experts.sequence(rows, how, session.sms())};
  constexpr std::size_t kOthers = 4;
  for (const Variant& variant : kVariants) sequences.push_back(experts.sequence(rows, variant.how, session.sms()));
  const std::vector<double> seconds = session.time_in_turns(sequences, replays);
  const double peak = kCeilingFlops / seconds[0], us = seconds[3] * 1e6;
  double bytes = 0, each_bound = 0;
  for (const int r : rows) {
    bytes += bytes_of(r);
    each_bound += std::max(flops_of(r) / peak, bytes_of(r) / session.copy_bytes_per_s()) * 1e6;
  }
  const double bound = std::max(flops / peak, bytes / session.copy_bytes_per_s()) * 1e6;
  std::vector<std::string> cells;
  for (std::size_t i = 0; i < kVariantCount; ++i) cells.push_back(number(seconds[i + kOthers] * 1e6, 1));
  cells.insert(cells.end(), {name_of(how), number(us, 1), number(flops / us * 1e-6, 0), number(bytes / us * 1e-6, 2),
                             number(peak * 1e-12, 0), number(flops / seconds[1] * 1e-12, 0),
                             number(flops / (seconds[2] * used) * 1e-12, 0), number(bound / us, 3),
                             number(each_bound / us, 3), number(seconds[1] * 1e6 / us, 3)});
  return cells;
}

std::vector<std::string> columns(const char* first) {
  std::vector<std::string> c{first};
  for (const Variant& v : kVariants) c.push_back(std::string("us ") + v.name);
  for (const char* name : {"chosen", "us", "TFLOP/s", "TB/s", "8192^3", "same rows", "by expert", "of bound",
                           "by expert", "of same rows"}) {
    c.push_back(name);
  }
  return c;
}

void rows_table(Session& session, const Session::Sequence& ceiling, const kernels::TensorMapEncoder& encoder,
                const Shape& shape, const BenchOptions& options) {
  const std::vector<int> counts = options.quick
                                      ? std::vector<int>{16, 64, 100, 128, 200, 256, 300, 512, 1024, 4096}
                                      : std::vector<int>{16,  32,  48,  64,  100, 128, 130, 160, 192,  200,  256,
                                                         257, 300, 320, 384, 500, 512, 700, 768, 1024, 2048, 4096};
  const int replays = options.quick ? 5 : 9;
  const Experts experts(session, encoder, shape, counts.back());
  const std::string name = std::string("grouped GEMM ") + shape.name + ": " + std::to_string(shape.experts) +
                           " experts, n " + std::to_string(shape.n) + ", k " + std::to_string(shape.k);
  Table table(name, columns("rows/expert"), options.csv);
  for (const int rows : counts) {
    std::vector<std::string> cells{std::to_string(rows)};
    const auto measured = measure(session, ceiling, experts, shape,
                                  std::vector<int>(static_cast<std::size_t>(shape.experts), rows), replays);
    cells.insert(cells.end(), measured.begin(), measured.end());
    table.row(cells);
  }
  // Unequal experts: weights 1, 1/2, ..., largest first and mixed, and a single busy one.
  Table skewed(name + ", unequal", columns("rows"), options.csv);
  for (const int mean : {64, 256, 1024}) {
    std::vector<int> zipf(static_cast<std::size_t>(shape.experts));
    double sum = 0;
    for (int e = 0; e < shape.experts; ++e) sum += 1.0 / (e + 1);
    for (int e = 0; e < shape.experts; ++e) {
      zipf[static_cast<std::size_t>(e * 5 % shape.experts)] =
          static_cast<int>(static_cast<double>(mean * shape.experts) / sum / (e + 1));
    }
    std::vector<std::string> cells{"zipf, mean " + std::to_string(mean)};
    const auto measured = measure(session, ceiling, experts, shape, zipf, replays);
    cells.insert(cells.end(), measured.begin(), measured.end());
    skewed.row(cells);
  }
}

/// Equal tiles over SM counts: time moves in steps of whole rounds. Fewer SMs draw less power, so the clock rises and a
/// round takes fewer microseconds; in cycles it is the same.
void staircase_table(Session& session, const kernels::TensorMapEncoder& encoder, const BenchOptions& options) {
  const Shape shape{"staircase", 4, 4096, 7168, GroupedEpilogue::SwiGlu};
  const std::vector<int> rows(4, 512);  // 4 x 64 = 256 tiles of either kind
  const Experts experts(session, encoder, shape, 512);
  Table table("grouped GEMM over SMs: 4 experts, 512 rows each, n 4096, k 7168",
              {"SMs", "rounds", "us col", "us/round", "MHz", "kcycles/round", "rounds", "us tok 128", "us/round", "MHz",
               "kcycles/round"},
              options.csv);
  const std::vector<int> counts = options.quick ? std::vector<int>{132, 128, 126, 108, 86, 84, 64}
                                                : std::vector<int>{132, 128, 126, 124, 120, 116, 112, 108, 104, 100, 96,
                                                                   92,  88,  86,  84,  80,  76,  72,  68,  66,  64};
  for (const int sms : counts) {
    if (sms > session.sms()) continue;
    std::vector<std::string> cells{std::to_string(sms)};
    for (const Variant& variant : {kVariants[0], kVariants[2]}) {
      // 256 tiles of either kind; of tokens, a last round of at most half of the blocks is half a round.
      const bool half = variant.how.tile == GroupedTile::Tokens && 256 % sms * 2 <= sms;
      const double rounds = 256 / sms + (256 % sms == 0 ? 0.0 : half ? 0.5 : 1.0);
      const Session::Timed t = experts.time_and_clock(rows, variant.how, sms, options.quick ? 5 : 9);
      cells.insert(cells.end(), {number(rounds, 1), number(t.seconds * 1e6, 1), number(t.seconds * 1e6 / rounds, 1),
                                 number(t.clock_hz * 1e-6, 0), number(t.seconds * t.clock_hz * 1e-3 / rounds, 1)});
    }
    table.row(cells);
  }
}

/// What a tile costs, in cycles: one expert whose weights make 132 tiles a round in the L2's reach. Between K of 2048
/// and 4096 lie 32 steps of 64; what is left of one round is the launch and a tile's ends; what a second round adds to
/// its steps is what each further tile costs besides.
void tile_table(Session& session, const kernels::TensorMapEncoder& encoder, const BenchOptions& options) {
  const int columns = 33 * 256, sms = 132;
  if (session.sms() < sms) return;
  Table table("grouped GEMM by tile: one expert, n 8448, 4 tiles of tokens a round, cycles",
              {"tile", "a step", "of peak", "B/cycle from L2", "launch and ends", "further tile", "MHz"}, options.csv);
  const auto cycles = [&](int k, int rows, const Variant& variant, double& mhz) {
    const Experts experts(session, encoder, {"tile", 1, columns, k, GroupedEpilogue::Store}, std::max(rows, 1));
    const Session::Timed t = experts.time_and_clock({rows}, variant.how, sms, options.quick ? 5 : 9);
    mhz = t.clock_hz * 1e-6;
    return t.seconds * t.clock_hz;
  };
  for (const Variant& variant : {kVariants[0], kVariants[1]}) {
    // Nothing to do, and one step of one tile a block: what a launch costs before its work counts.
    double mhz = 0;
    const double none = cycles(2048, 0, variant, mhz),
                 one = cycles(64, 4 * (variant.how.tile == GroupedTile::Tokens ? 176 : 128), variant, mhz);
    table.row({std::string(variant.name) + ": no rows, one step", number(none, 0), "", "", number(one, 0), "",
               number(mhz, 0)});
  }
  for (const int width : {0, 64, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192}) {
    const int tokens = width == 0 ? 128 : width;
    const Variant variant = width == 0 ? kVariants[0] : Variant{"", {GroupedTile::Tokens, {width}}};
    double mhz = 0;
    const double half = cycles(2048, 4 * tokens, variant, mhz), whole = cycles(4096, 4 * tokens, variant, mhz);
    const double step = (whole - half) / 32, two = cycles(2048, 8 * tokens, variant, mhz);
    // 4096 operations a cycle; tokens are copied in multiples of 16.
    const double peak = 256.0 * tokens * 64 * 2 / 4096, bytes = (256.0 + (tokens + 15) / 16 * 16) * 128;
    table.row({width == 0 ? "128 x 256 columns" : std::to_string(width) + " tokens", number(step, 0),
               number(peak / step, 3), number(bytes / step, 1), number(half - 32 * step, 0),
               number(two - half - 32 * step, 0), number(mhz, 0)});
  }
}

}  // namespace

int run_bench_gemm(const BenchOptions& options) {
  if (!options.csv.empty()) std::ofstream(options.csv, std::ios::trunc);
  Session session(options.device);
  kernels::TensorMapEncoder encoder;
  DBO_BENCH_CHECK(kernels::find_tensor_map_encoder(encoder));
  DBO_BENCH_CHECK(kernels::prepare_grouped_gemm());
  const Session::Sequence ceiling = session.dense_sequence(kCeilingSide, kCeilingSide, kCeilingSide, 1);
  session.print_head("bench gemm");
  std::printf(
      "# of bound: the time at the rate of cuBLAS for 8192^3 or the copy bandwidth, whichever is longer, over ours; by "
      "expert: the longer of the two for each expert, added up; of same rows: of one dense product of cuBLAS of as "
      "many "
      "rows, its weights in the L2\n"
      "# products of cuBLAS (8192^3, one of the same rows, one after the other for each expert) take turns with ours, "
      "as "
      "clocks move; in TFLOP/s\n");
  std::printf("# weights come from HBM (a ring of sets), times are medians of graph replays\n");
  rows_table(session, ceiling, encoder, {"gate and up, SwiGLU", 8, 4096, 7168, GroupedEpilogue::SwiGlu}, options);
  rows_table(session, ceiling, encoder, {"down", 8, 7168, 2048, GroupedEpilogue::Store}, options);
  if (!options.quick) {
    rows_table(session, ceiling, encoder, {"gate and up, V2-Lite", 32, 2816, 2048, GroupedEpilogue::SwiGlu}, options);
    rows_table(session, ceiling, encoder, {"down, V2-Lite", 32, 2048, 1408, GroupedEpilogue::Store}, options);
  }
  staircase_table(session, encoder, options);
  tile_table(session, encoder, options);
  run_fp8_tables(session, ceiling, encoder, options);
  return 0;
}

}  // namespace dbo::bench
