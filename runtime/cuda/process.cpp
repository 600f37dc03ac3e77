#include "runtime/cuda/process.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>

#include "runtime/cuda/check.h"
#include "runtime/cuda/handles.h"
#include "sim/base/error.h"

namespace dbo::runtime {

void prepare_process() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("NCCL_NVLS_ENABLE", "0", 0);
}

std::string gpu_problem() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    return cudaGetErrorString(code);
  }
  return count > 0 ? std::string() : "no GPU is visible";
}

std::vector<GpuInfo> list_gpus() {
  const std::string problem = gpu_problem();
  if (!problem.empty()) throw CudaError("no GPU can be used here: " + problem);
  int count = 0;
  DBO_CUDA_CHECK(cudaGetDeviceCount(&count));
  std::vector<GpuInfo> gpus;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp prop{};
    DBO_CUDA_CHECK(cudaGetDeviceProperties(&prop, index));
    GpuInfo gpu;
    gpu.index = index;
    gpu.name = prop.name;
    char bus_id[32] = {};
    DBO_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index));
    gpu.bus_id = bus_id;
    gpu.major = prop.major;
    gpu.minor = prop.minor;
    gpu.sms = prop.multiProcessorCount;
    gpu.memory_bytes = prop.totalGlobalMem;
    gpu.l2_bytes = static_cast<std::size_t>(prop.l2CacheSize);
    DBO_CUDA_CHECK(cudaDeviceGetAttribute(&gpu.clock_khz, cudaDevAttrClockRate, index));
    gpus.push_back(gpu);
  }
  return gpus;
}

Versions versions() {
  Versions v;
  DBO_CUDA_CHECK(cudaDriverGetVersion(&v.driver));
  DBO_CUDA_CHECK(cudaRuntimeGetVersion(&v.runtime));
  DBO_NCCL_CHECK(ncclGetVersion(&v.nccl));
  v.nccl_headers = NCCL_VERSION_CODE;
  return v;
}

std::string version_text(int cuda_version) {
  return std::to_string(cuda_version / 1000) + "." + std::to_string(cuda_version % 1000 / 10);
}

std::string nccl_version_text(int nccl_version) {
  return std::to_string(nccl_version / 10000) + "." + std::to_string(nccl_version / 100 % 100) + "." +
         std::to_string(nccl_version % 100);
}

void check_nccl_version() {
  const Versions v = versions();
  if (v.nccl != v.nccl_headers) {
    throw NcclError("libnccl.so.2 is version " + nccl_version_text(v.nccl) + ", this program was built with " +
                    nccl_version_text(v.nccl_headers) +
                    ": put that release first in the library path (its device side is not compatible with others)");
  }
}

void start_gpu(int gpu) {
  DBO_CUDA_CHECK(cudaSetDevice(gpu));
  DBO_CUDA_CHECK(cudaFree(nullptr));
}

void enable_peer_access(int gpu, const std::vector<int>& peers) {
  const DeviceGuard guard(gpu);
  for (const int peer : peers) {
    if (peer == gpu) continue;
    int can = 0;
    DBO_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, gpu, peer));
    if (can == 0) {
      throw CudaError("GPU " + std::to_string(gpu) + " cannot reach the memory of GPU " + std::to_string(peer));
    }
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      DBO_CUDA_CHECK(code);
    }
  }
}

}  // namespace dbo::runtime
