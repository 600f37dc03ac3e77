// The e4m3 part of `dbo-gpu bench gemm`.
#pragma once

#include "kernels/compute/tensor_map.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {

/// Grouped GEMM with e4m3 operands over tokens per expert, against twice the dense bf16 rate and the copy bandwidth,
/// and the kernel that makes its rows.
void run_fp8_tables(const Session& session, const kernels::TensorMapEncoder& encoder, const BenchOptions& options);

}  // namespace dbo::bench
