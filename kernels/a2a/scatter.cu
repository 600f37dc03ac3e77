#include "kernels/a2a/scatter.cuh"

#include "kernels/a2a/launch.cuh"

namespace dbo::kernels {
namespace {

using device::ScatterTo;

template <ScatterTo kTo>
cudaError_t launch_scatter(const DispatchArgs& args, Transport transport, cudaStream_t stream) {
  if (!is_call_valid(args.call, transport) || !are_tokens_valid(args.call, args.tokens)) return cudaErrorInvalidValue;
  const auto plan = device::plan_scatter(args);
  if (!plan) return cudaErrorInvalidValue;
  return launch(args.call.layout.payload == ElementType::Bf16 ? device::scatter_kernel<kTo, ElementType::Bf16>
                                                              : device::scatter_kernel<kTo, ElementType::Fp8E4m3>,
                *plan, stream);
}

}  // namespace

cudaError_t launch_ht_dispatch(const DispatchArgs& args, cudaStream_t stream) {
  if (args.row_limit != nullptr) return cudaErrorInvalidValue;
  return launch_scatter<ScatterTo::Peers>(args, Transport::LsaHt, stream);
}

cudaError_t launch_copy_pack(const DispatchArgs& args, cudaStream_t stream) {
  return launch_scatter<ScatterTo::Copies>(args, Transport::CopyEngine, stream);
}

cudaError_t launch_nccl_pack(const DispatchArgs& args, cudaStream_t stream) {
  return launch_scatter<ScatterTo::Blobs>(args, Transport::Nccl, stream);
}

namespace detail {

cudaError_t preload_scatter() {
  using device::scatter_kernel;
  return preload(
      scatter_kernel<ScatterTo::Peers, ElementType::Bf16>, scatter_kernel<ScatterTo::Peers, ElementType::Fp8E4m3>,
      scatter_kernel<ScatterTo::Copies, ElementType::Bf16>, scatter_kernel<ScatterTo::Copies, ElementType::Fp8E4m3>,
      scatter_kernel<ScatterTo::Blobs, ElementType::Bf16>, scatter_kernel<ScatterTo::Blobs, ElementType::Fp8E4m3>);
}

}  // namespace detail
}  // namespace dbo::kernels
