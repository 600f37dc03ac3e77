#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/compute/grouped_gemm.h"
#include "tests/kernels/cuda/compute_support.h"

using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

struct Case {
  std::vector<int> rows;  // of each expert
  int n, k;
};

/// Kernel and how it goes about its work.
struct Variant {
  const char* name;
  GroupedTile tile;
  GroupedTuning tuning;
};
constexpr Variant kVariants[] = {{"columns", GroupedTile::Columns, {}},
                                 {"tokens", GroupedTile::Tokens, {}},
                                 {"tokens, most 64", GroupedTile::Tokens, {64}},
                                 {"tokens, most 136", GroupedTile::Tokens, {136}},
                                 {"tokens, mixed", GroupedTile::Tokens, {0, TokenOrder::Mixed}},
                                 {"tokens, most 64, mixed", GroupedTile::Tokens, {64, TokenOrder::Mixed}}};

std::vector<std::int32_t> offsets(const std::vector<int>& rows) {
  std::vector<std::int32_t> o{0};
  for (const int r : rows) o.push_back(o.back() + r);
  return o;
}

/// One grouped product with its inputs on both sides.
class Product {
 public:
  Product(const Case& c, bool integers, std::uint64_t seed)
      : shape(c), offset_host(offsets(c.rows)), total(offset_host.back()), experts(static_cast<int>(c.rows.size())) {
    const auto a_count = static_cast<std::size_t>(std::max(total, 1)) * static_cast<std::size_t>(c.k);
    const auto w_count =
        static_cast<std::size_t>(experts) * static_cast<std::size_t>(c.n) * static_cast<std::size_t>(c.k);
    a_host = integers ? random_integers(a_count, seed, 2) : random_bf16(a_count, seed);
    w_host = integers ? random_integers(w_count, seed + 1, 2)
                      : random_bf16(w_count, seed + 1, std::sqrt(3.0 / static_cast<double>(c.k)));
    a = Device<Bf16>(a_host);
    w = Device<Bf16>(w_host);
    offset = Device<std::int32_t>(offset_host);
    ticket = Device<std::int32_t>(std::vector<std::int32_t>{0, 0});
    DBO_TEST_CUDA(find_tensor_map_encoder(encoder));
    DBO_TEST_CUDA(prepare_grouped_gemm());
  }

  GroupedGemmArgs args(const Variant& variant, GroupedEpilogue epilogue, int sms, Bf16* out) const {
    GroupedGemmArgs g;
    DBO_TEST_CUDA(make_grouped_a_map(encoder, a.get(), std::max(total, 1), shape.k, g.a));
    DBO_TEST_CUDA(make_grouped_w_map(encoder, w.get(), experts, shape.n, shape.k, g.w));
    g.offset = offset.get();
    g.c = out;
    g.c_stride = epilogue == GroupedEpilogue::SwiGlu ? shape.n / 2 : shape.n;
    g.experts = experts;
    g.n = shape.n;
    g.k = shape.k;
    g.sms = sms;
    g.tile = variant.tile;
    g.tuning = variant.tuning;
    g.epilogue = epilogue;
    g.ticket = ticket.get();
    return g;
  }

  double dot(int row, int expert, int column) const {
    const Bf16* const x = a_host.data() + static_cast<std::ptrdiff_t>(row) * shape.k;
    const Bf16* const y = w_host.data() + (static_cast<std::ptrdiff_t>(expert) * shape.n + column) * shape.k;
    double sum = 0;
    for (int i = 0; i < shape.k; ++i) sum += static_cast<double>(to_float(x[i])) * static_cast<double>(to_float(y[i]));
    return sum;
  }
  int expert_of(int row) const {
    return static_cast<int>(std::upper_bound(offset_host.begin(), offset_host.end(), row) - offset_host.begin()) - 1;
  }
  double output(int row, int column, GroupedEpilogue epilogue) const {
    const int e = expert_of(row);
    if (epilogue == GroupedEpilogue::Store) return dot(row, e, column);
    const int gate_row = column / 8 * 16 + column % 8;
    const double gate = dot(row, e, gate_row), up = dot(row, e, gate_row + 8);
    return gate / (1 + std::exp(-gate)) * up;
  }

  Case shape;
  std::vector<std::int32_t> offset_host;
  int total, experts;
  std::vector<Bf16> a_host, w_host;
  Device<Bf16> a, w;
  Device<std::int32_t> offset, ticket;
  TensorMapEncoder encoder;
};

}  // namespace

TEST_CASE("grouped: small integers are exact for empty experts, one row, odd sizes, every tile") {
  const Case cases[] = {
      {{128}, 256, 64},                   // one full tile
      {{1}, 128, 64},                     // one row
      {{0, 5, 0, 130, 64, 0}, 256, 128},  // empty experts
      {{7, 33, 257, 1, 96}, 264, 72},     // sizes that are no multiple of a tile
      {{384, 129, 31}, 520, 200},
      {{0, 0, 0}, 256, 64},
      {{300, 3, 512}, 1408, 136},
      {{1000, 0, 2, 65, 256, 255, 95, 97, 193}, 136, 72},  // widths of tiles of tokens, the rest of them:
      {{16, 17, 33, 49, 80, 81, 112, 113, 129, 145, 161, 177, 192}, 272, 200},
      {{8, 9, 24, 40, 56, 65, 72, 88, 104, 120, 121, 136, 137, 152, 153, 168, 169, 176, 177, 184, 185, 257}, 264, 136},
  };
  const TestStream stream;
  int index = 0;
  for (const Case& c : cases) {
    const Product p(c, true, 100 + static_cast<std::uint64_t>(index));
    std::vector<double> want(static_cast<std::size_t>(p.total) * static_cast<std::size_t>(c.n));
    parallel(p.total, [&](std::int64_t row) {
      for (int j = 0; j < c.n; ++j) {
        want[static_cast<std::size_t>(row * c.n + j)] = p.output(static_cast<int>(row), j, GroupedEpilogue::Store);
      }
    });
    for (const Variant& variant : kVariants) {
      for (const int sms : {132, 6, 2}) {
        const Device<Bf16> out(want.size());
        DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant, GroupedEpilogue::Store, sms, out.get()), stream.get()));
        stream.wait();
        check_exact("case " + std::to_string(index) + ", tile " + variant.name + ", " + std::to_string(sms) + " SMs",
                    out.read(), want);
        CHECK(p.ticket.read() == std::vector<std::int32_t>{0, 0});  // ready for the next launch
      }
    }
    ++index;
  }
}

TEST_CASE("grouped: SwiGLU in the epilogue is within rounding of fp64") {
  const TestStream stream;
  const Product p({{5, 0, 200, 128}, 272, 192}, false, 7);
  std::vector<double> want(static_cast<std::size_t>(p.total) * 136);
  parallel(p.total, [&](std::int64_t row) {
    for (int j = 0; j < 136; ++j) {
      want[static_cast<std::size_t>(row * 136 + j)] = p.output(static_cast<int>(row), j, GroupedEpilogue::SwiGlu);
    }
  });
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 2}) {
      const Device<Bf16> out(want.size());
      DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant, GroupedEpilogue::SwiGlu, sms, out.get()), stream.get()));
      stream.wait();
      // One rounding to bf16: 2^-9 at most, about 2^-10 on average.
      check_close(std::string("SwiGLU, ") + variant.name + ", " + std::to_string(sms) + " SMs", widen(out.read()), want,
                  3e-3);
    }
  }
}

TEST_CASE("grouped: large random products agree with fp64, and tile and SM count do not change a bit") {
  const TestStream stream;
  const Product p({{700, 1, 0, 300, 129, 1024}, 1536, 2048}, false, 11);
  std::vector<Bf16> first;
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 100, 64}) {
      const Device<Bf16> out(static_cast<std::size_t>(p.total) * 1536);
      DBO_TEST_CUDA(launch_grouped_gemm(p.args(variant, GroupedEpilogue::Store, sms, out.get()), stream.get()));
      stream.wait();
      const std::vector<Bf16> got = out.read();
      if (first.empty()) {
        first = got;
      } else {
        CHECK_MESSAGE(got == first, "tile " << variant.name << " on " << sms << " SMs gave other bits");
      }
    }
  }
  constexpr int kSamples = 20000;
  std::vector<double> got(kSamples), want(kSamples);
  parallel(kSamples, [&](std::int64_t i) {
    const int row = pick(1, static_cast<std::uint64_t>(i), p.total),
              column = pick(2, static_cast<std::uint64_t>(i), 1536);
    got[static_cast<std::size_t>(i)] =
        static_cast<double>(to_float(first[static_cast<std::size_t>(row) * 1536 + static_cast<std::size_t>(column)]));
    want[static_cast<std::size_t>(i)] = p.output(row, column, GroupedEpilogue::Store);
  });
  check_close("2154 x 1536 x 2048", got, want, 3e-3);
}

TEST_CASE("grouped: rows go where the row map says and no other byte is touched") {
  const TestStream stream;
  const Product p({{40, 0, 133}, 128, 64}, true, 21);
  std::vector<std::int32_t> map(static_cast<std::size_t>(p.total));
  for (std::size_t i = 0; i < map.size(); ++i)
    map[i] = static_cast<std::int32_t>((i * 7) % 400);  // 7 and 400 share no factor
  const Device<std::int32_t> row_map(map);
  for (const Variant& variant : kVariants) {
    const Device<Bf16> out(std::size_t{400} * 136);
    GroupedGemmArgs args = p.args(variant, GroupedEpilogue::Store, 132, out.get());
    args.row_map = row_map.get();
    args.c_stride = 136;  // eight columns of guard behind every row
    DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
    stream.wait();
    const std::vector<Bf16> got = out.read();
    std::vector<int> source(400, -1);
    for (std::size_t i = 0; i < map.size(); ++i) source[static_cast<std::size_t>(map[i])] = static_cast<int>(i);
    int wrong = 0;
    for (int r = 0; r < 400; ++r) {
      for (int j = 0; j < 136; ++j) {
        const Bf16 v = got[static_cast<std::size_t>(r * 136 + j)];
        const int from = source[static_cast<std::size_t>(r)];
        const Bf16 expected = from < 0 || j >= 128 ? Bf16{0xffff} : to_bf16(p.output(from, j, GroupedEpilogue::Store));
        wrong += v != expected && !(v == 0x8000 && expected == 0);
      }
    }
    CHECK_MESSAGE(wrong == 0, wrong << " elements wrong or touched, tile " << variant.name);
  }
}

TEST_CASE("grouped: as many SMs work as asked for, each with one block") {
  const TestStream stream;
  const Product p({{1024, 1024}, 2048, 512}, false, 31);
  const Device<Bf16> out(std::size_t{2048} * 2048);
  for (const Variant& variant : kVariants) {
    for (const int sms : {132, 112, 64, 20, 2}) {
      const Device<std::uint32_t> ids(static_cast<std::size_t>(sms));
      GroupedGemmArgs args = p.args(variant, GroupedEpilogue::Store, sms, out.get());
      args.sm_ids = ids.get();
      DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
      stream.wait();
      const std::vector<std::uint32_t> got = ids.read();
      const std::set<std::uint32_t> distinct(got.begin(), got.end());
      CHECK_MESSAGE(static_cast<int>(distinct.size()) == sms,
                    "tile " << variant.name << ": " << distinct.size() << " distinct SMs of " << sms);
      CHECK(*distinct.rbegin() < 132);
    }
  }
}

TEST_CASE("grouped: the same bits on repeat and in graph replay") {
  const TestStream stream;
  const Product p({{200, 0, 77, 400}, 512, 512}, false, 41);
  for (const Variant& variant : kVariants) {
    const Device<Bf16> out(static_cast<std::size_t>(p.total) * 512);
    const GroupedGemmArgs args = p.args(variant, GroupedEpilogue::Store, 132, out.get());
    check_repeats(stream, out, [&] { DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get())); });
  }
}

TEST_CASE("grouped: launches that begin early read what those before them wrote, and write when those have read") {
  const TestStream stream;
  const Product p({{200, 0, 77, 400}, 512, 512}, false, 71);
  const auto numbers = static_cast<std::size_t>(p.total) * 512;
  for (const Variant& variant : kVariants) {
    const Device<Bf16> one(numbers), two(numbers);
    // a to one, one to two, two to one, one to two: what is overwritten has just been read.
    const auto issue = [&](bool early) {
      DBO_TEST_CUDA(cudaMemsetAsync(one.get(), 0xff, numbers * sizeof(Bf16), stream.get()));
      DBO_TEST_CUDA(cudaMemsetAsync(two.get(), 0xff, numbers * sizeof(Bf16), stream.get()));
      const Bf16* from = p.a.get();
      for (int i = 0; i < 4; ++i) {
        Bf16* const to = i % 2 == 0 ? one.get() : two.get();
        GroupedGemmArgs args = p.args(variant, GroupedEpilogue::Store, 132, to);
        DBO_TEST_CUDA(make_grouped_a_map(p.encoder, from, p.total, 512, args.a));
        args.early_start = early;
        DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
        from = to;
      }
    };
    issue(false);
    stream.wait();
    const std::vector<Bf16> want = two.read();
    for (int i = 0; i < 10; ++i) {
      issue(true);
      stream.wait();
      CHECK_MESSAGE(two.read() == want, "tile " << variant.name << ", repeat " << i);
    }
    check_repeats(stream, two, [&] { issue(true); });
    CHECK(two.read() == want);
  }
}

TEST_CASE("grouped: counts are read on the device") {
  const TestStream stream;
  const Product p({{64, 64}, 128, 64}, true, 51);
  const Device<Bf16> out(std::size_t{128} * 128);
  const GroupedGemmArgs args = p.args(kVariants[0], GroupedEpilogue::Store, 4, out.get());
  const std::vector<std::int32_t> changed{0, 10, 10};
  copy_to_device(p.offset.get(), changed.data(), 12);
  DBO_TEST_CUDA(launch_grouped_gemm(args, stream.get()));
  stream.wait();
  const std::vector<Bf16> got = out.read();
  int written = 0;
  for (const Bf16 v : got) written += v != 0xffff;
  CHECK(written == 10 * 128);
}

TEST_CASE("grouped: shapes outside the contract are refused") {
  const Product p({{8}, 128, 64}, true, 61);
  const Device<Bf16> out(std::size_t{8} * 128);
  GroupedGemmArgs args = p.args(kVariants[1], GroupedEpilogue::Store, 3, out.get());
  args.ticket = nullptr;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
  args.ticket = p.ticket.get();
  args.tuning.most_tokens = 208;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
  args.tuning.most_tokens = 0;
  args.k = 12;
  CHECK(launch_grouped_gemm(args, nullptr) == cudaErrorInvalidValue);
}
