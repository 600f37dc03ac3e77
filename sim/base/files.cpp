#include "sim/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "sim/base/error.h"

namespace dbo {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw InputError(path, "", std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

std::string read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot open");
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int reason = errno;
      ::close(fd);
      errno = reason;
      fail(path, "cannot read");
    }
    if (got == 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return content;
}

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".part" + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(path, "cannot write");
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int reason = errno;
      ::close(fd);
      ::unlink(temporary.c_str());
      errno = reason;
      fail(path, "cannot write");
    }
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::close(fd) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail(path, "cannot write");
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw InputError(path, "", "cannot create the folder: " + error.message());
  if (!std::filesystem::is_directory(path)) throw InputError(path, "", "is not a folder");
}

}  // namespace dbo
