#include <algorithm>
#include <cmath>

#include "kernels/compute/router.h"
#include "tests/kernels/cuda/compute_support.h"

using namespace dbo;
using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

struct Choice {
  std::vector<std::int32_t> expert;
  std::vector<double> weight;
};

/// One token's routing in fp64, written as the models define it.
Choice reference(const RouterArgs& p, const float* logits, const float* bias) {
  const int n = p.experts;
  std::vector<double> score(static_cast<std::size_t>(n));
  double top = -1e300, all = 0;
  for (int e = 0; e < n; ++e) top = std::max(top, static_cast<double>(logits[e]));
  for (int e = 0; e < n; ++e) {
    const double x = static_cast<double>(logits[e]);
    auto& s = score[static_cast<std::size_t>(e)];
    s = p.scoring == Scoring::Sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - top);
    all += s;
  }
  std::vector<double> choice = score;
  for (int e = 0; e < n; ++e) {
    auto& s = score[static_cast<std::size_t>(e)];
    if (p.scoring != Scoring::Sigmoid) s /= all;
    choice[static_cast<std::size_t>(e)] = s + (bias == nullptr ? 0 : static_cast<double>(bias[e]));
  }
  const int size = n / p.groups;
  std::vector<std::pair<double, int>> groups;
  for (int g = 0; g < p.groups; ++g) {
    std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(-(bias != nullptr && size > 1 ? members[0] + members[1] : members[0]), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int>> candidates;
  for (int i = 0; i < p.group_top_k; ++i) {
    const int g = groups[static_cast<std::size_t>(i)].second;
    for (int e = g * size; e < (g + 1) * size; ++e) candidates.emplace_back(-choice[static_cast<std::size_t>(e)], e);
  }
  std::sort(candidates.begin(), candidates.end());
  Choice c;
  double sum = 0;
  for (int k = 0; k < p.top_k; ++k) {
    c.expert.push_back(candidates[static_cast<std::size_t>(k)].second);
    c.weight.push_back(score[static_cast<std::size_t>(c.expert.back())]);
    sum += c.weight.back();
  }
  for (double& w : c.weight)
    w = (p.normalise || p.scoring == Scoring::SoftmaxOverTopK ? w / sum : w) * static_cast<double>(p.scaling);
  return c;
}

}  // namespace

TEST_CASE("router: experts and weights of every family equal the fp64 reference") {
  struct Family {
    const char* name;
    int experts, top_k, groups, group_top_k;
    Scoring scoring;
    bool normalise, bias;
    float scaling;
  };
  const Family families[] = {
      {"DeepSeek-V2-Lite", 64, 6, 1, 1, Scoring::Softmax, false, false, 1.0f},
      {"DeepSeek-V2", 160, 6, 8, 3, Scoring::Softmax, false, false, 16.0f},
      {"DeepSeek-V3", 256, 8, 8, 4, Scoring::Sigmoid, true, true, 2.5f},
      {"Kimi-K2", 384, 8, 1, 1, Scoring::Sigmoid, true, true, 2.827f},
      {"Qwen3", 128, 8, 1, 1, Scoring::Softmax, true, false, 1.0f},
      {"Mixtral", 8, 2, 1, 1, Scoring::SoftmaxOverTopK, true, false, 1.0f},
      {"Llama-4", 128, 1, 1, 1, Scoring::Sigmoid, false, false, 1.0f},
      {"one expert", 1, 1, 1, 1, Scoring::Softmax, true, false, 1.0f},
  };
  const TestStream stream;
  for (const Family& f : families) {
    const int tokens = 203;
    const auto entries = static_cast<std::size_t>(tokens * f.experts),
               picks = static_cast<std::size_t>(tokens * f.top_k);
    // Steps of 1/64 apart, so that fp32 and fp64 order scores alike; ties go to the lower expert in both.
    std::vector<float> logits_host(entries), bias_host(static_cast<std::size_t>(f.experts));
    for (std::size_t i = 0; i < entries; ++i) logits_host[i] = static_cast<float>(pick(5, i, 512) - 256) / 64.0f;
    for (std::size_t i = 0; i < bias_host.size(); ++i) bias_host[i] = static_cast<float>(pick(6, i, 64) - 32) / 256.0f;
    const Device<float> logits(logits_host), bias(bias_host), weight(picks);
    const Device<std::int32_t> expert(picks);
    RouterArgs args;
    args.logits = logits.get();
    args.bias = f.bias ? bias.get() : nullptr;
    args.expert = expert.get();
    args.weight = weight.get();
    args.tokens = tokens;
    args.experts = f.experts;
    args.top_k = f.top_k;
    args.groups = f.groups;
    args.group_top_k = f.group_top_k;
    args.scoring = f.scoring;
    args.normalise = f.normalise;
    args.scaling = f.scaling;
    DBO_TEST_CUDA(launch_router(args, stream.get()));
    stream.wait();
    const std::vector<std::int32_t> got = expert.read();
    const std::vector<double> got_weight = widen(weight.read());
    std::vector<double> want_weight, same_weight;
    int differing = 0;
    for (int t = 0; t < tokens; ++t) {
      const Choice c = reference(args, logits_host.data() + t * f.experts, f.bias ? bias_host.data() : nullptr);
      for (int k = 0; k < f.top_k; ++k) {
        const auto at = static_cast<std::size_t>(t * f.top_k + k);
        differing += got[at] != c.expert[static_cast<std::size_t>(k)];
        want_weight.push_back(c.weight[static_cast<std::size_t>(k)]);
        same_weight.push_back(got_weight[at]);
      }
    }
    // A biased score can tie in fp32 and not in fp64: a handful of swaps between equals is no error.
    CHECK_MESSAGE(differing <= (f.bias ? tokens / 50 : 0), f.name << ": " << differing << " choices differ");
    check_close(std::string("weights, ") + f.name, same_weight, want_weight, f.bias ? 2e-2 : 1e-5);
  }
}

TEST_CASE("router: the plan's experts replace the chosen ones and the weights stay") {
  const TestStream stream;
  const std::vector<float> logits_host{0, 1, 2, 3, 4, 5, 6, 7};
  const Device<float> logits(logits_host), weight(2), plain(2);
  const Device<std::int32_t> expert(2), plan(std::vector<std::int32_t>{0, 3});
  RouterArgs args;
  args.logits = logits.get();
  args.expert = expert.get();
  args.weight = plain.get();
  args.tokens = 1;
  args.experts = 8;
  args.top_k = 2;
  DBO_TEST_CUDA(launch_router(args, stream.get()));
  stream.wait();
  CHECK(expert.read() == std::vector<std::int32_t>{7, 6});
  args.weight = weight.get();
  args.plan_expert = plan.get();
  DBO_TEST_CUDA(launch_router(args, stream.get()));
  stream.wait();
  CHECK(expert.read() == std::vector<std::int32_t>{0, 3});
  CHECK(weight.read() == plain.read());
}
