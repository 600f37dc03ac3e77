// Eight bf16 numbers, as one 16-byte access moves them.
#pragma once

#include "kernels/compute/sm90.cuh"

namespace dbo::kernels {

struct Vector8 {
  float v[8];
};

__device__ __forceinline__ Vector8 unpack(uint4 x) {
  return {{sm90::bf16_low(x.x), sm90::bf16_high(x.x), sm90::bf16_low(x.y), sm90::bf16_high(x.y), sm90::bf16_low(x.z),
           sm90::bf16_high(x.z), sm90::bf16_low(x.w), sm90::bf16_high(x.w)}};
}

__device__ __forceinline__ uint4 pack(const Vector8& x) {
  return make_uint4(sm90::pack_bf16(x.v[0], x.v[1]), sm90::pack_bf16(x.v[2], x.v[3]), sm90::pack_bf16(x.v[4], x.v[5]),
                    sm90::pack_bf16(x.v[6], x.v[7]));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

}  // namespace dbo::kernels
