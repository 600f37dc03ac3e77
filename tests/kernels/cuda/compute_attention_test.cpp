#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/compute/attention.h"
#include "tests/kernels/cuda/compute_support.h"

using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
double at(const std::vector<Bf16>& v, std::int64_t i) {
  return static_cast<double>(to_float(v[z(i)]));
}

constexpr float kScale = 0.07f;  // of the scores; about 1 / sqrt(192)

/// How the data of a case is made.
enum class Data {
  Random,
  Uniform,  // queries of zero: every visible key weighs the same; integer values and power-of-two contexts are exact
  OneHot,   // one key outweighs all others by far: the output is its value, exactly
};

/// Rows of the cache that belong to no context hold large finite numbers: a kernel that lets them in shows it.
template <class Fill>
void spoil_unused(const Paged& paged, std::int64_t row_elements, std::vector<Bf16>& cache, const Fill& keep) {
  std::vector<char> used(cache.size() / z(row_elements), 0);
  for (std::size_t r = 0; r < paged.seq_lens.size(); ++r) {
    for (int j = 0; j < paged.seq_lens[r]; ++j) used[z(paged.row(static_cast<int>(r), j))] = 1;
  }
  for (std::size_t row = 0; row < used.size(); ++row) {
    if (used[row]) {
      keep(static_cast<std::int64_t>(row));
      continue;
    }
    for (std::int64_t d = 0; d < row_elements; ++d) cache[row * z(row_elements) + z(d)] = to_bf16(3e4);
  }
}

/// The key that a query attends to in one-hot data.
int hot_key(int row, int visible) {
  return pick(777, static_cast<std::uint64_t>(row), visible);
}

struct MlaCase {
  std::vector<std::int32_t> seq_lens;
  int query_tokens, heads, sms;
  Data data;
};

/// Query rows (request, token, head) to compare: all when there are few, else a sample.
std::vector<int> sample(int rows, int most) {
  std::vector<int> s;
  if (rows <= most) {
    for (int i = 0; i < rows; ++i) s.push_back(i);
  } else {
    for (int i = 0; i < most; ++i) s.push_back(pick(31, static_cast<std::uint64_t>(i), rows));
  }
  return s;
}

void check_mla_decode(const std::string& what, const MlaCase& c, bool repeats = false) {
  const TestStream stream;
  const int requests = static_cast<int>(c.seq_lens.size()), tokens = requests * c.query_tokens, rows = tokens * c.heads;
  const Paged paged(c.seq_lens, 5);
  const bool random = c.data == Data::Random;
  std::vector<Bf16> cache =
      random ? random_bf16(z(paged.pages) * 64 * 576, 1) : random_integers(z(paged.pages) * 64 * 576, 1, 4);
  std::vector<Bf16> q = random ? random_bf16(z(rows) * 576, 2, 2.0) : std::vector<Bf16>(z(rows) * 576, 0);
  const auto visible = [&](int row) {
    const int request = row / (c.query_tokens * c.heads), token = row / c.heads % c.query_tokens;
    return c.seq_lens[z(request)] - c.query_tokens + token + 1;
  };
  if (c.data == Data::OneHot) {
    // Keys of +-1 in all 576 columns: only the key itself reaches the full product, 576 x 8; others stay far below.
    for (std::size_t i = 0; i < cache.size(); ++i) cache[i] = to_bf16(mix(9, i) % 2 == 0 ? 1 : -1);
    for (int r = 0; r < rows; ++r) {
      if (visible(r) <= 0) continue;
      const std::int64_t row = paged.row(r / (c.query_tokens * c.heads), hot_key(r, visible(r)));
      for (int d = 0; d < 576; ++d) q[z(r) * 576 + z(d)] = to_bf16(8 * at(cache, row * 576 + d));
    }
  }
  spoil_unused(paged, 576, cache, [](std::int64_t) {});

  const Device<Bf16> cache_device(cache), q_device(q), out(z(rows) * 512);
  const Device<std::int32_t> lens(paged.seq_lens), table(paged.block_table);
  const PartialSizes sizes = mla_decode_partials(c.sms);
  const Device<float> partial_o(z(sizes.o)), partial_sum(z(sizes.log2_sum));
  const Device<std::uint32_t> ids(z(c.sms));
  TensorMapEncoder encoder;
  DBO_TEST_CUDA(find_tensor_map_encoder(encoder));
  DBO_TEST_CUDA(prepare_attention());
  MlaDecodeArgs args;
  DBO_TEST_CUDA(make_mla_cache_map(encoder, cache_device.get(), paged.pages, args.cache));
  args.batch = {lens.get(), table.get(), paged.max_pages, requests, c.query_tokens};
  args.q = q_device.get();
  args.out = out.get();
  args.partials = {partial_o.get(), partial_sum.get()};
  args.heads = c.heads;
  args.scale = kScale;
  args.sms = c.sms;
  args.sm_ids = ids.get();
  const auto issue = [&] { DBO_TEST_CUDA(launch_mla_decode(args, stream.get())); };
  if (repeats) check_repeats(stream, out, issue);
  issue();
  stream.wait();
  // A block without keys ends at once and may leave its SM to another.
  int units = 0;
  for (const std::int32_t n : c.seq_lens) units += (n + 31) / 32;
  if (units >= c.sms) {
    const std::vector<std::uint32_t> sms = ids.read();
    CHECK_MESSAGE(std::set<std::uint32_t>(sms.begin(), sms.end()).size() == z(c.sms), what << ": SMs");
  }

  const std::vector<int> chosen = sample(rows, 300);
  const std::vector<Bf16> got_all = out.read();
  std::vector<double> want(chosen.size() * 512);
  std::vector<Bf16> got(want.size());
  parallel(static_cast<std::int64_t>(chosen.size()), [&](std::int64_t i) {
    const int r = chosen[z(i)], request = r / (c.query_tokens * c.heads);
    std::copy_n(got_all.begin() + std::int64_t{r} * 512, 512, got.begin() + i * 512);
    if (visible(r) <= 0) return;
    std::vector<double> query(576);
    for (int d = 0; d < 576; ++d) query[z(d)] = at(q, std::int64_t{r} * 576 + d);
    const auto element = [&](int j, int d) { return at(cache, paged.row(request, j) * 576 + d); };
    const std::vector<double> o = c.data == Data::OneHot
                                      ? std::vector<double>()
                                      : attend(query, visible(r), static_cast<double>(kScale), 512, element, element);
    for (int d = 0; d < 512; ++d) {
      want[z(i) * 512 + z(d)] = c.data == Data::OneHot ? element(hot_key(r, visible(r)), d) : o[z(d)];
    }
  });
  if (random) {
    // Probabilities are rounded to bf16 before they meet the values: 2^-9 each, averaged over the keys.
    check_close(what, widen(got), want, 6e-3);
  } else {
    check_exact(what, got, want);
  }
}

}  // namespace

TEST_CASE("mla decode: a query of zeros averages the visible values exactly") {
  check_mla_decode("16 heads", {{1, 2, 16, 32, 64, 128, 512}, 1, 16, 132, Data::Uniform});
  check_mla_decode("64 heads", {{1024, 4}, 1, 64, 132, Data::Uniform});
  check_mla_decode("128 heads", {{256, 8, 2048}, 1, 128, 132, Data::Uniform});
}

TEST_CASE("mla decode: one key that outweighs the others gives its value exactly") {
  check_mla_decode("16 heads", {{1, 31, 33, 100, 65, 640}, 1, 16, 132, Data::OneHot});
  check_mla_decode("128 heads", {{77, 300}, 1, 128, 132, Data::OneHot});
  check_mla_decode("3 query tokens, 20 heads", {{3, 50, 129}, 3, 20, 132, Data::OneHot});
}

TEST_CASE("mla decode: random data agrees with fp64 for any heads, query tokens, lengths and SMs") {
  check_mla_decode("one token of context", {{1}, 1, 16, 132, Data::Random});
  check_mla_decode("16 heads, mixed lengths",
                   {{1, 5, 0, 31, 32, 33, 64, 65, 700, 1500, 0, 96}, 1, 16, 132, Data::Random}, true);
  check_mla_decode("128 heads, mixed lengths", {{190, 1, 0, 2049, 640, 64}, 1, 128, 132, Data::Random}, true);
  check_mla_decode("2 query tokens, 128 heads", {{2, 190, 37, 515}, 2, 128, 132, Data::Random});
  check_mla_decode("1 head", {{300, 20}, 1, 1, 132, Data::Random});
  check_mla_decode("few SMs", {{300, 20, 1000, 64}, 1, 128, 2, Data::Random});
  check_mla_decode("odd SMs", {{300, 20, 1000, 64, 7, 129}, 1, 128, 37, Data::Random});
  check_mla_decode("long context", {{20000, 3}, 1, 16, 132, Data::Random});
}

namespace {

struct GqaCase {
  std::vector<std::int32_t> seq_lens;
  int query_tokens, heads, kv_heads, sms;
  Data data;
};

void check_gqa_decode(const std::string& what, const GqaCase& c, bool repeats = false) {
  const TestStream stream;
  const int requests = static_cast<int>(c.seq_lens.size()), tokens = requests * c.query_tokens, rows = tokens * c.heads;
  const int group = c.heads / c.kv_heads, row_elements = c.kv_heads * 128, stride = (c.heads + 2 * c.kv_heads) * 128;
  const Paged paged(c.seq_lens, 6);
  const bool random = c.data == Data::Random;
  const std::size_t count = z(paged.pages) * 64 * z(row_elements);
  std::vector<Bf16> k = random ? random_bf16(count, 1) : random_integers(count, 1, 4),
                    v = random ? random_bf16(count, 2) : random_integers(count, 2, 4);
  std::vector<Bf16> q =
      random ? random_bf16(z(tokens) * z(stride), 3, 4.0) : std::vector<Bf16>(z(tokens) * z(stride), 0);
  const auto visible = [&](int row) {
    return c.seq_lens[z(row / (c.query_tokens * c.heads))] - c.query_tokens + row / c.heads % c.query_tokens + 1;
  };
  const auto q_at = [&](int row, int d) { return std::int64_t{row / c.heads} * stride + row % c.heads * 128 + d; };
  if (c.data == Data::OneHot) {
    for (std::size_t i = 0; i < count; ++i) k[i] = to_bf16(mix(9, i) % 2 == 0 ? 1 : -1);
    for (int r = 0; r < rows; ++r) {
      if (visible(r) <= 0) continue;
      const std::int64_t row = paged.row(r / (c.query_tokens * c.heads), hot_key(r, visible(r)));
      for (int d = 0; d < 128; ++d)
        q[z(q_at(r, d))] = to_bf16(64 * at(k, row * row_elements + r % c.heads / group * 128 + d));
    }
  }
  spoil_unused(paged, row_elements, k, [](std::int64_t) {});
  spoil_unused(paged, row_elements, v, [](std::int64_t) {});
  const Device<Bf16> k_device(k), v_device(v), q_device(q), out(z(rows) * 128);
  const Device<std::int32_t> lens(paged.seq_lens), table(paged.block_table);
  const PartialSizes sizes = gqa_decode_partials(c.sms);
  const Device<float> partial_o(z(sizes.o)), partial_sum(z(sizes.log2_sum));
  const Device<std::uint32_t> ids(z(2 * c.sms));
  DBO_TEST_CUDA(prepare_attention());
  GqaDecodeArgs args;
  args.k_cache = k_device.get();
  args.v_cache = v_device.get();
  args.batch = {lens.get(), table.get(), paged.max_pages, requests, c.query_tokens};
  args.q = q_device.get();
  args.q_stride = stride;
  args.out = out.get();
  args.partials = {partial_o.get(), partial_sum.get()};
  args.heads = c.heads;
  args.kv_heads = c.kv_heads;
  args.scale = kScale;
  args.sms = c.sms;
  args.sm_ids = ids.get();
  const auto issue = [&] { DBO_TEST_CUDA(launch_gqa_decode(args, stream.get())); };
  if (repeats) check_repeats(stream, out, issue);
  issue();
  stream.wait();
  const std::vector<int> chosen = sample(rows, 600);
  const std::vector<Bf16> got_all = out.read();
  std::vector<double> want(chosen.size() * 128);
  std::vector<Bf16> got(want.size());
  parallel(static_cast<std::int64_t>(chosen.size()), [&](std::int64_t i) {
    const int r = chosen[z(i)], request = r / (c.query_tokens * c.heads), column = r % c.heads / group * 128;
    std::copy_n(got_all.begin() + std::int64_t{r} * 128, 128, got.begin() + i * 128);
    if (visible(r) <= 0) return;
    std::vector<double> query(128);
    for (int d = 0; d < 128; ++d) query[z(d)] = at(q, q_at(r, d));
    const auto key = [&](int j, int d) { return at(k, paged.row(request, j) * row_elements + column + d); };
    const auto value = [&](int j, int d) { return at(v, paged.row(request, j) * row_elements + column + d); };
    const std::vector<double> o = c.data == Data::OneHot
                                      ? std::vector<double>()
                                      : attend(query, visible(r), static_cast<double>(kScale), 128, key, value);
    for (int d = 0; d < 128; ++d) {
      want[z(i) * 128 + z(d)] = c.data == Data::OneHot ? value(hot_key(r, visible(r)), d) : o[z(d)];
    }
  });
  if (random) {
    check_close(what, widen(got), want, 6e-3);
  } else {
    check_exact(what, got, want);
  }
}

}  // namespace

TEST_CASE("gqa decode: a query of zeros averages the visible values exactly") {
  check_gqa_decode("32 heads of 4", {{1, 2, 16, 32, 64, 128, 1024}, 1, 32, 4, 132, Data::Uniform});
}

TEST_CASE("gqa decode: one key that outweighs the others gives its value exactly") {
  check_gqa_decode("64 heads of 4", {{1, 63, 65, 300, 640}, 1, 64, 4, 132, Data::OneHot});
  check_gqa_decode("3 query tokens, 24 heads of 2", {{3, 50, 129}, 3, 24, 2, 132, Data::OneHot});
}

TEST_CASE("gqa decode: random data agrees with fp64 for any heads, query tokens, lengths and SMs") {
  check_gqa_decode("one token of context", {{1}, 1, 8, 8, 132, Data::Random});
  check_gqa_decode("32 heads of 4, mixed lengths",
                   {{1, 5, 0, 31, 64, 65, 700, 1500, 0, 96}, 1, 32, 4, 132, Data::Random}, true);
  check_gqa_decode("96 heads of 8", {{190, 1, 2049, 64}, 1, 96, 8, 132, Data::Random}, true);
  check_gqa_decode("2 query tokens, 64 heads of 4", {{2, 190, 37, 515}, 2, 64, 4, 132, Data::Random});
  check_gqa_decode("40 heads of 8", {{300, 20}, 1, 40, 8, 132, Data::Random});
  check_gqa_decode("few SMs", {{300, 20, 1000, 64}, 1, 32, 8, 4, Data::Random});
  check_gqa_decode("long context", {{20000, 3}, 1, 32, 4, 132, Data::Random});
}

namespace {

/// Requests of a prefill: query length and context length.
struct PrefillCase {
  std::vector<std::pair<int, int>> requests;
  int heads, kv_heads;  // kv_heads 0: MLA
};

struct Prefill {
  std::vector<std::int32_t> query_start{0}, seq_lens, kv_start{0};
  int blocks = 0;
  explicit Prefill(const PrefillCase& c) {
    for (const auto& [query, seq] : c.requests) {
      query_start.push_back(query_start.back() + query);
      kv_start.push_back(kv_start.back() + seq);
      seq_lens.push_back(seq);
      blocks += (query + 127) / 128;
    }
  }
  int tokens() const { return query_start.back(); }
  int request_of(int token) const {
    return static_cast<int>(std::upper_bound(query_start.begin(), query_start.end(), token) - query_start.begin()) - 1;
  }
  int visible(int token) const {
    const int r = request_of(token);
    return seq_lens[z(r)] - (query_start[z(r + 1)] - token) + 1;
  }
};

void check_mla_prefill(const std::string& what, const PrefillCase& c, bool repeats = false) {
  const TestStream stream;
  const Prefill p(c);
  const Paged paged(p.seq_lens, 8);
  const int tokens = p.tokens(), keys = p.kv_start.back(), rows = tokens * c.heads;
  std::vector<Bf16> cache = random_bf16(z(paged.pages) * 64 * 576, 1);
  spoil_unused(paged, 576, cache, [](std::int64_t) {});
  const std::vector<Bf16> q = random_bf16(z(rows) * 192, 2, 4.0), kv = random_bf16(z(keys) * z(c.heads) * 256, 3);
  const Device<Bf16> cache_device(cache), q_device(q), kv_device(kv), gathered(z(keys) * 576), out(z(rows) * 128);
  const Device<std::int32_t> query_start(p.query_start), lens(p.seq_lens), kv_start(p.kv_start),
      table(paged.block_table);
  TensorMapEncoder encoder;
  DBO_TEST_CUDA(find_tensor_map_encoder(encoder));
  DBO_TEST_CUDA(prepare_attention());
  MlaPrefillArgs args;
  args.batch = {query_start.get(), lens.get(),      kv_start.get(),
                table.get(),       paged.max_pages, static_cast<int>(c.requests.size()),
                p.blocks};
  DBO_TEST_CUDA(encode_matrix_map(encoder, q_device.get(), tokens, c.heads * 192, c.heads * 384, 64, args.q));
  DBO_TEST_CUDA(encode_matrix_map(encoder, kv_device.get(), keys, c.heads * 256, c.heads * 512, 64, args.kv));
  DBO_TEST_CUDA(encode_matrix_map(encoder, gathered.get(), keys, 576, 1152, 64, args.rope));
  args.out = out.get();
  args.heads = c.heads;
  args.scale = kScale;
  GatherLatentArgs gather{cache_device.get(), args.batch, gathered.get(), keys};
  const auto issue = [&] {
    DBO_TEST_CUDA(launch_gather_latent(gather, stream.get()));
    DBO_TEST_CUDA(launch_mla_prefill(args, stream.get()));
  };
  if (repeats) check_repeats(stream, out, issue);
  issue();
  stream.wait();
  const std::vector<Bf16> rows_got = gathered.read();
  int wrong = 0;
  for (std::size_t r = 0; r < p.seq_lens.size(); ++r) {
    for (int j = 0; j < p.seq_lens[r]; ++j) {
      for (int d = 0; d < 576; ++d) {
        wrong += rows_got[z(std::int64_t{p.kv_start[r] + j} * 576 + d)] !=
                 cache[z(paged.row(static_cast<int>(r), j) * 576 + d)];
      }
    }
  }
  CHECK_MESSAGE(wrong == 0, what << ": " << wrong << " gathered elements wrong");
  const std::vector<int> chosen = sample(rows, 800);
  const std::vector<Bf16> got_all = out.read();
  std::vector<double> want(chosen.size() * 128), got(want.size());
  parallel(static_cast<std::int64_t>(chosen.size()), [&](std::int64_t i) {
    const int row = chosen[z(i)], token = row / c.heads, head = row % c.heads, request = p.request_of(token);
    const int first = p.kv_start[z(request)];
    std::vector<double> query(192);
    for (int d = 0; d < 192; ++d) query[z(d)] = at(q, std::int64_t{row} * 192 + d);
    const auto key = [&](int j, int d) {
      return d < 128 ? at(kv, (std::int64_t{first + j} * c.heads + head) * 256 + d)
                     : at(cache, paged.row(request, j) * 576 + 512 + d - 128);
    };
    const auto value = [&](int j, int d) { return at(kv, (std::int64_t{first + j} * c.heads + head) * 256 + 128 + d); };
    const std::vector<double> o = attend(query, p.visible(token), static_cast<double>(kScale), 128, key, value);
    for (int d = 0; d < 128; ++d) {
      want[z(i) * 128 + z(d)] = o[z(d)];
      got[z(i) * 128 + z(d)] = at(got_all, std::int64_t{row} * 128 + d);
    }
  });
  check_close(what, got, want, 6e-3);
}

void check_gqa_prefill(const std::string& what, const PrefillCase& c, bool repeats = false) {
  const TestStream stream;
  const Prefill p(c);
  const Paged paged(p.seq_lens, 9);
  const int tokens = p.tokens(), rows = tokens * c.heads, row_elements = c.kv_heads * 128, group = c.heads / c.kv_heads;
  const int stride = (c.heads + 2 * c.kv_heads) * 128;
  std::vector<Bf16> k = random_bf16(z(paged.pages) * 64 * z(row_elements), 1), v = random_bf16(k.size(), 2);
  spoil_unused(paged, row_elements, k, [](std::int64_t) {});
  spoil_unused(paged, row_elements, v, [](std::int64_t) {});
  const std::vector<Bf16> q = random_bf16(z(tokens) * z(stride), 3, 4.0);
  const Device<Bf16> k_device(k), v_device(v), q_device(q), out(z(rows) * 128);
  const Device<std::int32_t> query_start(p.query_start), lens(p.seq_lens), table(paged.block_table);
  TensorMapEncoder encoder;
  DBO_TEST_CUDA(find_tensor_map_encoder(encoder));
  DBO_TEST_CUDA(prepare_attention());
  GqaPrefillArgs args;
  args.batch = {query_start.get(), lens.get(),      nullptr,
                table.get(),       paged.max_pages, static_cast<int>(c.requests.size()),
                p.blocks};
  DBO_TEST_CUDA(encode_matrix_map(encoder, q_device.get(), tokens, c.heads * 128, stride * 2, 64, args.q));
  DBO_TEST_CUDA(
      encode_matrix_map(encoder, k_device.get(), paged.pages * 64, row_elements, row_elements * 2, 64, args.k));
  DBO_TEST_CUDA(
      encode_matrix_map(encoder, v_device.get(), paged.pages * 64, row_elements, row_elements * 2, 64, args.v));
  args.out = out.get();
  args.heads = c.heads;
  args.kv_heads = c.kv_heads;
  args.scale = kScale;
  const auto issue = [&] { DBO_TEST_CUDA(launch_gqa_prefill(args, stream.get())); };
  if (repeats) check_repeats(stream, out, issue);
  issue();
  stream.wait();
  const std::vector<int> chosen = sample(rows, 800);
  const std::vector<Bf16> got_all = out.read();
  std::vector<double> want(chosen.size() * 128), got(want.size());
  parallel(static_cast<std::int64_t>(chosen.size()), [&](std::int64_t i) {
    const int row = chosen[z(i)], token = row / c.heads, head = row % c.heads, request = p.request_of(token);
    const int column = head / group * 128;
    std::vector<double> query(128);
    for (int d = 0; d < 128; ++d) query[z(d)] = at(q, std::int64_t{token} * stride + head * 128 + d);
    const auto key = [&](int j, int d) { return at(k, paged.row(request, j) * row_elements + column + d); };
    const auto value = [&](int j, int d) { return at(v, paged.row(request, j) * row_elements + column + d); };
    const std::vector<double> o = attend(query, p.visible(token), static_cast<double>(kScale), 128, key, value);
    for (int d = 0; d < 128; ++d) {
      want[z(i) * 128 + z(d)] = o[z(d)];
      got[z(i) * 128 + z(d)] = at(got_all, std::int64_t{row} * 128 + d);
    }
  });
  check_close(what, got, want, 6e-3);
}

}  // namespace

TEST_CASE("mla prefill: causal attention of whole and split requests agrees with fp64") {
  check_mla_prefill("one token", {{{1, 1}}, 2, 0});
  check_mla_prefill("one block", {{{128, 128}}, 1, 0});
  check_mla_prefill("odd lengths", {{{5, 5}, {300, 300}, {129, 129}, {64, 64}}, 3, 0}, true);
  check_mla_prefill("ranges inside longer contexts", {{{1, 700}, {40, 129}, {200, 1000}, {128, 256}, {7, 64}}, 3, 0});
  check_mla_prefill("many requests", {std::vector<std::pair<int, int>>(70, {3, 9}), 2, 0});
  check_mla_prefill("long context", {{{130, 9000}}, 2, 0});
}

TEST_CASE("gqa prefill: causal attention of whole and split requests agrees with fp64") {
  check_gqa_prefill("one token", {{{1, 1}}, 4, 2});
  check_gqa_prefill("one block", {{{128, 128}}, 4, 1});
  check_gqa_prefill("odd lengths", {{{5, 5}, {300, 300}, {129, 129}, {64, 64}}, 6, 2}, true);
  check_gqa_prefill("ranges inside longer contexts", {{{1, 700}, {40, 129}, {200, 1000}, {128, 256}, {7, 64}}, 8, 1});
  check_gqa_prefill("many requests", {std::vector<std::pair<int, int>>(70, {3, 9}), 4, 4});
  check_gqa_prefill("long context", {{{130, 9000}}, 4, 2});
}
