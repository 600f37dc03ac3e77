#include "tools/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace dbo {
namespace {

std::string note;

// Only calls that are safe in a signal handler.
void tell_and_end(int signal) {
  // Ends the line that a terminal shows "^C" and a progress bar on.
  if (isatty(STDERR_FILENO) != 0) [[maybe_unused]]
    const auto shown = write(STDERR_FILENO, "\n", 1);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, note.data(), note.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

InterruptNote::InterruptNote(std::string text) {
  note = std::move(text) + "\n";
  // Ignored by who started us (nohup, a shell's background): it stays so.
  if (std::signal(SIGINT, tell_and_end) == SIG_IGN) std::signal(SIGINT, SIG_IGN);
}

InterruptNote::~InterruptNote() {
  if (std::signal(SIGINT, SIG_DFL) == SIG_IGN) std::signal(SIGINT, SIG_IGN);
}

}  // namespace dbo
