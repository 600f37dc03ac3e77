#include "kernels/compute/dense_gemm.h"

#include <cublas_v2.h>

namespace dbo::kernels {

cudaError_t create_dense_context(void* scratch, std::size_t scratch_bytes, DenseContext& context) {
  cublasHandle_t handle = nullptr;
  const cublasStatus_t status = cublasCreate(&handle);
  context.last_status = status;
  if (status != CUBLAS_STATUS_SUCCESS) return cudaErrorUnknown;
  context.handle = handle;
  context.scratch = scratch;
  context.scratch_bytes = scratch_bytes;
  return cudaSuccess;
}

void destroy_dense_context(DenseContext& context) {
  // Nothing useful can be done about a failure here.
  if (context.handle != nullptr) (void)cublasDestroy(static_cast<cublasHandle_t>(context.handle));
  context.handle = nullptr;
}

cudaError_t launch_dense_gemm(DenseContext& context, const DenseGemmArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.n == 0 || args.batch == 0) return cudaSuccess;
  if (context.handle == nullptr || args.m < 0 || args.n < 0 || args.k < 1 || args.batch < 0)
    return cudaErrorInvalidValue;
  const auto handle = static_cast<cublasHandle_t>(context.handle);
  cublasStatus_t status = cublasSetStream(handle, stream);
  // Setting the stream puts cuBLAS's own scratch memory back, which a capture would have to allocate.
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetWorkspace(handle, context.scratch, context.scratch_bytes);
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetSmCountTarget(handle, args.sm_target);
  if (status == CUBLAS_STATUS_SUCCESS) {
    // cuBLAS counts by columns: our c[m][n] is its n x m, our w[n][k] its k x n.
    const float one = 1.0f, zero = 0.0f;
    const cublasOperation_t op = args.w_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cudaDataType_t out = args.c_is_float ? CUDA_R_32F : CUDA_R_16BF;
    if (args.batch == 1) {
      status =
          cublasGemmEx(handle, op, CUBLAS_OP_N, args.n, args.m, args.k, &one, args.w, CUDA_R_16BF,
                       static_cast<int>(args.w_stride), args.a, CUDA_R_16BF, static_cast<int>(args.a_stride), &zero,
                       args.c, out, static_cast<int>(args.c_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    } else {
      status = cublasGemmStridedBatchedEx(
          handle, op, CUBLAS_OP_N, args.n, args.m, args.k, &one, args.w, CUDA_R_16BF, static_cast<int>(args.w_stride),
          args.w_batch, args.a, CUDA_R_16BF, static_cast<int>(args.a_stride), args.a_batch, &zero, args.c, out,
          static_cast<int>(args.c_stride), args.c_batch, args.batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    }
  }
  if (status == CUBLAS_STATUS_SUCCESS) return cudaGetLastError();
  context.last_status = status;
  return cudaErrorUnknown;
}

}  // namespace dbo::kernels
