// One line of progress on stderr, rewritten in place; nothing at all when stderr is no terminal.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

namespace dbo {

class ProgressLine {
 public:
  /// Shows `text()` when some time has passed since it was shown last. `seconds` counts from the start.
  void show(double seconds, const std::function<std::string()>& text) {
    constexpr double kEvery = 0.2;
    if (!terminal_ || seconds < next_) return;
    next_ = seconds + kEvery;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s", text().c_str());
    std::fflush(stderr);
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }
  ~ProgressLine() { clear(); }
  ProgressLine() = default;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  double next_ = 0.5;  ///< what is over sooner shows nothing
};

}  // namespace dbo
