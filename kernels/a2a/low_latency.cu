#include "kernels/a2a/low_latency.cuh"

#include "kernels/a2a/launch.cuh"

namespace dbo::kernels {
cudaError_t launch_ll_dispatch_send(const DispatchArgs& args, cudaStream_t stream) {
  if (!is_call_valid(args.call, Transport::LsaLl) || !are_tokens_valid(args.call, args.tokens))
    return cudaErrorInvalidValue;
  if (args.row_limit != nullptr) return cudaErrorInvalidValue;
  const auto kernel = args.call.layout.payload == ElementType::Bf16
                          ? device::ll_dispatch_send_kernel<ElementType::Bf16>
                          : device::ll_dispatch_send_kernel<ElementType::Fp8E4m3>;
  return launch(kernel, device::plan_low_latency(args.call, args.tokens, nullptr), stream);
}

cudaError_t launch_ll_dispatch_receive(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::LsaLl)) return cudaErrorInvalidValue;
  return launch(device::ll_dispatch_receive_kernel, 1, device::kReceiveThreads, 0, stream, call);
}

cudaError_t launch_ll_combine_send(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::LsaLl)) return cudaErrorInvalidValue;
  return launch(device::ll_combine_send_kernel, device::plan_low_latency(call, {}, nullptr), stream);
}

cudaError_t launch_ll_combine_receive(const CombineArgs& args, cudaStream_t stream) {
  if (!is_call_valid(args.call, Transport::LsaLl) || !is_routing_valid(args.call, args.tokens))
    return cudaErrorInvalidValue;
  if (!are_rows_valid(args.tokens.tokens, args.out)) return cudaErrorInvalidValue;
  return launch(device::ll_combine_receive_kernel, device::plan_low_latency(args.call, args.tokens, args.out), stream);
}

namespace detail {

cudaError_t preload_low_latency() {
  return preload(device::ll_dispatch_send_kernel<ElementType::Bf16>,
                 device::ll_dispatch_send_kernel<ElementType::Fp8E4m3>, device::ll_combine_send_kernel,
                 device::ll_combine_receive_kernel, device::ll_dispatch_receive_kernel);
}

}  // namespace detail
}  // namespace dbo::kernels
