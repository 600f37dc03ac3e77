// Turns the return codes of CUDA, its driver, NCCL and CUPTI into exceptions with expression, name, text and place.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

namespace dbo::runtime {

[[noreturn]] void throw_cuda(cudaError_t code, const char* expression,
                             std::source_location where = std::source_location::current());
[[noreturn]] void throw_driver(int code, const char* expression,
                               std::source_location where = std::source_location::current());
[[noreturn]] void throw_nccl(int code, const char* expression,
                             std::source_location where = std::source_location::current());
[[noreturn]] void throw_cupti(int code, const char* expression,
                              std::source_location where = std::source_location::current());

/// What the calling thread is doing, named in the messages of the errors above: "MLP of ubatch 0, layer 3, rank 1".
class ErrorScope {
 public:
  explicit ErrorScope(std::string what);
  ~ErrorScope();
  ErrorScope(const ErrorScope&) = delete;
  ErrorScope& operator=(const ErrorScope&) = delete;

 private:
  std::string outer_;
};

}  // namespace dbo::runtime

/// Throw CudaError (NcclError for NCCL) when the call did not succeed.
#define DBO_CUDA_CHECK(call)                                                  \
  do {                                                                        \
    const cudaError_t dbo_code = (call);                                      \
    if (dbo_code != cudaSuccess) ::dbo::runtime::throw_cuda(dbo_code, #call); \
  } while (false)
#define DBO_DRIVER_CHECK(call)                                        \
  do {                                                                \
    const int dbo_code = static_cast<int>(call);                      \
    if (dbo_code != 0) ::dbo::runtime::throw_driver(dbo_code, #call); \
  } while (false)
#define DBO_NCCL_CHECK(call)                                        \
  do {                                                              \
    const int dbo_code = static_cast<int>(call);                    \
    if (dbo_code != 0) ::dbo::runtime::throw_nccl(dbo_code, #call); \
  } while (false)
#define DBO_CUPTI_CHECK(call)                                        \
  do {                                                               \
    const int dbo_code = static_cast<int>(call);                     \
    if (dbo_code != 0) ::dbo::runtime::throw_cupti(dbo_code, #call); \
  } while (false)
