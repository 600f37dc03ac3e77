#include "kernels/compute/grouped_tokens.cuh"

namespace dbo::kernels::grouped_tokens {

template cudaError_t prepare<256>();
template cudaError_t launch<256>(const GroupedGemmArgs&, cudaStream_t);

}  // namespace dbo::kernels::grouped_tokens
