// Fast text in pieces: written by pointer into one buffer that is handed on when it is full, so that files of tens of
// megabytes touch little memory.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>

#include "sim/base/units.h"

namespace dbo {

class TextOut {
 public:
  using Sink = std::function<void(std::string_view piece)>;

  explicit TextOut(Sink sink) : sink_(std::move(sink)), text_(new char[kBytes]) {}

  void put(std::string_view part) {
    if (part.size() > kBytes - used_) {
      flush();
      if (part.size() > kBytes) return sink_(part);
    }
    std::memcpy(text_.get() + used_, part.data(), part.size());
    used_ += part.size();
  }
  void put(char c) { put(std::string_view(&c, 1)); }
  void integer(std::int64_t value) {
    char* to = room();
    used_ += static_cast<std::size_t>(std::to_chars(to, to + kNumber, value).ptr - to);
  }
  /// Microseconds with three decimals.
  void micros(std::int64_t ns) { used_ += static_cast<std::size_t>(write_us(room(), ns)); }

  void flush() {
    if (used_ > 0) sink_({text_.get(), used_});
    used_ = 0;
  }

 private:
  static constexpr std::size_t kBytes = 1 << 18, kNumber = 32;

  char* room() {
    if (kBytes - used_ < kNumber) flush();
    return text_.get() + used_;
  }

  Sink sink_;
  std::unique_ptr<char[]> text_;
  std::size_t used_ = 0;
};

}  // namespace dbo
