#include "kernels/compute/router.h"

#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace router {

constexpr int kPerLane = kMaxExperts / 32;
constexpr float kNone = -INFINITY;

struct Best {
  float value;
  int index;
};

__device__ __forceinline__ bool better(float value, int index, const Best& than) {
  return value > than.value || (value == than.value && index < than.index);
}

__device__ __forceinline__ Best warp_best(Best b) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, b.value, d);
    const int index = __shfl_xor_sync(0xffffffffu, b.index, d);
    if (better(value, index, b)) b = {value, index};
  }
  return b;
}

/// Rules out the experts of groups that are not among the best. Lane g looks after group g.
__device__ __forceinline__ void keep_best_groups(const RouterArgs& p, float* choice, int lane) {
  const int size = p.experts / p.groups;
  float score = kNone;
  if (lane < p.groups) {
    float first = kNone, second = kNone;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      const float c = choice[e];
      if (c > first) {
        second = first;
        first = c;
      } else if (c > second) {
        second = c;
      }
    }
    score = p.bias != nullptr && size > 1 ? first + second : first;
  }
  bool kept = false;
  for (int i = 0; i < p.group_top_k; ++i) {
    const Best b = warp_best({kept || lane >= p.groups ? kNone : score, kept || lane >= p.groups ? 64 : lane});
    if (b.index == lane) kept = true;
  }
  if (lane < p.groups && !kept) {
    for (int e = lane * size; e < (lane + 1) * size; ++e) choice[e] = kNone;
  }
  __syncwarp();
}

/// One warp a token.
__global__ void __launch_bounds__(128) router_kernel(const RouterArgs p) {
  __shared__ float shared_choice[4][kMaxExperts];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * 4 + warp;
  if (token >= p.tokens) return;
  float* const choice = shared_choice[warp];
  const float* const logits = p.logits + static_cast<std::int64_t>(token) * p.experts;
  float score[kPerLane];  // expert lane + 32 i
  float top = kNone;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] = e < p.experts ? logits[e] : kNone;
    top = fmaxf(top, score[i]);
  }
  if (p.scoring == Scoring::Sigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = 1.0f / (1.0f + expf(-score[i]));
  } else {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = lane + 32 * i < p.experts ? expf(score[i] - top) : 0.0f;
      sum += score[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] /= sum;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e < p.experts) choice[e] = p.bias == nullptr ? score[i] : score[i] + p.bias[e];
  }
  __syncwarp();
  if (p.groups > 1 && p.group_top_k < p.groups) keep_best_groups(p, choice, lane);

  float mine = 0.0f, sum = 0.0f;  // lane k keeps choice k
  int chosen = -1;
  for (int k = 0; k < p.top_k; ++k) {
    Best best{kNone, kMaxExperts};
    float weight = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e < p.experts && better(choice[e], e, best)) {
        best = {choice[e], e};
        weight = score[i];
      }
    }
    const Best winner = warp_best(best);
    weight = __shfl_sync(0xffffffffu, weight, winner.index % 32);
    if (lane == winner.index % 32 && winner.index < p.experts) choice[winner.index] = kNone;
    if (lane == k) {
      mine = weight;
      chosen = winner.index;
    }
    sum += weight;
    __syncwarp();
  }
  if (lane < p.top_k) {
    const bool divide = p.normalise || p.scoring == Scoring::SoftmaxOverTopK;
    const std::int64_t at = static_cast<std::int64_t>(token) * p.top_k + lane;
    p.weight[at] = (divide ? mine / sum : mine) * p.scaling;
    p.expert[at] = p.plan_expert == nullptr ? chosen : p.plan_expert[at];
  }
}

}  // namespace router

cudaError_t launch_router(const RouterArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens < 0 || args.experts < 1 || args.experts > kMaxExperts || args.top_k < 1 || args.top_k > kMaxTopK ||
      args.top_k > args.experts || args.groups < 1 || args.groups > 32 || args.experts % args.groups != 0 ||
      args.group_top_k < 1 || args.group_top_k > args.groups ||
      args.top_k > args.experts / args.groups * args.group_top_k) {
    return cudaErrorInvalidValue;
  }
  router::router_kernel<<<static_cast<unsigned>((args.tokens + 3) / 4), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
