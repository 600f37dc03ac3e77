#include "traces/trace_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sim/base/error.h"

namespace dbo {
namespace {

gzFile handle(void* file) {
  return static_cast<gzFile>(file);
}

}  // namespace

TraceFile::TraceFile(const std::string& path, std::function<void(double)> progress)
    : path_(path), progress_(std::move(progress)) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) throw InputError(path, "", std::string("cannot open: ") + std::strerror(errno));
  if (S_ISDIR(info.st_mode)) throw InputError(path, "", "is a folder");
  size_ = static_cast<double>(info.st_size);
  file_ = gzopen(path.c_str(), "rb");
  if (file_ == nullptr) throw InputError(path, "", std::string("cannot open: ") + std::strerror(errno));
  gzbuffer(handle(file_), 1 << 18);
}

TraceFile::~TraceFile() {
  gzclose(handle(file_));
}

std::size_t TraceFile::read(char* to, std::size_t size) {
  const int got = gzread(handle(file_), to, static_cast<unsigned>(std::min<std::size_t>(size, 1 << 20)));
  if (got < 0) {
    int code = Z_OK;
    const char* text = gzerror(handle(file_), &code);
    // A compressed file that was cut: what came before the cut is still good.
    if (code == Z_BUF_ERROR) return 0;
    throw InputError(path_, "", "byte " + std::to_string(offset_) + ": cannot unpack: " + text);
  }
  offset_ += static_cast<std::uint64_t>(got);
  if (progress_ && size_ > 0 && offset_ >= next_report_) {
    next_report_ = offset_ + (4 << 20);
    progress_(std::min(1.0, static_cast<double>(gzoffset(handle(file_))) / size_));
  }
  return static_cast<std::size_t>(got);
}

}  // namespace dbo
