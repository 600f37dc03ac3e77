#include "validate/cuda/bench/green_split.h"

#include <cuda.h>

#include <string>

#include "sim/base/error.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {
namespace {

/// A driver function by name: nothing links libcuda.
template <typename Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 13000, cudaEnableDefault, &result), name);
  if (result != cudaDriverEntryPointSuccess) throw CudaError(std::string("this driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}

#define DBO_DRIVER(name) driver<decltype(name)>(#name)

void check_driver(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS)
    throw CudaError(std::string(what) + ": driver error " + std::to_string(static_cast<int>(status)));
}

}  // namespace

GreenSplit::GreenSplit(int sms) {
  check(cudaGetDevice(&device_), "cudaGetDevice");
  check(cudaFree(nullptr), "cudaFree");  // the primary context must live before green ones
  CUdevice device = 0;
  check_driver(DBO_DRIVER(cuDeviceGet)(&device, device_), "cuDeviceGet");
  CUdevResource all{}, parts[2] = {};
  check_driver(DBO_DRIVER(cuDeviceGetDevResource)(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  unsigned groups = 1;
  check_driver(
      DBO_DRIVER(cuDevSmResourceSplitByCount)(&parts[0], &groups, &all, &parts[1], 0, static_cast<unsigned>(sms)),
      "cuDevSmResourceSplitByCount");
  for (int i = 0; i < 2; ++i) {
    sms_[i] = static_cast<int>(parts[i].sm.smCount);
    CUdevResourceDesc description = nullptr;
    check_driver(DBO_DRIVER(cuDevResourceGenerateDesc)(&description, &parts[i], 1), "cuDevResourceGenerateDesc");
    CUgreenCtx context = nullptr;
    check_driver(DBO_DRIVER(cuGreenCtxCreate)(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                 "cuGreenCtxCreate");
    contexts_[i] = context;
    CUstream stream = nullptr;
    check_driver(DBO_DRIVER(cuGreenCtxStreamCreate)(&stream, context, CU_STREAM_NON_BLOCKING, 0),
                 "cuGreenCtxStreamCreate");
    streams_[i] = stream;
  }
}

GreenSplit::~GreenSplit() {
  (void)cudaSetDevice(device_);
  // Streams before their context.
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
  for (void* context : contexts_) {
    if (context != nullptr) (void)DBO_DRIVER(cuGreenCtxDestroy)(static_cast<CUgreenCtx>(context));
  }
}

}  // namespace dbo::bench
