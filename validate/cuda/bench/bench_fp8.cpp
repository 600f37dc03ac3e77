#include "validate/cuda/bench/bench_fp8.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/pointwise.h"
#include "kernels/compute/quantise.h"

namespace dbo::bench {

namespace {

using kernels::ElementType;
using kernels::GroupedEpilogue;
using kernels::GroupedTile;
using kernels::TokenOrder;

/// What a choice is, in a word.
std::string name_of(const kernels::GroupedChoice& how) {
  const std::string order = how.tuning.order == TokenOrder::Mixed ? "mixed " : "";
  if (how.tile == GroupedTile::Columns) return order + "col " + std::to_string(how.tuning.columns);
  return order + "tok " +
         std::to_string(how.tuning.most_tokens > 0 ? how.tuning.most_tokens : kernels::kTokenTileMostFp8);
}

Memory random_numbers(std::int64_t count, kernels::NumberType type, std::uint64_t seed, float scale, float offset,
                      cudaStream_t stream) {
  Memory m(count * kernels::number_bytes(type));
  kernels::FillArgs fill;
  fill.out = m.get();
  fill.type = type;
  fill.count = count;
  fill.seed = seed;
  fill.scale = scale;
  fill.offset = offset;
  DBO_BENCH_CHECK(kernels::launch_fill(fill, stream));
  return m;
}

struct Shape {
  const char* name;
  int experts, n, k;
  GroupedEpilogue epilogue;
};

/// Inputs of the largest case, in as many weight sets as exceed three L2.
class Experts {
 public:
  Experts(const Session& session, const kernels::TensorMapEncoder& encoder, const Shape& shape, int most_rows)
      : session_(session), encoder_(encoder), shape_(shape), most_rows_(std::int64_t{most_rows} * shape.experts) {
    const cudaStream_t stream = session.stream();
    const std::int64_t k_blocks = blocks(shape.k), set = std::int64_t{shape.experts} * shape.n * shape.k;
    const auto size = static_cast<float>(std::sqrt(3.0 / shape.k) / 448.0);
    a_ = random_numbers(most_rows_ * shape.k, kernels::NumberType::E4m3, 1, 448.0f, 0.0f, stream);
    a_scale_ = random_numbers(k_blocks * kernels::grouped_scale_stride(most_rows_), kernels::NumberType::Float, 2,
                              0.25f / 448.0f, 0.75f / 448.0f, stream);
    w_scale_ = random_numbers(std::int64_t{shape.experts} * blocks(shape.n) * k_blocks, kernels::NumberType::Float, 3,
                              0.25f * size, 0.75f * size, stream);
    c_ = Memory(most_rows_ * shape.n * 2);
    const auto sets = std::max<std::int64_t>(2, 3 * session.l2_bytes() / set + 1);
    for (std::int64_t i = 0; i < sets; ++i) {
      w_.push_back(
          random_numbers(set, kernels::NumberType::E4m3, static_cast<std::uint64_t>(i + 4), 448.0f, 0.0f, stream));
    }
  }

  Session::Sequence sequence(int rows, const kernels::GroupedChoice& how) const {
    std::vector<std::int32_t> offset{0};
    for (int e = 0; e < shape_.experts; ++e) offset.push_back(offset.back() + rows);
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
      g.type = ElementType::Fp8E4m3;
      DBO_BENCH_CHECK(kernels::make_grouped_a_map(encoder_, a_.get(), most_rows_, shape_.k, g.a, g.type));
      DBO_BENCH_CHECK(
          kernels::make_grouped_w_map(encoder_, w_[i].get(), shape_.experts, shape_.n, shape_.k, g.w, g.type));
      DBO_BENCH_CHECK(kernels::make_grouped_scale_map(encoder_, a_scale_.as<float>(), most_rows_, shape_.k, g.a_scale));
      g.w_scale = w_scale_.as<float>();
      g.offset = held->offsets.as<std::int32_t>();
      g.c = c_.get();
      g.c_stride = shape_.epilogue == GroupedEpilogue::SwiGlu ? shape_.n / 2 : shape_.n;
      g.experts = shape_.experts;
      g.n = shape_.n;
      g.k = shape_.k;
      g.sms = session_.sms();
      g.early_start = true;  // as op MLP launches it
      g.tile = how.tile;
      g.tuning = how.tuning;
      g.ticket = held->ticket.as<std::int32_t>();
      g.epilogue = shape_.epilogue;
    }
    const int calls = static_cast<int>(w_.size()) * (rows <= 512 ? 4 : 1);
    return {calls, [stream = session_.stream(), held](int i) {
              DBO_BENCH_CHECK(
                  kernels::launch_grouped_gemm(held->args[static_cast<std::size_t>(i) % held->args.size()], stream));
            }};
  }

 private:
  static std::int64_t blocks(int n) { return (n + kernels::kScaleBlock - 1) / kernels::kScaleBlock; }
  const Session& session_;
  kernels::TensorMapEncoder encoder_;
  Shape shape_;
  std::int64_t most_rows_;
  Memory a_, a_scale_, w_scale_, c_;
  std::vector<Memory> w_;
};

void rows_table(const Session& session, const Session::Sequence& ceiling, const kernels::TensorMapEncoder& encoder,
                const Shape& shape, const BenchOptions& options) {
  const std::vector<int> counts =
      options.quick ? std::vector<int>{16, 128, 256, 1024}
                    : std::vector<int>{16, 64, 100, 128, 192, 256, 300, 384, 512, 768, 1024, 2048, 4096};
  const int replays = options.quick ? 5 : 9;
  const Experts experts(session, encoder, shape, counts.back());
  Table table(std::string("grouped GEMM, e4m3 with scales of 128, ") + shape.name + ": " +
                  std::to_string(shape.experts) + " experts, n " + std::to_string(shape.n) + ", k " +
                  std::to_string(shape.k),
              {"rows/expert", "us tokens", "us col 192", "us col 128", "chosen", "us", "TFLOP/s", "TB/s", "2 x 8192^3",
               "of bound"},
              options.csv);
  const int out_columns = shape.epilogue == GroupedEpilogue::SwiGlu ? shape.n / 2 : shape.n;
  for (const int rows : counts) {
    const double total = static_cast<double>(rows) * shape.experts;
    const double flops = 2.0 * total * shape.n * shape.k;
    const double bytes = static_cast<double>(shape.experts) * shape.n * shape.k +
                         total * (shape.k * (1 + 4.0 / kernels::kScaleBlock) + 2.0 * static_cast<double>(out_columns));
    const kernels::GroupedChoice how =
        kernels::choose_grouped({std::vector<std::int32_t>(static_cast<std::size_t>(shape.experts), rows), shape.n,
                                 shape.k, out_columns, session.sms(), ElementType::Fp8E4m3});
    const std::vector<double> seconds = session.time_in_turns(
        {ceiling, experts.sequence(rows, {GroupedTile::Tokens, {}}), experts.sequence(rows, {GroupedTile::Columns, {}}),
         experts.sequence(rows, {GroupedTile::Columns, {0, TokenOrder::WideFirst, 128}}), experts.sequence(rows, how)},
        replays);
    const double peak = 2 * kCeilingFlops / seconds[0], us = seconds[4] * 1e6;
    const double bound = std::max(flops / peak, bytes / session.copy_bytes_per_s()) * 1e6;
    table.row({std::to_string(rows), number(seconds[1] * 1e6, 1), number(seconds[2] * 1e6, 1),
               number(seconds[3] * 1e6, 1), name_of(how), number(us, 1), number(flops / us * 1e-6, 0),
               number(bytes / us * 1e-6, 2), number(peak * 1e-12, 0), number(bound / us, 3)});
  }
}

void quantise_table(const Session& session, const BenchOptions& options) {
  Table table("rows for the e4m3 grouped GEMM", {"rows", "us", "TB/s", "of copy"}, options.csv);
  for (const auto& [rows, width] : {std::pair{16384, 7168}, {16384, 2048}, {512, 7168}}) {
    const std::int64_t count = std::int64_t{rows} * width, stride = kernels::grouped_scale_stride(rows);
    const Memory in = random_memory(count, 1, 1.0f, session.stream()), out(count), scales(width / 128 * stride * 4);
    const Memory offset = upload({0, rows});
    kernels::QuantiseRowsArgs q;
    q.rows = in.get();
    q.offset = offset.as<std::int32_t>();
    q.experts = 1;
    q.width = width;
    q.out = out.get();
    q.out_scales = scales.as<float>();
    q.scale_stride = stride;
    q.blocks = session.sms() * 8;
    const double us =
        session.time(4, 9, [&](int) { DBO_BENCH_CHECK(kernels::launch_quantise_rows(q, session.stream())); }) * 1e6;
    const double rate = static_cast<double>(count) * (3 + 4.0 / kernels::kScaleBlock) / us * 1e6;
    table.row({std::to_string(rows) + " x " + std::to_string(width), number(us, 1), number(rate * 1e-12, 2),
               number(rate / session.copy_bytes_per_s(), 3)});
  }
}

}  // namespace

void run_fp8_tables(const Session& session, const Session::Sequence& ceiling, const kernels::TensorMapEncoder& encoder,
                    const BenchOptions& options) {
  rows_table(session, ceiling, encoder, {"gate and up, SwiGLU", 8, 4096, 7168, GroupedEpilogue::SwiGlu}, options);
  rows_table(session, ceiling, encoder, {"down", 8, 7168, 2048, GroupedEpilogue::Store}, options);
  quantise_table(session, options);
}

}  // namespace dbo::bench
