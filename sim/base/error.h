// The exceptions of the project and the checks that throw them.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dbo {

/// Base of all errors the project throws. `main` catches once and turns the kind into an exit code.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad input or usage (exit 2). `file` and `pointer` say where; either may be empty when there is no such place.
class InputError : public Error {
 public:
  InputError(std::string file, std::string pointer, std::string message);
  explicit InputError(std::string message) : InputError({}, {}, std::move(message)) {}

  const std::string& file() const { return file_; }
  const std::string& pointer() const { return pointer_; }
  const std::string& message() const { return message_; }

 private:
  std::string file_, pointer_, message_;
};

/// A finding or mismatch that stops the work (exit 1), for example a deadlock in a plan.
class FindingError : public Error {
 public:
  using Error::Error;
};

/// A CUDA, cuBLAS or CUPTI call failed, or the GPU hangs (exit 3).
class CudaError : public Error {
 public:
  using Error::Error;
};

/// An NCCL call failed, or a peer is gone (exit 3).
class NcclError : public Error {
 public:
  using Error::Error;
};

/// Our bug (exit 4).
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Exit codes of every program of the project.
enum class Exit : int { Ok = 0, Finding = 1, Usage = 2, Gpu = 3, Bug = 4 };

/// A to Z as a to z; anything else as it is.
std::string lower_case(std::string_view text);

/// The known name that begins with `name`, else the nearest by edit distance; empty when none is near enough to be a
/// likely typing error.
std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known);

/// `(known: a, b, c; did you mean "b"?)`: what belongs behind a message about an unknown name.
std::string known_names(std::string_view name, const std::vector<std::string_view>& known);

/// `file` and `line` are the caller's: builtins, as Debian 12's clang has no std::source_location.
[[noreturn]] void throw_internal(std::string_view condition, std::string_view detail,
                                 const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace dbo

/// Always compiled in; throws InternalError with the condition, the detail and the place.
#define DBO_CHECK(cond, detail)                        \
  do {                                                 \
    if (!(cond)) ::dbo::throw_internal(#cond, detail); \
  } while (false)
