#include "traces/output_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "sim/base/error.h"

namespace dbo {

struct OutputFile::Deflate {
  z_stream stream{};
  std::vector<Bytef> out = std::vector<Bytef>(1 << 16);

  Deflate() {
    // 15 + 16: the largest window, with a gzip header (which carries no time and no name).
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
      throw InternalError("zlib cannot start compressing");
  }
  ~Deflate() { deflateEnd(&stream); }
  Deflate(const Deflate&) = delete;
  Deflate& operator=(const Deflate&) = delete;
};

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path + ".part" + std::to_string(::getpid())) {
  if (path.size() > 3 && path.compare(path.size() - 3, 3, ".gz") == 0) deflate_ = std::make_unique<Deflate>();
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail();
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::fail() const {
  throw InputError(path_, "", std::string("cannot write: ") + std::strerror(errno));
}

void OutputFile::put(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void OutputFile::deflate_piece(std::string_view piece, bool last) {
  z_stream& stream = deflate_->stream;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
  stream.avail_in = static_cast<uInt>(piece.size());
  int status = Z_OK;
  do {
    stream.next_out = deflate_->out.data();
    stream.avail_out = static_cast<uInt>(deflate_->out.size());
    status = deflate(&stream, last ? Z_FINISH : Z_NO_FLUSH);
    DBO_CHECK(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, "zlib cannot compress");
    put({reinterpret_cast<const char*>(deflate_->out.data()), deflate_->out.size() - stream.avail_out});
  } while (last ? status != Z_STREAM_END : stream.avail_out == 0);
}

void OutputFile::write(std::string_view piece) {
  if (!deflate_) return put(piece);
  constexpr std::size_t kMost = 1 << 30;  // zlib counts in unsigned int
  for (; !piece.empty(); piece.remove_prefix(std::min(piece.size(), kMost)))
    deflate_piece(piece.substr(0, kMost), false);
}

void OutputFile::commit() {
  if (deflate_) deflate_piece({}, true);
  const bool closed = ::close(fd_) == 0;
  fd_ = -1;
  if (!closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    errno = reason;
    fail();
  }
}

}  // namespace dbo
