// Variants of the grouped GEMM by the most tokens of a tile, each built in a file of its own. Only grouped_gemm.cu
// calls them.
#pragma once

#include "kernels/compute/grouped_gemm.h"

namespace dbo::kernels::grouped_tokens {

template <int kMaxTokens>
cudaError_t prepare();
template <int kMaxTokens>
cudaError_t launch(const GroupedGemmArgs& args, cudaStream_t stream);

extern template cudaError_t prepare<256>();
extern template cudaError_t prepare<128>();
extern template cudaError_t prepare<64>();
extern template cudaError_t launch<256>(const GroupedGemmArgs&, cudaStream_t);
extern template cudaError_t launch<128>(const GroupedGemmArgs&, cudaStream_t);
extern template cudaError_t launch<64>(const GroupedGemmArgs&, cudaStream_t);

}  // namespace dbo::kernels::grouped_tokens
