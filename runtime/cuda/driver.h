// The few driver calls the runtime needs, looked up at run time: nothing links the driver, so that every program starts
// where there is none and can say so.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace dbo::runtime {

struct Driver {
  PFN_cuGetErrorString_v6000 error_string = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetDevResource_v12040 device_resource = nullptr;
  PFN_cuDevSmResourceSplitByCount_v12040 split_sms = nullptr;
  PFN_cuDevResourceGenerateDesc_v12040 resource_desc = nullptr;
  PFN_cuGreenCtxCreate_v12040 green_create = nullptr;
  PFN_cuGreenCtxDestroy_v12040 green_destroy = nullptr;
  PFN_cuGreenCtxStreamCreate_v12050 green_stream = nullptr;
  PFN_cuStreamWriteValue64_v11070 write_value64 = nullptr;
};

/// The driver's calls; throws CudaError naming the first one this driver lacks. Looked up once per process.
const Driver& driver();

/// What the driver says about its error `code`.
std::string driver_error_text(int code);

}  // namespace dbo::runtime
