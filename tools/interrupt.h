// What a person who presses Ctrl-C is told.
#pragma once

#include <string>

namespace dbo {

/// While it lives, SIGINT writes `text` and a line end to stderr before it ends the process as it would have. One at a
/// time. What must survive is on disk at any time: nothing else is done.
class InterruptNote {
 public:
  explicit InterruptNote(std::string text);
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;
};

}  // namespace dbo
