#include "runtime/cuda/sm_partition.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/driver.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

CUgreenCtx make_context(CUdevice device, CUdevResource resource) {
  CUdevResourceDesc desc{};
  DBO_DRIVER_CHECK(driver().resource_desc(&desc, &resource, 1));
  CUgreenCtx context = nullptr;
  DBO_DRIVER_CHECK(driver().green_create(&context, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
  return context;
}

Stream make_stream(CUgreenCtx context, bool high_priority) {
  int least = 0, greatest = 0;
  DBO_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CUstream stream = nullptr;
  DBO_DRIVER_CHECK(driver().green_stream(&stream, context, CU_STREAM_NON_BLOCKING, high_priority ? greatest : least));
  return Stream::adopt(stream);
}

}  // namespace

SmPartition SmPartition::create(int gpu, int comm_sms) {
  CUdevice device = 0;
  DBO_DRIVER_CHECK(driver().device_get(&device, gpu));
  CUdevResource all{};
  DBO_DRIVER_CHECK(driver().device_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  if (comm_sms < 1 || comm_sms >= static_cast<int>(all.sm.smCount)) {
    throw InputError("green contexts need 1 to " + std::to_string(all.sm.smCount - 1) + " comm SMs, not " +
                     std::to_string(comm_sms));
  }
  CUdevResource comm{}, rest{};
  unsigned groups = 1;
  DBO_DRIVER_CHECK(driver().split_sms(&comm, &groups, &all, &rest, 0, static_cast<unsigned>(comm_sms)));
  if (groups != 1 || rest.type != CU_DEV_RESOURCE_TYPE_SM || rest.sm.smCount == 0) {
    throw InputError("setting " + std::to_string(comm_sms) + " comm SMs aside leaves none for compute");
  }
  SmPartition partition;
  partition.comm_ = make_context(device, comm);
  partition.compute_ = make_context(device, rest);
  partition.comm_sms_ = static_cast<int>(comm.sm.smCount);
  partition.compute_sms_ = static_cast<int>(rest.sm.smCount);
  return partition;
}

Stream SmPartition::compute_stream() const {
  return make_stream(compute_, false);
}

Stream SmPartition::comm_stream() const {
  return make_stream(comm_, true);
}

void SmPartition::reset() {
  if (comm_ != nullptr) (void)driver().green_destroy(comm_);
  if (compute_ != nullptr) (void)driver().green_destroy(compute_);
  comm_ = compute_ = nullptr;
}

}  // namespace dbo::runtime
