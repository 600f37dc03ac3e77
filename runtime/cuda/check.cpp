#include "runtime/cuda/check.h"

#include <cupti_result.h>
#include <nccl.h>

#include <utility>

#include "runtime/cuda/driver.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

thread_local std::string current_scope;

std::string message(const std::string& name, const std::string& text, const char* expression,
                    const std::source_location& where) {
  std::string file = where.file_name();
  const auto slash = file.rfind('/');
  if (slash != std::string::npos) file.erase(0, slash + 1);
  std::string result = name + " (" + text + ") from " + expression + " at " + file + ":" + std::to_string(where.line());
  if (!current_scope.empty()) result += ", in " + current_scope;
  return result;
}

}  // namespace

ErrorScope::ErrorScope(std::string what) : outer_(std::exchange(current_scope, std::move(what))) {}

ErrorScope::~ErrorScope() {
  current_scope = std::move(outer_);
}

void throw_cuda(cudaError_t code, const char* expression, std::source_location where) {
  // Errors that are not sticky would be reported again by the next call that asks for the last one.
  (void)cudaGetLastError();
  throw CudaError(message(cudaGetErrorName(code), cudaGetErrorString(code), expression, where));
}

void throw_driver(int code, const char* expression, std::source_location where) {
  throw CudaError(message("driver error " + std::to_string(code), driver_error_text(code), expression, where));
}

void throw_nccl(int code, const char* expression, std::source_location where) {
  std::string text = ncclGetErrorString(static_cast<ncclResult_t>(code));
  const char* last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  throw NcclError(message("NCCL error " + std::to_string(code), text, expression, where));
}

void throw_cupti(int code, const char* expression, std::source_location where) {
  const char* text = nullptr;
  if (cuptiGetResultString(static_cast<CUptiResult>(code), &text) != CUPTI_SUCCESS) text = "no text";
  throw CudaError(message("CUPTI error " + std::to_string(code), text, expression, where));
}

}  // namespace dbo::runtime
