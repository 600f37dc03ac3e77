#include "kernels/compute/clock_sample.h"

namespace dbo::kernels {
namespace {

__device__ __forceinline__ std::int64_t nanoseconds() {
  std::int64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__global__ void __launch_bounds__(32) clock_sample_kernel(const ClockSampleArgs p) {
  if (threadIdx.x != 0) return;
  // The timer moves in steps: begin and end right after one.
  const std::int64_t before = nanoseconds();
  std::int64_t begin = before;
  while (begin == before) begin = nanoseconds();
  const std::int64_t first = clock64();
  std::int64_t now = begin, seen = begin;
  while (now - begin < p.duration_ns || now == seen) {
    seen = now;
    now = nanoseconds();
  }
  p.cycles[0] = clock64() - first;
  p.cycles[1] = now - begin;
}

}  // namespace

cudaError_t launch_clock_sample(const ClockSampleArgs& args, cudaStream_t stream) {
  if (args.cycles == nullptr || args.duration_ns < 1) return cudaErrorInvalidValue;
  clock_sample_kernel<<<1, 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dbo::kernels
