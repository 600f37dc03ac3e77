// A file written in pieces, compressed when its name ends in ".gz".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dbo {

/// Writes to a temporary file beside `path`; `commit` renames it, so that a reader never sees half a file. Without
/// commit the destructor removes it. Throws InputError naming the file and the reason.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view piece);
  void commit();

 private:
  struct Deflate;

  void put(std::string_view bytes);
  void deflate_piece(std::string_view piece, bool last);
  [[noreturn]] void fail() const;

  std::string path_, temporary_;
  int fd_ = -1;
  std::unique_ptr<Deflate> deflate_;  ///< null when the file is plain
};

}  // namespace dbo
