#include "kernels/compute/router.h"
#include "tests/kernels/cuda/compute_support.h"
#include "tests/kernels/cuda/layer_reference.h"

using namespace dbo;
using namespace dbo::kernels;
using namespace dbo::compute_test;

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
    MoeShape moe;
    moe.routed_experts = f.experts;
    moe.top_k = f.top_k;
    moe.groups = f.groups;
    moe.group_top_k = f.group_top_k;
    moe.scoring = f.scoring;
    moe.norm_top_k = f.normalise;
    moe.scaling = static_cast<double>(f.scaling);
    DBO_TEST_CUDA(launch_router(args, stream.get()));
    stream.wait();
    const std::vector<std::int32_t> got = expert.read();
    const std::vector<double> got_weight = widen(weight.read());
    const Vec logits_wide = widen(logits_host), bias_wide = widen(bias_host);
    std::vector<double> want_weight, same_weight;
    int differing = 0;
    for (int t = 0; t < tokens; ++t) {
      const Choice c = choose_experts(moe, logits_wide.data() + t * f.experts, f.bias ? bias_wide.data() : nullptr);
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
