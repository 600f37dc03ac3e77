#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/work.h"
#include "validate/cuda/bench/bench.h"
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

const char* tile_name(GroupedTile t) {
  switch (t) {
    case GroupedTile::Columns256:
      return "256";
    case GroupedTile::Columns256Cluster:
      return "256c";
    case GroupedTile::Columns128:
      return "128";
  }
  return "";
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

  double time(int rows, GroupedTile tile, int sms, int replays) const {
    std::vector<std::int32_t> offset;
    for (int e = 0; e <= shape_.experts; ++e) offset.push_back(e * rows);
    const Memory offsets = upload(offset);
    std::vector<kernels::GroupedGemmArgs> args(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      kernels::GroupedGemmArgs& g = args[i];
      DBO_BENCH_CHECK(kernels::make_grouped_a_map(encoder_, a_.get(), most_rows_, shape_.k, g.a));
      DBO_BENCH_CHECK(
          kernels::make_grouped_w_map(encoder_, w_[i].get(), shape_.experts, shape_.n, shape_.k, tile, g.w));
      g.offset = offsets.as<std::int32_t>();
      g.c = c_.get();
      g.c_stride = shape_.epilogue == GroupedEpilogue::SwiGlu ? shape_.n / 2 : shape_.n;
      g.experts = shape_.experts;
      g.n = shape_.n;
      g.k = shape_.k;
      g.sms = sms;
      g.tile = tile;
      g.epilogue = shape_.epilogue;
    }
    const int calls = static_cast<int>(args.size()) * (rows <= 512 ? 4 : 1);
    return session_.time(calls, replays, [&](int i) {
      DBO_BENCH_CHECK(kernels::launch_grouped_gemm(args[static_cast<std::size_t>(i) % args.size()], session_.stream()));
    });
  }

 private:
  const Session& session_;
  kernels::TensorMapEncoder encoder_;
  Shape shape_;
  std::int64_t most_rows_;
  Memory a_, c_;
  std::vector<Memory> w_;
};

void rows_table(Session& session, const kernels::TensorMapEncoder& encoder, const Shape& shape,
                const BenchOptions& options) {
  const std::vector<int> counts = options.quick ? std::vector<int>{16, 128, 256, 1024}
                                                : std::vector<int>{16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  const int replays = options.quick ? 5 : 9;
  const Experts experts(session, encoder, shape, counts.back());
  Table table(std::string("grouped GEMM ") + shape.name + ": " + std::to_string(shape.experts) + " experts, n " +
                  std::to_string(shape.n) + ", k " + std::to_string(shape.k),
              {"rows/expert", "us 256", "us 256c", "us 128", "chosen", "TFLOP/s", "TB/s", "cuBLAS", "of bound"},
              options.csv);
  for (const int rows : counts) {
    const std::int64_t total = std::int64_t{rows} * shape.experts;
    const std::int64_t out_columns = shape.epilogue == GroupedEpilogue::SwiGlu ? shape.n / 2 : shape.n;
    const double flops = 2.0 * static_cast<double>(total) * shape.n * shape.k;
    const double bytes = 2.0 * (static_cast<double>(shape.experts) * shape.n * shape.k +
                                static_cast<double>(total) * static_cast<double>(shape.k + out_columns));
    double us[3];
    const GroupedTile tiles[] = {GroupedTile::Columns256, GroupedTile::Columns256Cluster, GroupedTile::Columns128};
    for (int i = 0; i < 3; ++i) us[i] = experts.time(rows, tiles[i], session.sms(), replays) * 1e6;
    const GroupedTile chosen = kernels::choose_grouped_tile(shape.experts, rows, shape.n, session.sms());
    const double t = us[chosen == tiles[0] ? 0 : chosen == tiles[1] ? 1 : 2] * 1e-6;
    // One dense product of the same rows, beside it in time: clocks move.
    const double dense = flops / session.time_dense(static_cast<int>(total), shape.n, shape.k, options.quick ? 3 : 5);
    const double bound = std::max(flops / std::max(dense, 1.0), bytes / session.copy_bytes_per_s());
    const double dense_bound = std::max(flops / session.dense_flops_per_s(), bytes / session.copy_bytes_per_s());
    table.row({std::to_string(rows), number(us[0], 1), number(us[1], 1), number(us[2], 1), tile_name(chosen),
               number(flops / t * 1e-12, 0), number(bytes / t * 1e-12, 2), number(dense * 1e-12, 0),
               number((rows >= 128 ? bound : dense_bound) / t, 3)});
  }
}

void staircase_table(Session& session, const kernels::TensorMapEncoder& encoder, const BenchOptions& options) {
  const Shape shape{"staircase", 4, 4096, 7168, GroupedEpilogue::SwiGlu};
  const int rows = 512;  // 4 x 4 x 16 = 256 tiles
  const Experts experts(session, encoder, shape, rows);
  Table table("grouped GEMM over SMs: 4 experts, 512 rows each, n 4096, k 7168",
              {"SMs", "us 256", "rounds", "us/round", "us 256c", "us/round c"}, options.csv);
  const std::vector<int> counts = options.quick ? std::vector<int>{132, 128, 126, 108, 86, 84, 64}
                                                : std::vector<int>{132, 128, 126, 124, 120, 116, 112, 108, 104, 100, 96,
                                                                   92,  88,  86,  84,  80,  76,  72,  68,  66,  64};
  for (const int sms : counts) {
    if (sms > session.sms()) continue;
    const std::int64_t tiles = shape.experts * kernels::grouped_tiles(rows, shape.n, GroupedTile::Columns256);
    const auto rounds = static_cast<double>((tiles + sms - 1) / sms);
    const double us = experts.time(rows, GroupedTile::Columns256, sms, options.quick ? 5 : 9) * 1e6;
    const double cluster = experts.time(rows, GroupedTile::Columns256Cluster, sms, options.quick ? 5 : 9) * 1e6;
    table.row({std::to_string(sms), number(us, 1), number(rounds, 0), number(us / rounds, 1), number(cluster, 1),
               number(cluster / rounds, 1)});
  }
}

}  // namespace

int run_bench_gemm(const BenchOptions& options) {
  if (!options.csv.empty()) std::ofstream(options.csv, std::ios::trunc);
  Session session(options.device);
  kernels::TensorMapEncoder encoder;
  DBO_BENCH_CHECK(kernels::find_tensor_map_encoder(encoder));
  DBO_BENCH_CHECK(kernels::prepare_grouped_gemm());
  session.print_head("bench gemm");
  std::printf(
      "# of bound: the time of min(cuBLAS dense rate, copy bandwidth) over ours; cuBLAS in TFLOP/s for the same "
      "rows\n");
  std::printf("# weights come from HBM (a ring of sets), times are medians of graph replays\n");
  rows_table(session, encoder, {"gate and up, SwiGLU", 8, 4096, 7168, GroupedEpilogue::SwiGlu}, options);
  rows_table(session, encoder, {"down", 8, 7168, 2048, GroupedEpilogue::Store}, options);
  if (!options.quick) {
    rows_table(session, encoder, {"gate and up, V2-Lite", 32, 2816, 2048, GroupedEpilogue::SwiGlu}, options);
    rows_table(session, encoder, {"down, V2-Lite", 32, 2048, 1408, GroupedEpilogue::Store}, options);
  }
  staircase_table(session, encoder, options);
  return 0;
}

}  // namespace dbo::bench
