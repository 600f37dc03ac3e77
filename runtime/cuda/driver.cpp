#include "runtime/cuda/driver.h"

#include <cuda_runtime_api.h>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

template <typename Function>
void look_up(const char* name, unsigned version, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    (void)cudaGetLastError();
    throw CudaError("the CUDA driver has no " + std::string(name) + " (version " + std::to_string(version / 1000) +
                    "." + std::to_string(version % 1000 / 10) + " of it)");
  }
  function = reinterpret_cast<Function>(address);
}

Driver look_up_all() {
  Driver d;
  look_up("cuGetErrorString", 6000, d.error_string);
  look_up("cuDeviceGet", 2000, d.device_get);
  look_up("cuDeviceGetDevResource", 12040, d.device_resource);
  look_up("cuDevSmResourceSplitByCount", 12040, d.split_sms);
  look_up("cuDevResourceGenerateDesc", 12040, d.resource_desc);
  look_up("cuGreenCtxCreate", 12040, d.green_create);
  look_up("cuGreenCtxDestroy", 12040, d.green_destroy);
  look_up("cuGreenCtxStreamCreate", 12050, d.green_stream);
  look_up("cuStreamWriteValue64", 11070, d.write_value64);
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver found = look_up_all();
  return found;
}

std::string driver_error_text(int code) {
  const char* text = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
  look_up("cuGetErrorString", 6000, error_string);
  if (error_string(static_cast<CUresult>(code), &text) != CUDA_SUCCESS || text == nullptr) return "unknown";
  return text;
}

}  // namespace dbo::runtime
