#include "sim/cost/kernel_time.h"

#include <algorithm>
#include <cmath>

namespace dbo {
namespace {

using Kind = KernelWork::Kind;

/// Dense peak for a weight precision; what the GPU has no unit for runs at the next wider one.
double peak_flops(const GpuSpec& gpu, Precision precision) {
  switch (precision) {
    case Precision::Fp4:
      return gpu.fp4_flops > 0 ? gpu.fp4_flops : gpu.bf16_flops;
    case Precision::Fp8:
      return gpu.fp8_flops > 0 ? gpu.fp8_flops : gpu.bf16_flops;
    case Precision::Bf16:
      return gpu.bf16_flops;
    case Precision::Fp32:
      return gpu.bf16_flops / 2;  // tf32
  }
  return gpu.bf16_flops;
}

double memory_seconds(double bytes, const GpuSpec& gpu, const ComputeFactors& f, double share, int sms) {
  return bytes / std::min(gpu.hbm_bytes_per_s * share, sms * f.sm_bytes_per_s);
}

double gemm_share(const KernelWork& work, const ComputeFactors& f) {
  // The grouped factors are of fp8 kernels; other precisions keep the same distance from their own dense GEMM.
  const double dense =
      work.precision == Precision::Bf16 || work.precision == Precision::Fp32 ? f.bf16_gemm : f.fp8_gemm;
  if (work.kind == Kind::GroupedGemm) return dense * (f.grouped_gemm / f.fp8_gemm);
  if (work.kind == Kind::MaskedGemm) return dense * (f.masked_gemm / f.fp8_gemm);
  return dense;
}

double gemm_seconds(const KernelWork& work, const GpuSpec& gpu, const ComputeFactors& f, int sms, double& tiles) {
  const Tiling tiling =
      best_tiling(work.kind == Kind::Gemm ? std::vector<double>{work.m} : work.rows, work.n, sms, f.tile_edge);
  tiles = tiling.tiles;
  const double edge = 1 + f.tile_edge * (1.0 / tiling.rows + 1.0 / tiling.columns);
  const double tile_flops = 2.0 * tiling.rows * tiling.columns * (work.k + f.tile_k) * edge;
  const double rate = peak_flops(gpu, work.precision) / gpu.sms * gemm_share(work, f);
  return tiling.waves * tile_flops / rate;
}

/// Ring or one-shot alike: every GPU sends and receives (tp - 1) / tp of the tensor, twice for a sum.
double tensor_seconds(const KernelWork& work, const GpuSpec& gpu, const ComputeFactors& f, int tensor_parallel) {
  const double part = static_cast<double>(tensor_parallel - 1) / tensor_parallel;
  const double passes = work.kind == Kind::TensorReduce ? 2 : 1;
  return f.tensor_floor_s + passes * part * work.act_bytes / (gpu.link_bytes_per_s * f.tensor_link);
}

}  // namespace

Tiling best_tiling(const std::vector<double>& rows_of_groups, double n, int sms, double tile_edge) {
  Tiling best;
  double best_cost = 0;
  for (const int rows : {64, 128}) {
    double row_tiles = 0;
    // Expected rows need not be whole; a group with a chance of a row is a tile with that chance.
    for (const double m : rows_of_groups) row_tiles += m < 1 ? m : std::ceil(m / rows);
    for (int columns = 16; columns <= 256; columns += 16) {
      if (rows == 128 && columns > 160 && columns < 256) continue;  // accumulators of one tile fill the registers
      const double tiles = row_tiles * std::ceil(n / columns);
      const double waves = std::ceil(tiles / sms);
      const double cost = waves * rows * columns * (1 + tile_edge * (1.0 / rows + 1.0 / columns));
      if (best.rows == 0 || cost < best_cost) {
        best = {rows, columns, tiles, waves};
        best_cost = cost;
      }
    }
  }
  return best;
}

KernelTime kernel_time(const KernelWork& work, const GpuSpec& gpu, const ComputeFactors& f, int sms,
                       int tensor_parallel) {
  KernelTime time;
  time.hbm_bytes = work.weight_bytes + work.act_bytes;
  const double share = static_cast<double>(sms) / gpu.sms;
  double floor = f.small_floor_s * work.kernels, arithmetic = 0, rate = f.hbm;
  double loss = f.overlap_loss, beside = f.overlap_loss;
  switch (work.kind) {
    case Kind::Gemm:
    case Kind::GroupedGemm:
    case Kind::MaskedGemm:
      floor = f.gemm_floor_s;
      beside = f.beside_loss;
      arithmetic = gemm_seconds(work, gpu, f, sms, time.tiles);
      break;
    case Kind::BatchedGemm:
      arithmetic = work.flops / (gpu.bf16_flops * f.bf16_gemm * share);
      break;
    case Kind::DecodeCore:
      floor = f.core_floor_s;
      loss = f.core_overlap_loss;
      beside = f.core_beside_loss;
      arithmetic = work.flops / (gpu.bf16_flops * f.decode_core * share);
      break;
    case Kind::PrefillCore:
      floor = f.core_floor_s;
      loss = f.core_overlap_loss;
      beside = f.core_beside_loss;
      arithmetic = work.flops / (peak_flops(gpu, work.precision) * f.prefill_core * share);
      break;
    case Kind::Memory:
      break;
    case Kind::Activation:
      rate = f.activation_hbm;
      break;
    case Kind::TopK:
      arithmetic = work.tokens * f.top_k_sm_s / sms;
      break;
    case Kind::ExpertIndex:
      arithmetic = work.tokens * f.expert_index_sm_s / sms;
      break;
    case Kind::TensorReduce:
    case Kind::TensorGather:
      time.seconds = time.beside_seconds = tensor_seconds(work, gpu, f, tensor_parallel);
      return time;
  }
  const double memory = memory_seconds(time.hbm_bytes, gpu, f, rate, sms);
  const double longer = floor + std::max(arithmetic, memory) + f.kernel_gap_s * (work.kernels - 1);
  time.seconds = longer + loss * std::min(arithmetic, memory);
  time.sm_seconds = arithmetic;
  time.beside_seconds = longer + beside * std::min(arithmetic, memory);
  return time;
}

}  // namespace dbo
