// What the launchers share.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/a2a/a2a.h"
#include "kernels/a2a/launch_plan.h"

namespace dbo::kernels {

inline bool is_call_valid(const A2aCall& c, Transport transport) {
  return c.layout.transport == transport && c.base != nullptr && (c.peers != nullptr || transport == Transport::Nccl) &&
         c.slot >= 0 && c.slot < c.layout.slots && c.blocks >= 1 && c.blocks <= static_cast<int>(kArrivalUnits);
}

inline bool is_routing_valid(const A2aCall& c, const TokenView& t) {
  return t.tokens >= 0 && t.tokens <= c.layout.dims.max_tokens &&
         (t.tokens == 0 || (t.expert != nullptr && t.weight != nullptr));
}

/// Rows are read and written 16 bytes at a time.
inline bool are_rows_valid(int tokens, const void* rows) {
  return tokens == 0 || (rows != nullptr && reinterpret_cast<std::uintptr_t>(rows) % 16 == 0);
}

inline bool are_tokens_valid(const A2aCall& c, const TokenView& t) {
  return is_routing_valid(c, t) && are_rows_valid(t.tokens, t.rows);
}

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), int blocks, int threads, std::size_t shared_bytes, cudaStream_t stream,
                   Args&&... args) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status != cudaSuccess) return status;
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes, stream>>>(
      std::forward<Args>(args)...);
  return cudaGetLastError();
}

template <typename Params>
cudaError_t launch(void (*kernel)(const Params), const LaunchPlan<Params>& plan, cudaStream_t stream) {
  return launch(kernel, plan.blocks, plan.threads, plan.shared_bytes, stream, plan.params);
}

/// Asking for a kernel's attributes loads it.
template <typename... Kernels>
cudaError_t preload(Kernels... kernels) {
  cudaError_t status = cudaSuccess;
  cudaFuncAttributes attributes;
  ((status = status == cudaSuccess ? cudaFuncGetAttributes(&attributes, kernels) : status), ...);
  return status;
}

namespace detail {

cudaError_t preload_scatter();
cudaError_t preload_gather();
cudaError_t preload_low_latency();
cudaError_t preload_copy_engine();
cudaError_t preload_nccl();
cudaError_t preload_clock_probe();

// What the copy-engine launchers take from gather.cu.
cudaError_t launch_copy_gather(const CombineArgs& args, bool wait_for_flags, cudaStream_t stream);

}  // namespace detail
}  // namespace dbo::kernels
