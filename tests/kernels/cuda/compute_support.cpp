#include "tests/kernels/cuda/compute_support.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>

namespace dbo::compute_test {

void parallel(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  const auto n = static_cast<unsigned>(
      std::min<std::int64_t>(count, std::max(1u, std::min(32u, std::thread::hardware_concurrency()))));
  if (n <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  for (unsigned t = 0; t < n; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = next++; i < count; i = next++) body(i);
    });
  }
  for (std::thread& t : threads) t.join();
}

void check_exact(const std::string& what, const std::vector<Bf16>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  std::size_t wrong = 0, first = 0, last = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    Bf16 expected = to_bf16(want[i]);
    if (expected == 0x8000) expected = 0;
    if ((got[i] == 0x8000 ? Bf16{0} : got[i]) == expected) continue;
    if (wrong++ == 0) first = i;
    last = i;
  }
  if (wrong == 0) return;
  FAIL_CHECK(what << ": " << wrong << " of " << got.size() << " wrong, first [" << first
                  << "] = " << to_float(got[first]) << " for " << want[first] << ", last [" << last
                  << "] = " << to_float(got[last]) << " for " << want[last]);
}

void check_close(const std::string& what, const std::vector<double>& got, const std::vector<double>& want,
                 double bound) {
  REQUIRE(got.size() == want.size());
  double error = 0, size = 0, worst = 0;
  std::size_t at = 0, not_numbers = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) {
      if (not_numbers++ == 0) at = i;
      continue;
    }
    const double d = std::abs(got[i] - want[i]);
    error += d * d;
    size += want[i] * want[i];
    if (d > worst && not_numbers == 0) {
      worst = d;
      at = i;
    }
  }
  if (not_numbers > 0) {
    FAIL_CHECK(what << ": " << not_numbers << " of " << got.size() << " are not numbers, first [" << at << "] for "
                    << want[at]);
    return;
  }
  const double count = std::max<double>(1, static_cast<double>(got.size()));
  const double relative = std::sqrt(error) / std::max(std::sqrt(size), 1e-30);
  const double allowed = 16 * bound * std::sqrt(size / count) + 1e-6;
  const bool ok = relative <= bound && worst <= allowed;
  if (ok) {
    std::printf("   %s: relative error %.2e of %.0e, worst %.2e\n", what.c_str(), relative, bound, worst);
    return;
  }
  FAIL_CHECK(what << ": relative error " << relative << ", bound " << bound << "; worst " << worst << " (allowed "
                  << allowed << ") at [" << at << "] of " << got.size() << ": " << got[at] << " for " << want[at]);
}

std::vector<double> widen(const std::vector<Bf16>& v) {
  std::vector<double> d(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) d[i] = static_cast<double>(to_float(v[i]));
  return d;
}

std::vector<double> widen(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

Paged::Paged(std::vector<std::int32_t> lens, std::uint64_t seed) : seq_lens(std::move(lens)) {
  pages = 1;  // page 0 belongs to nobody
  for (const std::int32_t n : seq_lens) {
    pages += (n + 63) / 64;
    max_pages = std::max(max_pages, static_cast<int>((n + 63) / 64));
  }
  std::vector<std::int32_t> order;
  for (int p = 1; p < pages; ++p) order.push_back(p);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(pick(seed, i, static_cast<int>(i)))]);
  }
  block_table.assign(seq_lens.size() * static_cast<std::size_t>(max_pages), 0);
  std::size_t next = 0;
  for (std::size_t r = 0; r < seq_lens.size(); ++r) {
    for (int p = 0; p < (seq_lens[r] + 63) / 64; ++p) {
      block_table[r * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(p)] = order[next++];
    }
  }
}

std::vector<double> attend(const std::vector<double>& q, int keys, double scale, int value_dim,
                           const std::function<double(int, int)>& key, const std::function<double(int, int)>& value) {
  std::vector<double> score(static_cast<std::size_t>(keys)), out(static_cast<std::size_t>(value_dim), 0.0);
  double top = -1e300, sum = 0;
  for (int j = 0; j < keys; ++j) {
    double s = 0;
    for (std::size_t d = 0; d < q.size(); ++d) s += q[d] * key(j, static_cast<int>(d));
    score[static_cast<std::size_t>(j)] = s * scale;
    top = std::max(top, s * scale);
  }
  for (int j = 0; j < keys; ++j) {
    const double p = std::exp(score[static_cast<std::size_t>(j)] - top);
    sum += p;
    for (int d = 0; d < value_dim; ++d) out[static_cast<std::size_t>(d)] += p * value(j, d);
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace dbo::compute_test
