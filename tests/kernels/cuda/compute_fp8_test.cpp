// The e4m3 grouped GEMM and the rows it takes.
#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/compute/grouped_gemm.h"
#include "kernels/compute/quantise.h"
#include "tests/kernels/cuda/compute_support.h"
#include "tests/kernels/e4m3.h"

using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
int blocks_of(int n) {
  return (n + kScaleBlock - 1) / kScaleBlock;
}

struct Case {
  std::vector<int> rows;  // of each expert
  int n, k;
};

enum class Values { Integers, Random };

/// Kernel and how it goes about its work.
struct Variant {
  const char* name;
  GroupedChoice how;
};
constexpr Variant kVariants[] = {{"tokens", {GroupedTile::Tokens, {}}},
                                 {"tokens, most 64", {GroupedTile::Tokens, {64}}},
                                 {"tokens, most 112, mixed", {GroupedTile::Tokens, {112, TokenOrder::Mixed}}},
                                 {"columns", {GroupedTile::Columns, {}}},
                                 {"columns, 128 of C", {GroupedTile::Columns, {0, TokenOrder::WideFirst, 128}}},
                                 {"columns, most 64", {GroupedTile::Columns, {64, TokenOrder::Mixed, 128}}}};

/// One grouped product with its inputs on both sides. Integers: codes of -2 to 2 and scales of 1/4 to 2, so that every
/// sum is exact.
class Product {
 public:
  Product(const Case& c, Values values, std::uint64_t seed)
      : shape(c), experts(static_cast<int>(c.rows.size())), row_blocks(blocks_of(c.n)), k_blocks(blocks_of(c.k)) {
    for (const int r : c.rows) offset_host.push_back(offset_host.back() + r);
    total = offset_host.back();
    const int rows = std::max(total, 1);
    stride = grouped_scale_stride(rows);
    a_code = codes(z(std::int64_t{rows} * c.k), values, seed);
    w_code = codes(z(std::int64_t{experts} * c.n * c.k), values, seed + 1);
    a_scale_host = scales(z(std::int64_t{k_blocks} * stride), values, seed + 2, 1.0);
    w_scale_host = scales(z(std::int64_t{experts} * row_blocks * k_blocks), values, seed + 3,
                          std::sqrt(3.0 / static_cast<double>(c.k)));
    a = Device<std::uint8_t>(a_code);
    w = Device<std::uint8_t>(w_code);
    a_scale = Device<float>(a_scale_host);
    w_scale = Device<float>(w_scale_host);
    offset = Device<std::int32_t>(offset_host);
    ticket = Device<std::int32_t>(std::vector<std::int32_t>{0, 0});
    DBO_TEST_CUDA(find_tensor_map_encoder(encoder));
    DBO_TEST_CUDA(prepare_grouped_gemm());
  }

  GroupedGemmArgs args(const GroupedChoice& how, GroupedEpilogue epilogue, int sms, Bf16* out) const {
    GroupedGemmArgs g;
    g.type = ElementType::Fp8E4m3;
    const int rows = std::max(total, 1);
    DBO_TEST_CUDA(make_grouped_a_map(encoder, a.get(), rows, shape.k, g.a, g.type));
    DBO_TEST_CUDA(make_grouped_w_map(encoder, w.get(), experts, shape.n, shape.k, g.w, g.type));
    DBO_TEST_CUDA(make_grouped_scale_map(encoder, a_scale.get(), rows, shape.k, g.a_scale));
    g.w_scale = w_scale.get();
    g.offset = offset.get();
    g.c = out;
    g.c_stride = epilogue == GroupedEpilogue::SwiGlu ? shape.n / 2 : shape.n;
    g.experts = experts;
    g.n = shape.n;
    g.k = shape.k;
    g.sms = sms;
    g.tile = how.tile;
    g.tuning = how.tuning;
    g.epilogue = epilogue;
    g.ticket = ticket.get();
    return g;
  }

  double dot(int row, int expert, int column) const {
    const std::uint8_t* const x = a_code.data() + std::int64_t{row} * shape.k;
    const std::uint8_t* const y = w_code.data() + (std::int64_t{expert} * shape.n + column) * shape.k;
    const float* const w_of = w_scale_host.data() + (expert * row_blocks + column / kScaleBlock) * k_blocks;
    double sum = 0;
    for (int b = 0; b < k_blocks; ++b) {
      double part = 0;
      for (int i = b * kScaleBlock; i < std::min(shape.k, (b + 1) * kScaleBlock); ++i) {
        part += value(x[i]) * value(y[i]);
      }
      sum += part * static_cast<double>(a_scale_host[z(b * stride + row)]) * static_cast<double>(w_of[b]);
    }
    return sum;
  }
  double output(int row, int column, GroupedEpilogue epilogue) const {
    const auto after = std::upper_bound(offset_host.begin(), offset_host.end(), row);
    const int e = static_cast<int>(after - offset_host.begin()) - 1;
    if (epilogue == GroupedEpilogue::Store) return dot(row, e, column);
    const int gate_row = column / 8 * 16 + column % 8;
    const double gate = dot(row, e, gate_row), up = dot(row, e, gate_row + 8);
    return gate / (1 + std::exp(-gate)) * up;
  }
  std::vector<double> outputs(GroupedEpilogue epilogue) const {
    const int columns = epilogue == GroupedEpilogue::Store ? shape.n : shape.n / 2;
    std::vector<double> want(z(std::int64_t{total} * columns));
    parallel(total, [&](std::int64_t row) {
      for (int j = 0; j < columns; ++j) want[z(row * columns + j)] = output(static_cast<int>(row), j, epilogue);
    });
    return want;
  }

  Case shape;
  std::vector<std::int32_t> offset_host{0};
  int total = 0, experts, row_blocks, k_blocks;
  std::int64_t stride = 0;
  std::vector<std::uint8_t> a_code, w_code;
  std::vector<float> a_scale_host, w_scale_host;
  Device<std::uint8_t> a, w;
  Device<float> a_scale, w_scale;
  Device<std::int32_t> offset, ticket;
  TensorMapEncoder encoder;

 private:
  static double value(std::uint8_t code) {
    static const std::vector<double> table = [] {
      std::vector<double> t;
      for (int i = 0; i < 256; ++i) t.push_back(static_cast<double>(dbo::fp8::from_e4m3(static_cast<std::uint8_t>(i))));
      return t;
    }();
    return table[code];
  }
  static std::vector<std::uint8_t> codes(std::size_t count, Values values, std::uint64_t seed) {
    std::vector<std::uint8_t> v(count);
    for (std::size_t i = 0; i < count; ++i) {
      v[i] = dbo::fp8::to_e4m3(values == Values::Integers ? static_cast<float>(pick(seed, i, 5) - 2)
                                                          : kFp8Max * uniform(seed, i));
    }
    return v;
  }
  /// Random values are then within `size` of zero.
  static std::vector<float> scales(std::size_t count, Values values, std::uint64_t seed, double size) {
    std::vector<float> v(count);
    for (std::size_t i = 0; i < count; ++i) {
      v[i] = values == Values::Integers ? static_cast<float>(std::ldexp(1.0, pick(seed, i, 4) - 2))
                                        : static_cast<float>(size / 448.0) * (0.75f + 0.25f * uniform(seed, i));
    }
    return v;
  }
};

}  // namespace

TEST_CASE("fp8 grouped: small integers are exact for empty experts, one row, odd sizes") {
  const Case cases[] = {
      {{128}, 128, 128},                  // one full tile, one block
      {{1}, 128, 128},                    // one row
      {{0, 5, 0, 130, 64, 0}, 256, 256},  // empty experts
      {{7, 33, 257, 1, 96}, 264, 144},    // sizes that are no multiple of a tile or a block
      {{384, 129, 31}, 520, 400},
      {{0, 0, 0}, 256, 128},
      {{300, 3, 512}, 1408, 272},
      {{16, 17, 33, 49, 80, 81, 112, 113, 129, 145, 161, 177, 192}, 136, 208},  // every width
  };
  const TestStream stream;
  int index = 0;
  for (const Case& c : cases) {
    const Product p(c, Values::Integers, 100 + static_cast<std::uint64_t>(index));
    const std::vector<double> want = p.outputs(GroupedEpilogue::Store);
    for (const Variant& variant : kVariants) {
      for (const int sms : {132, 6, 2}) {
        const Device<Bf16> out(want.size());
        DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant.how, GroupedEpilogue::Store, sms, out.get()), stream.get()));
        stream.wait();
        check_exact("case " + std::to_string(index) + ", " + variant.name + ", " + std::to_string(sms) + " SMs",
                    out.read(), want);
        CHECK(p.ticket.read() == std::vector<std::int32_t>{0, 0});  // ready for the next launch
      }
    }
    ++index;
  }
}

TEST_CASE("fp8 grouped: SwiGLU in the epilogue is within rounding of fp64") {
  const TestStream stream;
  const Product p({{5, 0, 200, 128}, 272, 256}, Values::Random, 7);
  const std::vector<double> want = p.outputs(GroupedEpilogue::SwiGlu);
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 2}) {
      const Device<Bf16> out(want.size());
      DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant.how, GroupedEpilogue::SwiGlu, sms, out.get()), stream.get()));
      stream.wait();
      // One rounding to bf16, 2^-10 on average, and the tensor cores' short sums over 128.
      check_close(std::string("fp8 SwiGLU, ") + variant.name + ", " + std::to_string(sms) + " SMs", widen(out.read()),
                  want, 5e-3);
    }
  }
}

TEST_CASE("fp8 grouped: large random products agree with fp64, and tile and SM count do not change a bit") {
  const TestStream stream;
  constexpr int kColumns = 1536;
  const Product p({{700, 1, 0, 300, 129, 1024}, kColumns, 7168}, Values::Random, 11);
  std::vector<Bf16> first;
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 100, 64}) {
      const Device<Bf16> out(z(std::int64_t{p.total} * kColumns));
      DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant.how, GroupedEpilogue::Store, sms, out.get()), stream.get()));
      stream.wait();
      const std::vector<Bf16> got = out.read();
      if (first.empty()) {
        first = got;
      } else {
        CHECK_MESSAGE(got == first, variant.name << " on " << sms << " SMs gave other bits");
      }
    }
  }
  constexpr int kSamples = 20000;
  std::vector<double> got(kSamples), want(kSamples);
  parallel(kSamples, [&](std::int64_t i) {
    const int row = pick(1, static_cast<std::uint64_t>(i), p.total),
              column = pick(2, static_cast<std::uint64_t>(i), kColumns);
    got[z(i)] = static_cast<double>(to_float(first[z(std::int64_t{row} * kColumns + column)]));
    want[z(i)] = p.output(row, column, GroupedEpilogue::Store);
  });
  check_close("fp8, 2154 x 1536 x 7168", got, want, 5e-3);
}

TEST_CASE("fp8 grouped: rows go where the row map says and no other byte is touched") {
  const TestStream stream;
  const Product p({{40, 0, 133}, 136, 128}, Values::Integers, 21);
  std::vector<std::int32_t> map;
  for (int i = 0; i < p.total; ++i) map.push_back(i * 7 % 400);  // 7 and 400 share no factor
  const Device<std::int32_t> row_map(map);
  std::vector<int> source(400, -1);
  for (int i = 0; i < p.total; ++i) source[z(map[z(i)])] = i;
  for (const Variant& variant : kVariants) {
    const Device<Bf16> out(std::size_t{400} * 144);
    GroupedGemmArgs args = p.args(variant.how, GroupedEpilogue::Store, 132, out.get());
    args.row_map = row_map.get();
    args.c_stride = 144;  // eight columns of guard behind every row
    DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
    stream.wait();
    const std::vector<Bf16> got = out.read();
    int wrong = 0;
    for (int r = 0; r < 400; ++r) {
      for (int j = 0; j < 144; ++j) {
        const Bf16 v = got[z(r * 144 + j)];
        const int from = source[z(r)];
        const Bf16 expected = from < 0 || j >= 136 ? Bf16{0xffff} : to_bf16(p.output(from, j, GroupedEpilogue::Store));
        wrong += v != expected && !(v == 0x8000 && expected == 0);
      }
    }
    CHECK_MESSAGE(wrong == 0, variant.name << ": " << wrong << " elements wrong or touched");
  }
}

TEST_CASE("fp8 grouped: as many SMs work as asked for, and the bits repeat in a graph") {
  const TestStream stream;
  const Product p({{200, 0, 77, 400}, 1024, 512}, Values::Random, 31);
  const Device<Bf16> out(z(std::int64_t{p.total} * 1024));
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 112, 64, 20, 2}) {
      const Device<std::uint32_t> ids(z(sms));
      GroupedGemmArgs args = p.args(variant.how, GroupedEpilogue::Store, sms, out.get());
      args.sm_ids = ids.get();
      DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
      stream.wait();
      const std::vector<std::uint32_t> got = ids.read();
      const std::set<std::uint32_t> distinct(got.begin(), got.end());
      CHECK_MESSAGE(static_cast<int>(distinct.size()) == sms,
                    variant.name << ": " << distinct.size() << " distinct SMs of " << sms);
    }
    const GroupedGemmArgs args = p.args(variant.how, GroupedEpilogue::Store, 132, out.get());
    check_repeats(stream, out, [&] { DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get())); });
  }
}

TEST_CASE("fp8 grouped: shapes outside the contract are refused") {
  const Product p({{8}, 128, 128}, Values::Integers, 61);
  const Device<Bf16> out(std::size_t{8} * 128);
  GroupedGemmArgs args = p.args(kVariants[0].how, GroupedEpilogue::Store, 3, out.get());
  args.w_scale = nullptr;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
  args.w_scale = p.w_scale.get();
  args.ticket = nullptr;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
  args.ticket = p.ticket.get();
  args.k = 136;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
  args.k = 128;
  args.tile = GroupedTile::Columns;
  args.tuning.columns = 160;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("fp8 rows: bf16 rows are quantised in the order asked for, as the CPU does it") {
  const TestStream stream;
  for (const int width : {128, 144, 1408, 7168}) {
    constexpr int kRows = 37, kTaken = 23;
    std::vector<Bf16> rows = random_bf16(z(std::int64_t{kRows} * width), 3, 5.0);
    std::fill(rows.begin(), rows.begin() + 128, Bf16{0});  // a block of zeros
    std::vector<std::int32_t> order;
    for (int i = 0; i < kTaken; ++i) order.push_back(i * 5 % kRows);
    const std::int64_t stride = grouped_scale_stride(kTaken + 2);
    const Device<Bf16> in(rows);
    const Device<std::int32_t> row(order), offset(std::vector<std::int32_t>{0, 9, kTaken});
    const Device<std::uint8_t> out(z(std::int64_t{kTaken} * width));
    const Device<float> scales(z(blocks_of(width) * stride));
    QuantiseRowsArgs q;
    q.rows = in.get();
    q.row = row.get();
    q.offset = offset.get();
    q.experts = 2;
    q.width = width;
    q.out = out.get();
    q.out_scales = scales.get();
    q.scale_stride = stride;
    q.blocks = 2;
    DBO_TEST_CUDA(launch_quantise_rows(q, stream.get()));
    stream.wait();
    const std::vector<std::uint8_t> got = out.read();
    const std::vector<float> got_scale = scales.read();
    int wrong_codes = 0, wrong_scales = 0;
    for (int r = 0; r < kTaken; ++r) {
      for (int b = 0; b < blocks_of(width); ++b) {
        const int begin = b * kScaleBlock, end = std::min(width, begin + kScaleBlock);
        const auto x = [&](int i) { return to_float(rows[z(std::int64_t{order[z(r)]} * width + i)]); };
        float amax = kMinAmax;
        for (int i = begin; i < end; ++i) amax = std::max(amax, std::fabs(x(i)));
        const float factor = kFp8Max / amax;
        for (int i = begin; i < end; ++i) {
          wrong_codes += got[z(std::int64_t{r} * width + i)] != dbo::fp8::to_e4m3(x(i) * factor);
        }
        const float scale = amax / kFp8Max;
        wrong_scales += got_scale[z(b * stride + r)] != scale;
      }
    }
    CHECK_MESSAGE(wrong_codes == 0, "width " << width << ": " << wrong_codes << " codes differ");
    CHECK_MESSAGE(wrong_scales == 0, "width " << width << ": " << wrong_scales << " scales differ");
  }
}

TEST_CASE("fp8 rows: e4m3 rows are copied with their scales") {
  const TestStream stream;
  constexpr int kRows = 6, kWidth = 384;
  std::vector<std::uint8_t> bytes(std::size_t{kRows} * kWidth);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(pick(9, i, 0x7f));
  std::vector<float> scale;
  for (int i = 0; i < kRows * 3; ++i) scale.push_back(static_cast<float>(i + 1));
  const std::vector<std::int32_t> order{4, 1, 1, 5, 0};
  const Device<std::uint8_t> in(bytes), out(order.size() * kWidth);
  const Device<float> in_scales(scale), out_scales(std::size_t{3} * 8);
  const Device<std::int32_t> row(order), offset(std::vector<std::int32_t>{0, 5});
  QuantiseRowsArgs q;
  q.type = ElementType::Fp8E4m3;
  q.rows = in.get();
  q.scales = in_scales.get();
  q.row = row.get();
  q.offset = offset.get();
  q.experts = 1;
  q.width = kWidth;
  q.out = out.get();
  q.out_scales = out_scales.get();
  q.scale_stride = 8;
  q.blocks = 3;
  DBO_TEST_CUDA(launch_quantise_rows(q, stream.get()));
  stream.wait();
  const std::vector<std::uint8_t> got = out.read();
  const std::vector<float> got_scale = out_scales.read();
  for (std::size_t r = 0; r < order.size(); ++r) {
    CHECK(std::equal(got.begin() + static_cast<std::ptrdiff_t>(r * kWidth),
                     got.begin() + static_cast<std::ptrdiff_t>((r + 1) * kWidth), bytes.begin() + order[r] * kWidth));
    for (std::size_t b = 0; b < 3; ++b) CHECK(got_scale[b * 8 + r] == scale[z(order[r] * 3) + b]);
  }
}
