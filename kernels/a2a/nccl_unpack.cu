// Metadata messages of the nccl transport into the receiver's view, and NCCL windows to plain pointers.
#include <nccl_device.h>

#include "kernels/a2a/launch.cuh"
#include "kernels/a2a/nccl_exchange.h"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels {
namespace {

constexpr int kUnpackThreads = 256;

/// Copies `words` 4-byte words with the whole grid.
__device__ void copy_words(std::byte* to, const std::byte* from, std::size_t words) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) {
    reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  }
}

__global__ void __launch_bounds__(kUnpackThreads) unpack_kernel(const __grid_constant__ A2aCall c) {
  const A2aLayout& l = c.layout;
  std::byte* const data = device::slot_data(c, c.base);
  for (int source = 0; source < l.dims.ranks; ++source) {
    if (source == l.dims.rank) continue;
    const std::byte* const blob = data + l.recv_meta.offset + static_cast<std::size_t>(source) * l.blob.bytes;
    const int count = *reinterpret_cast<const std::int32_t*>(blob + l.blob.count);
    const auto rows = static_cast<std::size_t>(count);
    const std::size_t first = static_cast<std::size_t>(source) * static_cast<std::size_t>(l.dims.max_tokens);
    const auto top_k = static_cast<std::size_t>(l.dims.top_k);
    copy_words(data + l.source_token.offset + first * 4, blob + l.blob.source_token, rows);
    copy_words(data + l.expert.offset + first * top_k * 4, blob + l.blob.expert, rows * top_k);
    copy_words(data + l.weight.offset + first * top_k * 4, blob + l.blob.weight, rows * top_k);
    if (l.payload == ElementType::Fp8E4m3) {
      const std::size_t blocks = static_cast<std::size_t>(l.dims.hidden / kScaleBlock);
      copy_words(data + l.scales.offset + first * blocks * 4, blob + l.blob.scales, rows * blocks);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) reinterpret_cast<std::int32_t*>(data + l.count.offset)[source] = count;
  }
}

__global__ void window_peers_kernel(ncclWindow_t window, int ranks, std::byte** table) {
  for (int rank = static_cast<int>(threadIdx.x); rank < ranks; rank += static_cast<int>(blockDim.x)) {
    table[rank] = static_cast<std::byte*>(ncclGetLsaPointer(window, 0, rank));
  }
}

}  // namespace

cudaError_t launch_nccl_unpack(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::Nccl)) return cudaErrorInvalidValue;
  return launch(unpack_kernel, call.blocks, kUnpackThreads, 0, stream, call);
}

cudaError_t launch_window_peers(ncclWindow_t window, int ranks, std::byte** table, cudaStream_t stream) {
  if (window == nullptr || ranks < 1 || table == nullptr) return cudaErrorInvalidValue;
  return launch(window_peers_kernel, 1, 32, 0, stream, window, ranks, table);
}

namespace detail {

cudaError_t preload_nccl() {
  return preload(unpack_kernel, window_peers_kernel);
}

}  // namespace detail
}  // namespace dbo::kernels
