// Dense GEMMs through cuBLAS, with a target for the SMs they should use. Plain C++ interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dbo::kernels {

/// A cuBLAS handle and the scratch memory it may use, for the GEMMs of one lane of one device: two lanes that run at
/// the same time need one each.
struct DenseContext {
  void* handle = nullptr;   ///< cublasHandle_t
  void* scratch = nullptr;  ///< device memory, kDenseScratchBytes
  std::size_t scratch_bytes = 0;
  int last_status = 0;  ///< cublasStatus_t of the last failed call, for messages
};

inline constexpr std::size_t kDenseScratchBytes = std::size_t{32} << 20;

/// On the current device. `scratch` stays the caller's.
[[nodiscard]] cudaError_t create_dense_context(void* scratch, std::size_t scratch_bytes, DenseContext& context);
void destroy_dense_context(DenseContext& context);

/// c[m][n] = a[m][k] w[n][k]^T, or with `w_is_kn` c = a w[k][n]; bf16 operands, fp32 sums. `batch` such products at
/// once, the strides elements from one to the next.
struct DenseGemmArgs {
  const void* a = nullptr;
  const void* w = nullptr;
  void* c = nullptr;
  int m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, w_stride = 0, c_stride = 0;  ///< elements from row to row
  bool w_is_kn = false;
  bool c_is_float = false;  ///< fp32 result instead of bf16
  int batch = 1;
  std::int64_t a_batch = 0, w_batch = 0, c_batch = 0;
  int sm_target = 0;  ///< a wish, 0: the whole device
};
/// cudaErrorUnknown when cuBLAS fails (`context.last_status` says how). Nothing is allocated: it can be captured.
[[nodiscard]] cudaError_t launch_dense_gemm(DenseContext& context, const DenseGemmArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
