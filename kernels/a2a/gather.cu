#include "kernels/a2a/gather.cuh"

#include "kernels/a2a/launch.cuh"

namespace dbo::kernels {
namespace {

using device::GatherFrom;

template <GatherFrom kFrom>
cudaError_t launch_gather(const CombineArgs& args, Transport transport, cudaStream_t stream) {
  const int tokens = args.tokens.tokens;
  if (!is_call_valid(args.call, transport) || tokens < 0 || tokens > args.call.layout.dims.max_tokens) {
    return cudaErrorInvalidValue;
  }
  if (!are_rows_valid(tokens, args.out)) return cudaErrorInvalidValue;
  return launch(device::gather_kernel<kFrom>, device::plan_gather(args), stream);
}

}  // namespace

cudaError_t launch_ht_combine(const CombineArgs& args, cudaStream_t stream) {
  return launch_gather<GatherFrom::PeerOutputs>(args, Transport::LsaHt, stream);
}

cudaError_t launch_nccl_reduce(const CombineArgs& args, cudaStream_t stream) {
  return launch_gather<GatherFrom::Received>(args, Transport::Nccl, stream);
}

namespace detail {

cudaError_t launch_copy_gather(const CombineArgs& args, bool wait_for_flags, cudaStream_t stream) {
  return wait_for_flags ? launch_gather<GatherFrom::Copies>(args, Transport::CopyEngine, stream)
                        : launch_gather<GatherFrom::Received>(args, Transport::CopyEngine, stream);
}

cudaError_t preload_gather() {
  return preload(device::gather_kernel<GatherFrom::PeerOutputs>, device::gather_kernel<GatherFrom::Copies>,
                 device::gather_kernel<GatherFrom::Received>);
}

}  // namespace detail
}  // namespace dbo::kernels
