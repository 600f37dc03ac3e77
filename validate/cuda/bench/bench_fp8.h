// The e4m3 part of `dbo-gpu bench gemm`.
#pragma once

#include "kernels/compute/tensor_map.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {

/// Grouped GEMM with e4m3 operands over tokens per expert, against twice the rate of `ceiling`, the dense bf16 product,
/// and the copy bandwidth; and the kernel that makes its rows.
void run_fp8_tables(const Session& session, const Session::Sequence& ceiling, const kernels::TensorMapEncoder& encoder,
                    const BenchOptions& options);

}  // namespace dbo::bench
