#include "kernels/compute/pointwise.h"

#include <cuda_fp8.h>

#include "kernels/compute/attention.h"
#include "kernels/compute/hash.h"
#include "kernels/compute/vector8.cuh"

namespace dbo::kernels {
namespace pointwise {

constexpr int kNormThreads = 256;
constexpr int kNormVectors = 8;  // of 8 elements a thread: rows up to 16384

/// One block a row; the row stays in registers between its two passes, as bf16: half the registers of floats let more
/// rows be on their way.
template <int kVectors>
__global__ void __launch_bounds__(kNormThreads, kVectors <= 4 ? 6 : 4) rms_norm_kernel(const RmsNormArgs p) {
  __shared__ float partial[kNormThreads / 32];
  const int row = static_cast<int>(blockIdx.x);
  const std::int64_t from = p.row_index == nullptr ? row : p.row_index[row];
  const auto* const in = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.in) + from * p.in_stride);
  auto* const sum = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.sum) + row * p.in_stride);
  const int vectors = p.width / 8;
  const bool adds = p.add[0] != nullptr || p.add[1] != nullptr;
  uint4 x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    x[i] = at < vectors ? in[at] : make_uint4(0, 0, 0, 0);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    if (at >= vectors) continue;
    Vector8 v = unpack(x[i]);
    if (adds) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        if (p.add[a] == nullptr) continue;
        const Vector8 y = unpack(reinterpret_cast<const uint4*>(p.add[a])[from * vectors + at]);
#pragma unroll
        for (int j = 0; j < 8; ++j) v.v[j] += y.v[j];
      }
      x[i] = pack(v);
      v = unpack(x[i]);
    }
    if (p.sum != nullptr && (adds || p.sum != p.in)) sum[at] = x[i];
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v.v[j] * v.v[j];
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0.0f;
#pragma unroll
  for (int w = 0; w < kNormThreads / 32; ++w) squares += partial[w];
  const float scale = rsqrtf(squares / static_cast<float>(p.width) + p.epsilon);
  const auto* const weight = static_cast<const uint4*>(p.weight);
  auto* const out = static_cast<uint4*>(p.out) + static_cast<std::int64_t>(row) * vectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    if (at >= vectors) continue;
    const Vector8 v = unpack(x[i]), w = unpack(__ldg(weight + at));
    Vector8 y;
#pragma unroll
    for (int j = 0; j < 8; ++j) y.v[j] = v.v[j] * scale * w.v[j];
    out[at] = pack(y);
  }
}

__global__ void __launch_bounds__(256) rope_table_kernel(const RopeTableArgs p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const int pairs = p.dim / 2;
  if (i >= static_cast<std::int64_t>(p.positions) * pairs) return;
  const double angle =
      static_cast<double>(i / pairs) * pow(p.theta, -2.0 * static_cast<double>(i % pairs) / static_cast<double>(p.dim));
  p.table[2 * i] = static_cast<float>(cos(angle));
  p.table[2 * i + 1] = static_cast<float>(sin(angle));
}

/// A pair rotated by the angle whose cos and sin are in `turn`.
__device__ __forceinline__ float2 rotate(float2 x, float2 turn) {
  return make_float2(x.x * turn.x - x.y * turn.y, x.y * turn.x + x.x * turn.y);
}

/// One warp a token.
__global__ void __launch_bounds__(128) mla_write_kernel(const MlaWriteArgs p) {
  const int token = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= p.tokens) return;
  const int slot = p.slot_mapping[token];
  if (slot < 0) return;
  const auto* const kv = static_cast<const __nv_bfloat16*>(p.kv) + token * p.kv_stride;
  auto* const to = static_cast<__nv_bfloat16*>(p.cache) + static_cast<std::int64_t>(slot) * kMlaCached;
  const auto* const in = reinterpret_cast<const uint4*>(kv);
  Vector8 x[2];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[i] = unpack(in[i * 32 + lane]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += x[i].v[j] * x[i].v[j];
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(kMlaLatent) + p.epsilon);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Vector8 w = unpack(__ldg(static_cast<const uint4*>(p.weight) + i * 32 + lane));
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i].v[j] *= scale * w.v[j];
    reinterpret_cast<uint4*>(to)[i * 32 + lane] = pack(x[i]);
  }
  const std::uint32_t pair = reinterpret_cast<const std::uint32_t*>(kv + kMlaLatent)[lane];
  const float2 turn =
      reinterpret_cast<const float2*>(p.rope)[static_cast<std::int64_t>(p.positions[token]) * 32 + lane];
  const float2 y = rotate(make_float2(sm90::bf16_low(pair), sm90::bf16_high(pair)), turn);
  reinterpret_cast<std::uint32_t*>(to + kMlaLatent)[lane] = sm90::pack_bf16(y.x, y.y);
}

/// One thread a pair.
__global__ void __launch_bounds__(256) mla_rotate_kernel(const MlaRotateArgs p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t vector = i / 32;  // token and head
  const int pair = static_cast<int>(i % 32);
  if (vector >= static_cast<std::int64_t>(p.tokens) * p.heads) return;
  const std::int64_t token = vector / p.heads;
  const int head = static_cast<int>(vector % p.heads);
  const auto* const in = reinterpret_cast<const std::uint32_t*>(static_cast<const __nv_bfloat16*>(p.q) +
                                                                token * p.q_stride + head * kMlaQk + kMlaNope);
  auto* const out = reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride +
                                                     head * p.out_head_stride + p.out_column);
  const std::uint32_t x = in[pair];
  const std::int64_t position = p.positions[token];
  const float2 y = rotate(make_float2(sm90::bf16_low(x), sm90::bf16_high(x)),
                          reinterpret_cast<const float2*>(p.rope)[position * 32 + pair]);
  out[pair] = sm90::pack_bf16(y.x, y.y);
}

/// One warp a token and head. A lane holds elements 2 l, 2 l + 1 of each half, so that rotation stays in the lane.
__global__ void __launch_bounds__(128) gqa_write_kernel(const GqaWriteArgs p) {
  const int all = p.heads + 2 * p.kv_heads;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (index >= static_cast<std::int64_t>(p.tokens) * all) return;
  const int token = static_cast<int>(index / all), head = static_cast<int>(index % all);
  auto* const in = reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(p.qkv) + index * kGqaHeadDim);
  float x[4];  // elements 2 l, 2 l + 1, 64 + 2 l, 65 + 2 l
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t v = in[half * 32 + lane];
    x[2 * half] = sm90::bf16_low(v);
    x[2 * half + 1] = sm90::bf16_high(v);
    if (p.bias != nullptr) {
      const std::uint32_t b = static_cast<const std::uint32_t*>(p.bias)[head * 64 + half * 32 + lane];
      x[2 * half] += sm90::bf16_low(b);
      x[2 * half + 1] += sm90::bf16_high(b);
    }
  }
  const bool is_q = head < p.heads, is_k = !is_q && head < p.heads + p.kv_heads;
  const void* const weight = is_q ? p.q_weight : is_k ? p.k_weight : nullptr;
  if (weight != nullptr) {
    const float squares = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
    const float scale = rsqrtf(squares / static_cast<float>(kGqaHeadDim) + p.epsilon);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w = static_cast<const std::uint32_t*>(weight)[half * 32 + lane];
      x[2 * half] *= scale * sm90::bf16_low(w);
      x[2 * half + 1] *= scale * sm90::bf16_high(w);
    }
  }
  if (is_q || is_k) {
    const auto* const turn =
        reinterpret_cast<const float2*>(p.rope) + static_cast<std::int64_t>(p.positions[token]) * 64;
    const float2 a = rotate(make_float2(x[0], x[2]), turn[2 * lane]);
    const float2 b = rotate(make_float2(x[1], x[3]), turn[2 * lane + 1]);
    x[0] = a.x;
    x[2] = a.y;
    x[1] = b.x;
    x[3] = b.y;
  }
  std::uint32_t* out = in;
  if (!is_q) {
    const int slot = p.slot_mapping[token];
    if (slot < 0) return;
    const int kv_head = head - p.heads - (is_k ? 0 : p.kv_heads);
    out = reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(is_k ? p.k_cache : p.v_cache) +
                                           (static_cast<std::int64_t>(slot) * p.kv_heads + kv_head) * kGqaHeadDim);
  }
  out[lane] = sm90::pack_bf16(x[0], x[1]);
  out[32 + lane] = sm90::pack_bf16(x[2], x[3]);
}

__global__ void __launch_bounds__(256) swiglu_kernel(const SwiGluArgs p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= static_cast<std::int64_t>(p.rows) * (p.width / 8)) return;
  // Rows are whole numbers of blocks, so block i of the output has blocks 2 i and 2 i + 1 of the input.
  const Vector8 gate = unpack(static_cast<const uint4*>(p.in)[2 * i]),
                up = unpack(static_cast<const uint4*>(p.in)[2 * i + 1]);
  Vector8 y;
#pragma unroll
  for (int j = 0; j < 8; ++j) y.v[j] = __fdividef(gate.v[j], 1.0f + __expf(-gate.v[j])) * up.v[j];
  static_cast<uint4*>(p.out)[i] = pack(y);
}

__global__ void __launch_bounds__(256) embed_kernel(const EmbedArgs p) {
  const int vectors = p.hidden / 8;
  const auto* const from = static_cast<const uint4*>(p.table) + static_cast<std::int64_t>(p.ids[blockIdx.x]) * vectors;
  auto* const to = static_cast<uint4*>(p.out) + static_cast<std::int64_t>(blockIdx.x) * vectors;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += 256) to[i] = __ldg(from + i);
}

__global__ void __launch_bounds__(256) fill_kernel(const FillArgs p) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * 256;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x; i < p.count; i += step) {
    // A multiply and an add, not fused: the CPU reference rounds twice.
    const float x = __fadd_rn(p.offset, __fmul_rn(p.scale, uniform(p.seed, static_cast<std::uint64_t>(p.first + i))));
    if (p.type == NumberType::Float) {
      static_cast<float*>(p.out)[i] = x;
    } else if (p.type == NumberType::Bf16) {
      static_cast<__nv_bfloat16*>(p.out)[i] = __float2bfloat16_rn(x);
    } else {
      static_cast<__nv_fp8_storage_t*>(p.out)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    }
  }
}

unsigned blocks(std::int64_t items, int each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace pointwise

using pointwise::blocks;

cudaError_t launch_rms_norm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.rows < 0 || args.width < 8 || args.width % 8 != 0 || args.in_stride % 8 != 0 ||
      args.width > pointwise::kNormThreads * pointwise::kNormVectors * 8) {
    return cudaErrorInvalidValue;
  }
  const auto rows = static_cast<unsigned>(args.rows);
  if (args.width <= pointwise::kNormThreads * 8) {
    pointwise::rms_norm_kernel<1><<<rows, pointwise::kNormThreads, 0, stream>>>(args);
  } else if (args.width <= pointwise::kNormThreads * 8 * 4) {
    pointwise::rms_norm_kernel<4><<<rows, pointwise::kNormThreads, 0, stream>>>(args);
  } else {
    pointwise::rms_norm_kernel<pointwise::kNormVectors><<<rows, pointwise::kNormThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

cudaError_t launch_rope_table(const RopeTableArgs& args, cudaStream_t stream) {
  if (args.positions < 1 || args.dim < 2 || args.dim % 2 != 0) return cudaErrorInvalidValue;
  pointwise::rope_table_kernel<<<blocks(std::int64_t{args.positions} * (args.dim / 2), 256), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_mla_write(const MlaWriteArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens < 0 || args.kv_stride % 8 != 0) return cudaErrorInvalidValue;
  pointwise::mla_write_kernel<<<blocks(args.tokens, 4), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_mla_rotate(const MlaRotateArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens < 0 || args.heads < 1 || args.out_stride % 2 != 0 || args.q_stride % 2 != 0 ||
      args.out_head_stride % 2 != 0 || args.out_column % 2 != 0) {
    return cudaErrorInvalidValue;
  }
  pointwise::mla_rotate_kernel<<<blocks(std::int64_t{args.tokens} * args.heads * 32, 256), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_gqa_write(const GqaWriteArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens < 0 || args.heads < 1 || args.kv_heads < 1) return cudaErrorInvalidValue;
  const std::int64_t vectors = std::int64_t{args.tokens} * (args.heads + 2 * args.kv_heads);
  pointwise::gqa_write_kernel<<<blocks(vectors, 4), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_swiglu(const SwiGluArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.rows < 0 || args.width < 8 || args.width % 8 != 0) return cudaErrorInvalidValue;
  pointwise::swiglu_kernel<<<blocks(std::int64_t{args.rows} * (args.width / 8), 256), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens < 0 || args.hidden < 8 || args.hidden % 8 != 0) return cudaErrorInvalidValue;
  pointwise::embed_kernel<<<static_cast<unsigned>(args.tokens), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_fill(const FillArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  if (args.count < 0) return cudaErrorInvalidValue;
  const std::int64_t wanted = (args.count + 255) / 256;
  pointwise::fill_kernel<<<static_cast<unsigned>(wanted < 8192 ? wanted : 8192), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
