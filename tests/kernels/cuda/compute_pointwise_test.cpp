#include <cmath>

#include "kernels/compute/limits.h"
#include "kernels/compute/pointwise.h"
#include "tests/kernels/cuda/compute_support.h"

using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

std::size_t z(int n) {
  return static_cast<std::size_t>(n);
}

struct Norm {
  std::vector<double> sum, out;
};

/// What rms_norm computes, in fp64 but for the rounding of the sum.
Norm reference_norm(const std::vector<std::vector<double>>& summands, const std::vector<double>& weight, int rows,
                    int width) {
  Norm n;
  n.sum.resize(z(rows) * z(width));
  n.out.resize(n.sum.size());
  for (int r = 0; r < rows; ++r) {
    double squares = 0;
    for (int i = 0; i < width; ++i) {
      const std::size_t at = z(r) * z(width) + z(i);
      double x = 0;
      for (const auto& s : summands) x += s[at];
      n.sum[at] = static_cast<double>(to_float(to_bf16(x)));
      squares += n.sum[at] * n.sum[at];
    }
    const double scale = 1 / std::sqrt(squares / width + 1e-6);
    for (int i = 0; i < width; ++i) {
      const std::size_t at = z(r) * z(width) + z(i);
      n.out[at] = n.sum[at] * scale * weight[z(i)];
    }
  }
  return n;
}

std::vector<float> rope_host(int positions, int dim) {
  std::vector<float> t;
  for (int p = 0; p < positions; ++p) {
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / dim);
      t.push_back(static_cast<float>(std::cos(angle)));
      t.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return t;
}

}  // namespace

TEST_CASE("pointwise: norms of every width class, with and without summands") {
  const TestStream stream;
  for (const int width : {8, 512, 1536, 2048, 2056, 7168, 16384}) {
    for (int adds = 0; adds <= 2; ++adds) {
      const int rows = 5;
      const auto count = z(rows) * z(width);
      std::vector<std::vector<double>> parts;
      std::vector<Device<Bf16>> device;
      for (int i = 0; i <= adds; ++i) {
        const std::vector<Bf16> v = random_integers(count, static_cast<std::uint64_t>(width + i), 100);
        parts.push_back(widen(v));
        device.emplace_back(v);
      }
      const std::vector<Bf16> weight_host = random_bf16(z(width), 3);
      const Device<Bf16> weight(weight_host), out(count);
      RmsNormArgs args;
      args.in = args.sum = device[0].get();
      args.in_stride = width;
      for (int i = 0; i < adds; ++i) args.add[i] = device[z(i) + 1].get();
      args.weight = weight.get();
      args.out = out.get();
      args.rows = rows;
      args.width = width;
      DBO_TEST_CUDA(launch_rms_norm(args, stream.get()));
      stream.wait();
      const Norm want = reference_norm(parts, widen(weight_host), rows, width);
      const std::string what = "width " + std::to_string(width) + ", " + std::to_string(adds) + " summands";
      check_exact("sum, " + what, device[0].read(), want.sum);
      check_close("norm, " + what, widen(out.read()), want.out, 3e-3);
    }
  }
}

TEST_CASE("pointwise: a norm can pick rows and read wide rows") {
  const TestStream stream;
  const std::vector<Bf16> in_host = random_bf16(10 * 96, 1);
  const Device<Bf16> in(in_host), weight(random_integers(64, 2, 0)), out(3 * 64);
  const std::vector<Bf16> ones(64, to_bf16(1));
  copy_to_device(weight.get(), ones.data(), 128);
  const Device<std::int32_t> index(std::vector<std::int32_t>{7, 0, 9});
  RmsNormArgs args;
  args.in = in.get();
  args.in_stride = 96;
  args.row_index = index.get();
  args.weight = weight.get();
  args.out = out.get();
  args.rows = 3;
  args.width = 64;
  DBO_TEST_CUDA(launch_rms_norm(args, stream.get()));
  stream.wait();
  std::vector<double> picked;
  for (const int r : {7, 0, 9}) {
    for (int i = 0; i < 64; ++i) picked.push_back(static_cast<double>(to_float(in_host[z(r * 96 + i)])));
  }
  check_close("picked rows", widen(out.read()), reference_norm({picked}, std::vector<double>(64, 1.0), 3, 64).out,
              3e-3);
}

TEST_CASE("pointwise: the rope table is the fp64 table rounded") {
  const TestStream stream;
  for (const int dim : {64, 128}) {
    const int positions = 5000;
    const Device<float> table(z(positions) * z(dim));
    DBO_TEST_CUDA(launch_rope_table({table.get(), positions, dim, 10000.0}, stream.get()));
    stream.wait();
    const std::vector<float> got = table.read(), want = rope_host(positions, dim);
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i] - want[i])));
    CHECK(worst < 2e-7);
  }
}

TEST_CASE("pointwise: MLA writes normalised latent and rotated key where the slots say, padding nowhere") {
  const TestStream stream;
  const int tokens = 7, stride = 600, slots = 20;
  const std::vector<Bf16> kv_host = random_bf16(z(tokens * stride), 1), weight_host = random_bf16(512, 2);
  const std::vector<std::int32_t> positions{0, 1, 17, 99, 5, 63, 64}, slot{3, -1, 19, 0, 7, -1, 11};
  const std::vector<float> rope = rope_host(100, 64);
  const Device<Bf16> kv(kv_host), weight(weight_host), cache(z(slots) * 576);
  const Device<float> table(rope);
  const Device<std::int32_t> position(positions), mapping(slot);
  MlaWriteArgs args;
  args.kv = kv.get() + 8;
  args.kv_stride = stride;
  args.weight = weight.get();
  args.rope = table.get();
  args.positions = position.get();
  args.slot_mapping = mapping.get();
  args.cache = cache.get();
  args.tokens = tokens;
  DBO_TEST_CUDA(launch_mla_write(args, stream.get()));
  stream.wait();
  const std::vector<Bf16> got = cache.read();
  std::vector<double> have, want;
  int untouched = 0;
  for (std::size_t i = 0; i < got.size(); ++i) untouched += got[i] == 0xffff;
  CHECK(untouched == (slots - 5) * 576);
  for (int t = 0; t < tokens; ++t) {
    if (slot[z(t)] < 0) continue;
    std::vector<double> x;
    for (int i = 0; i < 576; ++i) x.push_back(static_cast<double>(to_float(kv_host[z(t * stride + 8 + i)])));
    const Norm n = reference_norm({std::vector<double>(x.begin(), x.begin() + 512)}, widen(weight_host), 1, 512);
    want.insert(want.end(), n.out.begin(), n.out.end());
    for (int i = 0; i < 32; ++i) {
      const double c = static_cast<double>(rope[z(positions[z(t)] * 64 + 2 * i)]);
      const double s = static_cast<double>(rope[z(positions[z(t)] * 64 + 2 * i + 1)]);
      const double a = x[z(512 + 2 * i)], b = x[z(513 + 2 * i)];
      want.push_back(a * c - b * s);
      want.push_back(b * c + a * s);
    }
    for (int i = 0; i < 576; ++i) have.push_back(static_cast<double>(to_float(got[z(slot[z(t)] * 576 + i)])));
  }
  check_close("MLA cache rows", have, want, 3e-3);
}

TEST_CASE("pointwise: MLA queries are rotated in place and into the absorbed layout") {
  const TestStream stream;
  const int tokens = 3, heads = 5, stride = heads * 192 + 24;
  const std::vector<Bf16> q_host = random_bf16(z(tokens * stride), 1);
  const std::vector<std::int32_t> positions{4, 0, 31};
  const std::vector<float> rope = rope_host(40, 64);
  const Device<Bf16> q(q_host), absorbed(z(tokens * heads) * 576);
  const Device<float> table(rope);
  const Device<std::int32_t> position(positions);
  MlaRotateArgs args;
  args.q = q.get();
  args.q_stride = stride;
  args.out = absorbed.get();
  args.out_stride = heads * 576;
  args.out_head_stride = 576;
  args.out_column = 512;
  args.rope = table.get();
  args.positions = position.get();
  args.tokens = tokens;
  args.heads = heads;
  DBO_TEST_CUDA(launch_mla_rotate(args, stream.get()));
  args.out = q.get();
  args.out_stride = stride;
  args.out_head_stride = 192;
  args.out_column = 128;
  DBO_TEST_CUDA(launch_mla_rotate(args, stream.get()));
  stream.wait();
  std::vector<double> want, apart, in_place;
  const std::vector<Bf16> got_q = q.read(), got_absorbed = absorbed.read();
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < 64; ++i) {
        const double c = static_cast<double>(rope[z(positions[z(t)] * 64 + i / 2 * 2)]);
        const double s = static_cast<double>(rope[z(positions[z(t)] * 64 + i / 2 * 2 + 1)]);
        const int at = t * stride + h * 192 + 128 + i / 2 * 2;
        const double a = static_cast<double>(to_float(q_host[z(at)])),
                     b = static_cast<double>(to_float(q_host[z(at + 1)]));
        want.push_back(i % 2 == 0 ? a * c - b * s : b * c + a * s);
        in_place.push_back(static_cast<double>(to_float(got_q[z(t * stride + h * 192 + 128 + i)])));
        apart.push_back(static_cast<double>(to_float(got_absorbed[z((t * heads + h) * 576 + 512 + i)])));
      }
    }
  }
  check_close("rotated in place", in_place, want, 3e-3);
  check_close("rotated apart", apart, want, 3e-3);
  CHECK(got_q[0] == q_host[0]);
  CHECK(got_absorbed[0] == 0xffff);
}

TEST_CASE("pointwise: GQA adds the bias, normalises, rotates halves and writes keys and values") {
  const TestStream stream;
  const int tokens = 4, heads = 6, kv_heads = 2, all = heads + 2 * kv_heads, slots = 9;
  const std::vector<Bf16> qkv_host = random_bf16(z(tokens * all) * 128, 1), bias_host = random_bf16(z(all) * 128, 2),
                          q_weight_host = random_bf16(128, 3), k_weight_host = random_bf16(128, 4);
  const std::vector<std::int32_t> positions{0, 9, 30, 2}, slot{8, 2, -1, 0};
  const std::vector<float> rope = rope_host(40, 128);
  for (const bool norm : {false, true}) {
    const Device<Bf16> qkv(qkv_host), bias(bias_host), q_weight(q_weight_host), k_weight(k_weight_host),
        k_cache(z(slots * kv_heads) * 128), v_cache(z(slots * kv_heads) * 128);
    const Device<float> table(rope);
    const Device<std::int32_t> position(positions), mapping(slot);
    GqaWriteArgs args;
    args.qkv = qkv.get();
    args.bias = bias.get();
    args.q_weight = norm ? q_weight.get() : nullptr;
    args.k_weight = norm ? k_weight.get() : nullptr;
    args.rope = table.get();
    args.positions = position.get();
    args.slot_mapping = mapping.get();
    args.k_cache = k_cache.get();
    args.v_cache = v_cache.get();
    args.tokens = tokens;
    args.heads = heads;
    args.kv_heads = kv_heads;
    DBO_TEST_CUDA(launch_gqa_write(args, stream.get()));
    stream.wait();
    const std::vector<Bf16> got_q = qkv.read(), got_k = k_cache.read(), got_v = v_cache.read();
    std::vector<double> have, want;
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < all; ++h) {
        std::vector<double> x(128), y(128);
        double squares = 0;
        for (int i = 0; i < 128; ++i) {
          x[z(i)] = static_cast<double>(to_float(qkv_host[z((t * all + h) * 128 + i)])) +
                    static_cast<double>(to_float(bias_host[z(h * 128 + i)]));
          squares += x[z(i)] * x[z(i)];
        }
        const bool is_v = h >= heads + kv_heads, is_q = h < heads;
        if (norm && !is_v) {
          for (int i = 0; i < 128; ++i) {
            x[z(i)] *= static_cast<double>(to_float((is_q ? q_weight_host : k_weight_host)[z(i)])) /
                       std::sqrt(squares / 128 + 1e-6);
          }
        }
        y = x;
        for (int i = 0; i < 64 && !is_v; ++i) {
          const double c = static_cast<double>(rope[z(positions[z(t)] * 128 + 2 * i)]);
          const double s = static_cast<double>(rope[z(positions[z(t)] * 128 + 2 * i + 1)]);
          y[z(i)] = x[z(i)] * c - x[z(i + 64)] * s;
          y[z(i + 64)] = x[z(i + 64)] * c + x[z(i)] * s;
        }
        if (!is_q && slot[z(t)] < 0) continue;
        for (int i = 0; i < 128; ++i) {
          want.push_back(y[z(i)]);
          const int kv = (slot[z(t)] * kv_heads + (h - heads) % kv_heads) * 128 + i;
          have.push_back(static_cast<double>(to_float(is_q   ? got_q[z((t * all + h) * 128 + i)]
                                                      : is_v ? got_v[z(kv)]
                                                             : got_k[z(kv)])));
        }
      }
    }
    check_close(norm ? "GQA write with norm" : "GQA write", have, want, 3e-3);
    int untouched = 0;
    for (const Bf16 v : got_k) untouched += v == 0xffff;
    CHECK(untouched == (slots - 3) * kv_heads * 128);
  }
}

TEST_CASE("pointwise: SwiGLU takes gate and up from alternating blocks of 8") {
  const TestStream stream;
  const int rows = 37, width = 136;
  const std::vector<Bf16> in_host = random_bf16(z(rows * width * 2), 1, 4.0);
  const Device<Bf16> in(in_host), out(z(rows * width));
  DBO_TEST_CUDA(launch_swiglu({in.get(), out.get(), rows, width}, stream.get()));
  stream.wait();
  std::vector<double> want;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; ++i) {
      const std::size_t at = z(r * width * 2 + i / 8 * 16 + i % 8);
      const double g = static_cast<double>(to_float(in_host[at])), u = static_cast<double>(to_float(in_host[at + 8]));
      want.push_back(g / (1 + std::exp(-g)) * u);
    }
  }
  check_close("SwiGLU", widen(out.read()), want, 3e-3);
}

TEST_CASE("pointwise: embedding rows and random fills are what the CPU makes of them") {
  const TestStream stream;
  const Device<Bf16> table(std::size_t{50} * 264), out(std::size_t{4} * 264);
  FillArgs fill;
  fill.out = table.get();
  fill.count = 50 * 264;
  fill.seed = 77;
  fill.first = 5;
  fill.scale = 0.37f;
  fill.offset = 1.0f;
  DBO_TEST_CUDA(launch_fill(fill, stream.get()));
  const Device<std::int32_t> ids(std::vector<std::int32_t>{49, 0, 7, 7});
  DBO_TEST_CUDA(launch_embed({table.get(), ids.get(), out.get(), 4, 264}, stream.get()));
  stream.wait();
  const std::vector<Bf16> got = out.read();
  int wrong = 0;
  for (int t = 0; t < 4; ++t) {
    const int id = t == 0 ? 49 : t == 1 ? 0 : 7;
    for (int i = 0; i < 264; ++i) {
      const float x = 0.37f * uniform(77, static_cast<std::uint64_t>(5 + id * 264 + i));
      wrong += got[z(t * 264 + i)] != to_bf16(static_cast<double>(1.0f + x));
    }
  }
  CHECK(wrong == 0);
}
