#include "tests/kernels/cuda/layer_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/compute/hash.h"
#include "tests/kernels/cuda/compute_support.h"
#include "tests/kernels/e4m3.h"

namespace dbo::compute_test {

using namespace dbo::kernels;

namespace {

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Rotates pairs (i, j) of a vector by position * 10000^(-2 p / dim).
void rotate(double* v, int dim, int position, bool halves) {
  for (int p = 0; p < dim / 2; ++p) {
    const double angle = position * std::pow(10000.0, -2.0 * p / dim);
    double& a = v[halves ? p : 2 * p];
    double& b = v[halves ? p + dim / 2 : 2 * p + 1];
    const double x = a, y = b;
    a = x * std::cos(angle) - y * std::sin(angle);
    b = y * std::cos(angle) + x * std::sin(angle);
  }
}

/// Rotated queries [tokens][heads * 192]; the tokens' own rows go into the cache.
Vec mla_queries(const LayerDims& d, const HostWeights& weights, const LayerInput& input, const Vec& in, Vec& cache) {
  const int heads = d.attention.heads, q_lora = d.attention.q_lora_rank;
  const auto tokens = static_cast<int>(input.positions.size());
  const auto width = z(qkv_columns(d)), first = width - 576;
  Vec q = columns(in, width, 0, first);
  if (q_lora > 0) q = multiply(norm(q, weights[Tensor::QNorm]), weights[Tensor::QUp], heads * 192, q_lora);
  const Vec latent = norm(columns(in, width, first, 512), weights[Tensor::KvNorm]);
  Vec key = columns(in, width, first + 512, 64);
  for (int t = 0; t < tokens; ++t) {
    const int position = input.positions[z(t)], request = input.request_of[z(t)];
    rotate(key.data() + t * 64, 64, position, false);
    for (int h = 0; h < heads; ++h) rotate(q.data() + (t * heads + h) * 192 + 128, 64, position, false);
    if (request < 0) continue;
    double* const row = cache.data() + input.cache_row(request, position) * 576;
    std::copy_n(latent.begin() + t * 512, 512, row);
    std::copy_n(key.begin() + t * 64, 64, row + 512);
  }
  return q;
}

/// The same for GQA: [tokens][heads * 128].
Vec gqa_queries(const LayerDims& d, const HostWeights& weights, const LayerInput& input, Vec in, Vec& cache_k,
                Vec& cache_v) {
  const AttentionShape& a = d.attention;
  const auto tokens = static_cast<int>(input.positions.size());
  const auto width = z(qkv_columns(d));
  if (a.qkv_bias) {
    for (std::size_t i = 0; i < in.size(); ++i) in[i] += weights[Tensor::QkvBias][i % width];
  }
  Vec q;
  for (int t = 0; t < tokens; ++t) {
    const int position = input.positions[z(t)], request = input.request_of[z(t)];
    for (int h = 0; h < a.heads + 2 * a.kv_heads; ++h) {
      const auto from = in.begin() + static_cast<std::ptrdiff_t>(z(t) * width) + h * 128;
      Vec v(from, from + 128);
      const bool is_v = h >= a.heads + a.kv_heads;
      if (!is_v) {
        if (a.qk_norm) v = norm(v, weights[h < a.heads ? Tensor::QNorm : Tensor::KvNorm]);
        rotate(v.data(), 128, position, true);
      }
      if (h < a.heads) {
        q.insert(q.end(), v.begin(), v.end());
      } else if (request >= 0) {
        Vec& cache = is_v ? cache_v : cache_k;
        const std::int64_t row = input.cache_row(request, position);
        std::copy(v.begin(), v.end(), cache.begin() + (row * a.kv_heads + (h - a.heads) % a.kv_heads) * 128);
      }
    }
  }
  return q;
}

/// Absorbed by hand: the query against the latent, then the latent's average through the value rows.
Vec mla_head(const Vec& up, const double* q, int head, int keys, const std::function<const double*(int)>& row) {
  Vec query(576), out;
  for (int c = 0; c < 512; ++c) {
    for (int e = 0; e < 128; ++e) query[z(c)] += q[e] * up[z((head * 256 + e) * 512 + c)];
  }
  for (int e = 0; e < 64; ++e) query[z(512 + e)] = q[128 + e];
  const auto element = [&](int j, int e) { return row(j)[e]; };
  const Vec latent = attend(query, keys, 1 / std::sqrt(192.0), 512, element, element);
  for (int e = 0; e < 128; ++e) {
    double sum = 0;
    for (int c = 0; c < 512; ++c) sum += latent[z(c)] * up[z((head * 256 + 128 + e) * 512 + c)];
    out.push_back(sum);
  }
  return out;
}

}  // namespace

HostWeights::HostWeights(const WeightLayout& layout, std::uint64_t seed, int first_expert) {
  for (int t = 0; t < kTensors; ++t) {
    const TensorPlace& p = layout.place[z(t)];
    Vec& v = tensor_[z(t)];
    v.reserve(z(p.count));
    const std::int64_t each = p.per_expert > 0 ? p.per_expert : p.count;
    for (std::int64_t i = 0; i < p.count; ++i) {
      const int expert = p.per_expert > 0 ? first_expert + static_cast<int>(i / each) : 0;
      const float scaled =
          p.scale * uniform(tensor_seed(seed, static_cast<Tensor>(t), expert), static_cast<std::uint64_t>(i % each));
      const float x = p.offset + scaled;
      v.push_back(static_cast<double>(p.type == NumberType::Float  ? x
                                      : p.type == NumberType::Bf16 ? to_float(to_bf16(static_cast<double>(x)))
                                                                   : fp8::from_e4m3(fp8::to_e4m3(x))));
    }
  }
  for (const auto& [codes, scales] :
       {std::pair{Tensor::ExpertUp, Tensor::ExpertUpScale}, {Tensor::ExpertDown, Tensor::ExpertDownScale}}) {
    const TensorPlace &p = layout[codes], &s = layout[scales];
    if (s.count == 0) continue;
    for (std::int64_t i = 0; i < p.count; ++i) {
      const std::int64_t in_expert = i % p.per_expert, row = in_expert / p.columns, column = in_expert % p.columns;
      tensor_[z(static_cast<std::int64_t>(codes))][z(i)] *=
          (*this)[scales][z(i / p.per_expert * s.per_expert + row / kScaleBlock * s.columns + column / kScaleBlock)];
    }
  }
}

Vec multiply(const Vec& x, const Vec& w, std::int64_t n, std::int64_t k, std::int64_t w_offset) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / k;
  Vec y(z(rows * n));
  parallel(rows, [&](std::int64_t r) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += x[z(r * k + i)] * w[z(w_offset + j * k + i)];
      y[z(r * n + j)] = sum;
    }
  });
  return y;
}

Vec norm(const Vec& x, const Vec& weight) {
  const std::size_t width = weight.size();
  Vec y(x.size());
  for (std::size_t r = 0; r < x.size() / width; ++r) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[r * width + i] * x[r * width + i];
    const double s = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    for (std::size_t i = 0; i < width; ++i) y[r * width + i] = x[r * width + i] * s * weight[i];
  }
  return y;
}

Vec columns(const Vec& x, std::size_t stride, std::size_t first, std::size_t count) {
  Vec y;
  for (std::size_t r = 0; r < x.size() / stride; ++r) {
    for (std::size_t i = 0; i < count; ++i) y.push_back(x[r * stride + first + i]);
  }
  return y;
}

Vec plus(Vec a, const Vec& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Vec swiglu_block(const Vec& x, const Vec& up, const Vec& down, int hidden, int width, std::int64_t expert) {
  const Vec gu = multiply(x, up, 2 * width, hidden, expert * 2 * width * hidden);
  Vec h;
  for (std::size_t r = 0; r < x.size() / z(hidden); ++r) {
    for (int i = 0; i < width; ++i) {
      const std::size_t at = r * z(2 * width) + z(i / 8 * 16 + i % 8);
      h.push_back(gu[at] / (1 + std::exp(-gu[at])) * gu[at + 8]);
    }
  }
  return multiply(h, down, hidden, width, expert * hidden * width);
}

Choice choose_experts(const MoeShape& moe, const double* logits, const double* bias) {
  const int n = moe.routed_experts;
  Vec score(z(n));
  double top = -1e300, all = 0;
  for (int e = 0; e < n; ++e) top = std::max(top, logits[e]);
  for (int e = 0; e < n; ++e) {
    score[z(e)] = moe.scoring == Scoring::Sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e] - top);
    all += score[z(e)];
  }
  Vec choice = score;
  for (int e = 0; e < n; ++e) {
    if (moe.scoring != Scoring::Sigmoid) score[z(e)] /= all;
    choice[z(e)] = score[z(e)] + (bias == nullptr ? 0 : bias[e]);
  }
  const int size = n / moe.groups;
  std::vector<std::pair<double, int>> groups, candidates;
  for (int g = 0; g < moe.groups; ++g) {
    Vec members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(-(bias != nullptr && size > 1 ? members[0] + members[1] : members[0]), g);
  }
  std::sort(groups.begin(), groups.end());
  for (int i = 0; i < moe.group_top_k; ++i) {
    const int g = groups[z(i)].second;
    for (int e = g * size; e < (g + 1) * size; ++e) candidates.emplace_back(-choice[z(e)], e);
  }
  std::sort(candidates.begin(), candidates.end());
  Choice c;
  double sum = 0;
  for (int k = 0; k < moe.top_k; ++k) {
    c.expert.push_back(candidates[z(k)].second);
    c.weight.push_back(score[z(c.expert.back())]);
    sum += c.weight.back();
  }
  const bool divide = moe.norm_top_k || moe.scoring == Scoring::SoftmaxOverTopK;
  for (double& w : c.weight) w = (divide ? w / sum : w) * moe.scaling;
  return c;
}

AttentionOutput reference_attention(const LayerDims& d, const HostWeights& weights, const LayerInput& input) {
  const AttentionShape& a = d.attention;
  const bool mla = a.kind == AttentionKind::Mla;
  const int heads = a.heads, kv_heads = a.kv_heads;
  const auto tokens = static_cast<int>(input.positions.size());
  AttentionOutput out;
  out.cache_k = input.cache_k;
  out.cache_v = input.cache_v;
  const Vec in =
      multiply(norm(input.x, weights[Tensor::AttentionNorm]), weights[Tensor::QkvIn], qkv_columns(d), d.hidden);
  const Vec q = mla ? mla_queries(d, weights, input, in, out.cache_k)
                    : gqa_queries(d, weights, input, in, out.cache_k, out.cache_v);
  out.attention.assign(z(tokens * heads) * 128, 0.0);
  parallel(std::int64_t{tokens} * heads, [&](std::int64_t i) {
    const int t = static_cast<int>(i) / heads, h = static_cast<int>(i) % heads, request = input.request_of[z(t)];
    if (request < 0) return;
    const int keys = input.positions[z(t)] + 1;
    Vec head;
    if (mla) {
      head = mla_head(weights[Tensor::KvUp], q.data() + i * 192, h, keys,
                      [&](int j) { return out.cache_k.data() + input.cache_row(request, j) * 576; });
    } else {
      const int kv = h / (heads / kv_heads);
      const auto at = [&](const Vec& cache, int j, int e) {
        return cache[z((input.cache_row(request, j) * kv_heads + kv) * 128 + e)];
      };
      head = attend(
          Vec(q.begin() + i * 128, q.begin() + i * 128 + 128), keys, 1 / std::sqrt(128.0), 128,
          [&](int j, int e) { return at(out.cache_k, j, e); }, [&](int j, int e) { return at(out.cache_v, j, e); });
    }
    std::copy(head.begin(), head.end(), out.attention.begin() + i * 128);
  });
  out.residual = plus(input.x, multiply(out.attention, weights[Tensor::AttentionOut], d.hidden, heads * 128));
  out.normed = norm(out.residual, weights[Tensor::MlpNorm]);
  return out;
}

}  // namespace dbo::compute_test
