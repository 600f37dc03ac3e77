#include "traces/output_file.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
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

OutputFile::OutputFile(const std::string& path) : file_(path) {
  if (path.size() > 3 && path.compare(path.size() - 3, 3, ".gz") == 0) deflate_ = std::make_unique<Deflate>();
}

OutputFile::~OutputFile() = default;

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
    file_.write({reinterpret_cast<const char*>(deflate_->out.data()), deflate_->out.size() - stream.avail_out});
  } while (last ? status != Z_STREAM_END : stream.avail_out == 0);
}

void OutputFile::write(std::string_view piece) {
  if (!deflate_) return file_.write(piece);
  constexpr std::size_t kMost = 1 << 30;  // zlib counts in unsigned int
  for (; !piece.empty(); piece.remove_prefix(std::min(piece.size(), kMost)))
    deflate_piece(piece.substr(0, kMost), false);
}

void OutputFile::commit() {
  if (deflate_) deflate_piece({}, true);
  file_.commit();
}

void OutputFile::commit_to(FileSet& files) {
  if (deflate_) deflate_piece({}, true);
  files.add(std::move(file_));
}

}  // namespace dbo
