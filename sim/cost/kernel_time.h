// How long a kernel takes alone on some SMs: a roofline with tile waves, a floor, and achieved-rate factors.
#pragma once

#include "sim/cost/factors.h"
#include "sim/cost/work.h"
#include "sim/model/hardware.h"

namespace dbo {

struct KernelTime {
  double seconds = 0;
  double beside_seconds = 0;  ///< with a comm kernel running beside it all along
  double sm_seconds = 0;      ///< of arithmetic, whether or not it is what the kernel waits for
  double tiles = 0;           ///< thread blocks' worth of output tiles; 0 when it is not made of tiles
  double hbm_bytes = 0;       ///< read and written
};

/// `sms`: SMs the kernel may use, at least 1. Time = floor + longer + overlap_loss * shorter, where arithmetic takes
/// waves * tile on those SMs and memory min(HBM, sms * one SM's rate). Beside communication the loss is larger.
KernelTime kernel_time(const KernelWork& work, const GpuSpec& gpu, const ComputeFactors& factors, int sms,
                       int tensor_parallel = 1);

/// Output tiles of an [m, n] product, for `sms` SMs: the tile shape that takes the fewest elements a wave. `columns`
/// and `rows` of the tile come back with the number of tiles.
struct Tiling {
  int rows = 0, columns = 0;
  double tiles = 0, waves = 0;
};
Tiling best_tiling(const std::vector<double>& rows_of_groups, double n, int sms, double tile_edge);

}  // namespace dbo
