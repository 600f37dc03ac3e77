// The kernels of the grouped GEMM that draw their tiles. Only grouped_gemm.cu calls them.
#pragma once

#include "kernels/compute/grouped_gemm.h"

namespace dbo::kernels::grouped_tokens {

cudaError_t prepare();
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels::grouped_tokens

namespace dbo::kernels::grouped_fp8 {

cudaError_t prepare();
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels::grouped_fp8

namespace dbo::kernels::grouped_fp8_rows {

cudaError_t prepare();
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels::grouped_fp8_rows
