// What a process does before CUDA starts, and what GPUs it then finds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dbo::runtime {

/// Sets what CUDA and NCCL read from the environment once, at their start: modules are loaded eagerly (a lazy load
/// waits for all running kernels, and one of them may wait for the kernel being loaded), every stream gets a hardware
/// queue, and NCCL uses no NVLink multicast (a crash inside it can leave a switch unusable for the whole machine). Must
/// be called first in `main`, before any CUDA call or thread. The user's own settings win: NCCL_NVLS_ENABLE=1 asks for
/// multicast. Repeated calls do nothing.
void prepare_process();

struct GpuInfo {
  int index = 0;
  std::string name;
  std::string bus_id;  ///< of the PCI bus: names the GPU across processes
  int major = 0, minor = 0;
  int sms = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
  int clock_khz = 0;  ///< highest SM clock
};

struct Versions {
  int driver = 0;   ///< as CUDA counts: 13000 is 13.0
  int runtime = 0;  ///< of the CUDA runtime linked in
  int nccl = 0;     ///< of the library found at run time
  int nccl_headers = 0;
};

/// Why GPUs cannot be used here ("no CUDA-capable device is detected"), or empty.
std::string gpu_problem();
/// Throws CudaError with `gpu_problem()` when there is one.
std::vector<GpuInfo> list_gpus();
Versions versions();
std::string version_text(int cuda_version);       ///< "13.0"
std::string nccl_version_text(int nccl_version);  ///< "2.28.9"

/// Throws NcclError when NCCL's library is of another release than the headers: the device communicator's layout
/// differs.
void check_nccl_version();

/// Loads all kernels of this program and starts the context of GPU `gpu`, on the calling thread.
void start_gpu(int gpu);

/// Lets kernels of `gpu` reach the memory of `peers`, both ways where they are in this process. Throws CudaError naming
/// both GPUs when the hardware cannot.
void enable_peer_access(int gpu, const std::vector<int>& peers);

}  // namespace dbo::runtime
