#include "kernels/audit/checksum.h"

namespace dbo::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerArea = 64;

/// A bijection of 64 bits that spreads every bit (the finaliser of SplitMix64).
__device__ std::uint64_t spread(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Whole numbers are added, in any order: the sum does not depend on which block comes first.
__global__ void __launch_bounds__(kThreads) checksum_kernel(ChecksumArgs args) {
  const ChecksumArea area = args.areas[blockIdx.y];
  const auto* const data = static_cast<const ulonglong2*>(area.data);
  const std::uint64_t words = area.bytes / 16, all = words + area.guard_bytes / 16;
  std::uint64_t sum = 0, wrong = 0;
  for (std::uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < all; i += kBlocksPerArea * kThreads) {
    const ulonglong2 word = data[i];
    if (i < words) {
      sum += spread(word.x + spread(2 * i + 1)) + spread(word.y + spread(2 * i + 2));
    } else {
      wrong += word.x == ~0ull && word.y == ~0ull ? 0 : 1;
    }
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, lane);
    wrong += __shfl_down_sync(0xffffffffu, wrong, lane);
  }
  if (threadIdx.x % 32 != 0) return;
  ChecksumResult& result = args.results[blockIdx.y];
  atomicAdd(reinterpret_cast<unsigned long long*>(&result.sum), static_cast<unsigned long long>(sum));
  if (wrong > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&result.guard_wrong), static_cast<unsigned long long>(wrong));
}

}  // namespace

cudaError_t launch_checksums(const ChecksumArgs& args, cudaStream_t stream) {
  if (args.areas == nullptr || args.results == nullptr || args.count < 1 || args.count > 65535)
    return cudaErrorInvalidValue;
  const std::size_t bytes = static_cast<std::size_t>(args.count) * sizeof(ChecksumResult);
  const cudaError_t cleared = cudaMemsetAsync(args.results, 0, bytes, stream);
  if (cleared != cudaSuccess) return cleared;
  checksum_kernel<<<dim3(kBlocksPerArea, static_cast<unsigned>(args.count)), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
