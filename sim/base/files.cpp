#include "sim/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "sim/base/error.h"

namespace dbo {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw InputError(path, "", std::string(what) + ": " + std::strerror(errno));
}

bool is_standard_output(const struct stat& file) {
  struct stat out {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == file.st_dev && out.st_ino == file.st_ino;
}

/// What a name stands for once its links are followed, be there a file or not.
std::string end_of_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux
  std::filesystem::path at = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    const auto next = std::filesystem::read_symlink(at, error);
    if (error) return at.string();  // no link, or nothing there
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
  errno = ELOOP;
  fail(path, "cannot write");
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

PendingFile::PendingFile(std::string path) : path_(std::move(path)) {
  struct stat there {};
  const bool exists = path_ != "-" && ::stat(path_.c_str(), &there) == 0;
  if (path_ == "-" || (exists && is_standard_output(there))) {
    std::fflush(stdout);  // what was printed before comes before
    fd_ = STDOUT_FILENO;
    owns_fd_ = false;
    return;
  }
  if (exists && !S_ISREG(there.st_mode)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail();
    return;
  }
  target_ = end_of_links(path_);
  temporary_ = target_ + ".part" + std::to_string(::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    temporary_.clear();
    fail();
  }
  if (exists && ::fchmod(fd_, there.st_mode & 0777) != 0) {
    const int reason = errno;
    discard();
    errno = reason;
    fail();
  }
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      owns_fd_(other.owns_fd_) {}

PendingFile::~PendingFile() {
  discard();
}

void PendingFile::discard() noexcept {
  if (fd_ >= 0 && owns_fd_) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void PendingFile::fail() const {
  dbo::fail(path_ == "-" ? "standard output" : path_, "cannot write");
}

void PendingFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail();
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void PendingFile::close() {
  if (fd_ < 0) return;
  const int fd = std::exchange(fd_, -1);
  if (owns_fd_ && ::close(fd) != 0) fail();
}

void PendingFile::commit() {
  close();
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail();
  temporary_.clear();
}

void FileSet::write(const std::string& path, std::string_view content) {
  PendingFile file(path);
  file.write(content);
  add(std::move(file));
}

void FileSet::add(PendingFile file) {
  file.close();
  files_.push_back(std::move(file));
}

void FileSet::commit() {
  for (PendingFile& file : files_) file.commit();
  files_.clear();
}

void write_file(const std::string& path, std::string_view content) {
  PendingFile file(path);
  file.write(content);
  file.commit();
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw InputError(path, "", "cannot create the folder: " + error.message());
  if (!std::filesystem::is_directory(path)) throw InputError(path, "", "is not a folder");
}

}  // namespace dbo
