// Appending text fast: a growing buffer that is written by pointer, for files of tens of megabytes.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "sim/base/units.h"

namespace dbo {

class TextOut {
 public:
  explicit TextOut(std::size_t expected_bytes) { text_.resize(expected_bytes + kSlack); }

  void put(std::string_view part) {
    reserve(part.size());
    std::memcpy(text_.data() + used_, part.data(), part.size());
    used_ += part.size();
  }
  void put(char c) {
    reserve(1);
    text_[used_++] = c;
  }
  void integer(std::int64_t value) {
    reserve(24);
    char* to = text_.data() + used_;
    used_ += static_cast<std::size_t>(std::to_chars(to, to + 24, value).ptr - to);
  }
  /// Microseconds with three decimals.
  void micros(std::int64_t ns) {
    reserve(32);
    used_ += static_cast<std::size_t>(write_us(text_.data() + used_, ns));
  }

  std::string take() {
    text_.resize(used_);
    return std::move(text_);
  }

 private:
  static constexpr std::size_t kSlack = 64;

  void reserve(std::size_t bytes) {
    if (used_ + bytes > text_.size()) text_.resize((used_ + bytes) * 2);
  }

  std::string text_;
  std::size_t used_ = 0;
};

}  // namespace dbo
