#include "validate/cuda/anchor.h"

#include "kernels/compute/pointwise.h"
#include "runtime/cuda/check.h"

namespace dbo::validate {
namespace {

constexpr std::int64_t kSide = 4096;
constexpr std::size_t kMatrixBytes = static_cast<std::size_t>(kSide * kSide) * 2;
constexpr std::size_t kCopyBytes = std::size_t{512} << 20;

}  // namespace

AnchorTimer::AnchorTimer(runtime::HostGroup& group)
    : timer_(group, {}), scratch_(kernels::kDenseScratchBytes), operands_(3 * kMatrixBytes), copies_(2 * kCopyBytes) {
  DBO_CUDA_CHECK(kernels::create_dense_context(scratch_.get(), kernels::kDenseScratchBytes, dense_));
  const auto fill = [&](void* out, std::size_t bytes, std::uint64_t seed) {
    kernels::FillArgs args;
    args.out = out;
    args.count = static_cast<std::int64_t>(bytes / 2);
    args.seed = seed;
    DBO_CUDA_CHECK(kernels::launch_fill(args, timer_.stream()));
  };
  fill(operands_.get(), 2 * kMatrixBytes, 5);
  fill(copies_.get(), kCopyBytes, 6);
  await(timer_.stream(), Ns{10'000'000'000}, "filling the anchors");
}

AnchorTimer::~AnchorTimer() {
  kernels::destroy_dense_context(dense_);
}

Anchor AnchorTimer::measure() {
  kernels::DenseGemmArgs args;
  args.a = operands_.get();
  args.w = operands_.get() + kMatrixBytes;
  args.c = operands_.get() + 2 * kMatrixBytes;
  args.m = args.n = args.k = static_cast<int>(kSide);
  args.a_stride = args.w_stride = args.c_stride = kSide;
  const Enqueue gemm = [&](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_dense_gemm(dense_, args, stream)); };
  const Enqueue copy = [&](cudaStream_t stream) {
    DBO_CUDA_CHECK(
        cudaMemcpyAsync(copies_.get() + kCopyBytes, copies_.get(), kCopyBytes, cudaMemcpyDeviceToDevice, stream));
  };
  gemm(timer_.stream());  // the library's first call stays out of the capture
  await(timer_.stream(), Ns{10'000'000'000}, "an anchor");
  const RepeatRule rule{.least = 5, .most = 9};
  Anchor anchor;
  anchor.gemm_us = timer_.chain({gemm}, 8, gemm, rule).median_us;
  anchor.copy_us = timer_.chain({copy}, 4, copy, rule).median_us;
  return anchor;
}

}  // namespace dbo::validate
