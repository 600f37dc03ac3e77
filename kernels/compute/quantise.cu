#include "kernels/compute/quantise.h"

#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace quantise {

constexpr int kWarps = 8;

/// Two e4m3, `low` in the lower byte, rounded to nearest even, saturating.
__device__ __forceinline__ std::uint32_t pack_e4m3(float low, float high) {
  std::uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
}

/// One warp a row. A block of 128 is 16 lanes of 8 elements, two blocks at a time; each lane has several pairs in
/// flight.
__global__ void __launch_bounds__(kWarps * 32) quantise_kernel(const QuantiseRowsArgs p) {
  constexpr int kPairs = 4;
  const int rows = p.offset[p.experts], lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32; r < rows;
       r += static_cast<int>(gridDim.x) * kWarps) {
    const std::int64_t from = p.row == nullptr ? r : p.row[r];
    const auto* const in = static_cast<const uint4*>(p.rows) + from * (p.width / 8);
    auto* const out = static_cast<uint2*>(p.out) + static_cast<std::int64_t>(r) * (p.width / 8);
    for (int first = 0; first < p.width; first += kPairs * 2 * kScaleBlock) {
      uint4 x[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int at = first / 8 + i * 32 + lane;
        x[i] = at < p.width / 8 ? __ldg(in + at) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const Vector8 v = unpack(x[i]);
        float amax = kMinAmax;
#pragma unroll
        for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(v.v[j]));
#pragma unroll
        for (int d = 1; d < 16; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        const int at = first / 8 + i * 32 + lane;
        if (at >= p.width / 8) continue;
        const float factor = __fdiv_rn(kFp8Max, amax);
        uint2 y;
        y.x = pack_e4m3(v.v[0] * factor, v.v[1] * factor) | pack_e4m3(v.v[2] * factor, v.v[3] * factor) << 16;
        y.y = pack_e4m3(v.v[4] * factor, v.v[5] * factor) | pack_e4m3(v.v[6] * factor, v.v[7] * factor) << 16;
        out[at] = y;
        if (lane % 16 == 0) {
          p.out_scales[at * 8 / kScaleBlock * p.scale_stride + r] = __fdiv_rn(amax, kFp8Max);
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kWarps * 32) copy_kernel(const QuantiseRowsArgs p) {
  const int rows = p.offset[p.experts], lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = p.width / 16, blocks = p.width / kScaleBlock;
  for (int r = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32; r < rows;
       r += static_cast<int>(gridDim.x) * kWarps) {
    const std::int64_t from = p.row == nullptr ? r : p.row[r];
    const auto* const in = static_cast<const uint4*>(p.rows) + from * vectors;
    auto* const out = static_cast<uint4*>(p.out) + static_cast<std::int64_t>(r) * vectors;
    for (int i = lane; i < vectors; i += 32) out[i] = __ldg(in + i);
    for (int b = lane; b < blocks; b += 32) p.out_scales[b * p.scale_stride + r] = __ldg(p.scales + from * blocks + b);
  }
}

}  // namespace quantise

cudaError_t launch_quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream) {
  const bool copies = args.type == ElementType::Fp8E4m3;
  if (args.rows == nullptr || args.offset == nullptr || args.out == nullptr || args.out_scales == nullptr ||
      args.width < 16 || args.width % 16 != 0 || args.blocks < 1 || args.experts < 1 ||
      (copies && (args.scales == nullptr || args.width % kScaleBlock != 0))) {
    return cudaErrorInvalidValue;
  }
  const auto blocks = static_cast<unsigned>(args.blocks);
  if (copies) {
    quantise::copy_kernel<<<blocks, quantise::kWarps * 32, 0, stream>>>(args);
  } else {
    quantise::quantise_kernel<<<blocks, quantise::kWarps * 32, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace dbo::kernels
