#include "kernels/compute/router.h"

#include <utility>

#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace router {

constexpr int kWarps = 4;
constexpr float kNone = -INFINITY;

/// A candidate as one number: the score in an order-preserving form above, then what is larger for a lower expert. The
/// largest is the best score, the lowest expert among equals.
using Key = std::uint64_t;

__device__ __forceinline__ Key make_key(float score, int expert) {
  const std::uint32_t bits = __float_as_uint(score);
  const std::uint32_t ordered =
      bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
  return static_cast<Key>(ordered) << 32 | static_cast<std::uint32_t>(kMaxExperts - expert);
}
__device__ __forceinline__ std::uint32_t high(Key k) {
  return static_cast<std::uint32_t>(k >> 32);
}
__device__ __forceinline__ float score_of(Key k) {
  const std::uint32_t ordered = high(k);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

/// Places to compare, in order, to sort `kCount` numbers: Batcher's odd-even merge. Comparisons with places past the
/// end are left out, since what would lie there, being smallest, never moves.
template <int kCount>
struct Network {
  int count = 0;
  int first[64] = {}, second[64] = {};
  constexpr Network() {
    for (int p = 1; p < kCount; p *= 2) {
      for (int k = p; k >= 1; k /= 2) {
        for (int j = k % p; j + k < kCount; j += 2 * k) {
          for (int i = j; i < j + k && i + k < kCount; ++i) {
            if (i / (2 * p) != (i + k) / (2 * p)) continue;
            first[count] = i;
            second[count++] = i + k;
          }
        }
      }
    }
  }
};
template <int kCount>
inline constexpr Network<kCount> kNetwork;

template <int kFirst, int kSecond, int kCount>
__device__ __forceinline__ void order(Key (&v)[kCount]) {
  const Key a = v[kFirst], b = v[kSecond];
  const bool swap = a < b;
  v[kFirst] = swap ? b : a;
  v[kSecond] = swap ? a : b;
}
template <int kCount, std::size_t... kStep>
__device__ __forceinline__ void sort(Key (&v)[kCount], std::index_sequence<kStep...>) {
  (order<kNetwork<kCount>.first[kStep], kNetwork<kCount>.second[kStep]>(v), ...);
}
/// Descending.
template <int kCount>
__device__ __forceinline__ void sort(Key (&v)[kCount]) {
  sort(v, std::make_index_sequence<kNetwork<kCount>.count>());
}

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

/// Rules out the candidates of lanes whose group is not among the best.
template <int kPerLane>
__device__ __forceinline__ void keep_best_groups(const RouterArgs& p, Key (&key)[kPerLane], int lane) {
  const int lanes = p.experts / p.groups / kPerLane;  // router_lanes_per_group
  float first = score_of(key[0]), second = kPerLane > 1 ? score_of(key[kPerLane > 1 ? 1 : 0]) : kNone;
  for (int d = 1; d < lanes; d *= 2) {
    const float a = __shfl_xor_sync(0xffffffffu, first, d), b = __shfl_xor_sync(0xffffffffu, second, d);
    second = fmaxf(fminf(first, a), fmaxf(second, b));
    first = fmaxf(first, a);
  }
  const float score = p.bias != nullptr && second > kNone ? first + second : first;
  const int group = lane / lanes;
  int better = 0;
  for (int g = 0; g < p.groups; ++g) {
    const float other = __shfl_sync(0xffffffffu, score, g * lanes);
    better += other > score || (other == score && g < group);
  }
  if (better >= p.group_top_k) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) key[i] = 0;
  }
}

/// One warp a token; lane l holds experts [l * kPerLane, (l + 1) * kPerLane), sorted, so that a round of the selection
/// is one maximum over 32 heads. Without a bias the order of scores is the order of logits.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32) router_kernel(const RouterArgs p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.tokens) return;
  const float* const logits = p.logits + static_cast<std::int64_t>(token) * p.experts;
  const int begin = lane * kPerLane;
  float x[kPerLane];
  bool vectors = false;
  if constexpr (kPerLane % 4 == 0) {
    vectors = p.experts == 32 * kPerLane;  // rows then begin at multiples of 16 bytes
    if (vectors) {
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(logits + begin + i));
        x[i] = v.x;
        x[i + 1] = v.y;
        x[i + 2] = v.z;
        x[i + 3] = v.w;
      }
    }
  }
  if (!vectors) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) x[i] = begin + i < p.experts ? __ldg(logits + begin + i) : kNone;
  }

  // What weights of the softmax need of all experts; where they are divided by their own sum it cancels.
  const bool divide = p.normalise || p.scoring == Scoring::SoftmaxOverTopK;
  float top = 0.0f, all = 1.0f;
  if (p.scoring != Scoring::Sigmoid) {
    top = x[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) top = fmaxf(top, x[i]);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    if (!divide) {
      all = 0.0f;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) all += expf(x[i] - top);
      all = warp_sum(all);
    }
  }

  Key key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = begin + i;
    float choice = x[i];
    if (p.bias != nullptr && e < p.experts) {
      choice = (p.scoring == Scoring::Sigmoid ? sigmoid(x[i]) : __expf(x[i] - top) / all) + __ldg(p.bias + e);
    }
    key[i] = e < p.experts ? make_key(choice, e) : 0;
  }
  sort(key);
  if (p.groups > 1 && p.group_top_k < p.groups) keep_best_groups(p, key, lane);

  int chosen = 0;  // lane k keeps choice k
  for (int k = 0; k < p.top_k; ++k) {
    const std::uint32_t best = __reduce_max_sync(0xffffffffu, high(key[0]));
    // Lower lanes hold lower experts.
    const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, high(key[0]) == best))) - 1;
    const int expert =
        kMaxExperts - __shfl_sync(0xffffffffu, static_cast<int>(static_cast<std::uint32_t>(key[0])), winner);
    if (lane == k) chosen = expert;
    if (lane == winner) {
#pragma unroll
      for (int i = 0; i + 1 < kPerLane; ++i) key[i] = key[i + 1];
      key[kPerLane - 1] = 0;
    }
  }
  float mine = 0.0f;
  if (lane < p.top_k) {
    const float logit = __ldg(logits + chosen);
    mine = p.scoring == Scoring::Sigmoid ? sigmoid(logit) : expf(logit - top) / all;
  }
  const float sum = warp_sum(mine);
  if (lane < p.top_k) {
    const std::int64_t at = static_cast<std::int64_t>(token) * p.top_k + lane;
    p.weight[at] = (divide ? mine / sum : mine) * p.scaling;
    p.expert[at] = p.plan_expert == nullptr ? chosen : p.plan_expert[at];
  }
}

template <int kPerLane>
cudaError_t launch(const RouterArgs& args, cudaStream_t stream) {
  router_kernel<kPerLane><<<static_cast<unsigned>((args.tokens + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace router

cudaError_t launch_router(const RouterArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  const bool grouped = args.groups > 1 && args.group_top_k < args.groups;
  if (args.tokens < 0 || args.experts < 1 || args.experts > kMaxExperts || args.top_k < 1 || args.top_k > kMaxTopK ||
      args.top_k > args.experts || args.groups < 1 || args.groups > 32 || args.experts % args.groups != 0 ||
      args.group_top_k < 1 || args.group_top_k > args.groups ||
      args.top_k > args.experts / args.groups * args.group_top_k) {
    return cudaErrorInvalidValue;
  }
  if (grouped && router_lanes_per_group(args.experts, args.groups) == 0) return cudaErrorInvalidValue;
  switch (router_experts_per_lane(args.experts)) {
    case 1:
      return router::launch<1>(args, stream);
    case 2:
      return router::launch<2>(args, stream);
    case 3:
      return router::launch<3>(args, stream);
    case 4:
      return router::launch<4>(args, stream);
    case 5:
      return router::launch<5>(args, stream);
    case 6:
      return router::launch<6>(args, stream);
    case 8:
      return router::launch<8>(args, stream);
    case 12:
      return router::launch<12>(args, stream);
    default:
      return router::launch<16>(args, stream);
  }
}

}  // namespace dbo::kernels
