#include "kernels/compute/grouped_tokens.cuh"

namespace dbo::kernels::grouped_tokens {

template cudaError_t prepare<128>();
template cudaError_t launch<128>(const GroupedGemmArgs&, cudaStream_t);

}  // namespace dbo::kernels::grouped_tokens
