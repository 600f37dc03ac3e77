// A file written in pieces, compressed when its name ends in ".gz".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sim/base/files.h"

namespace dbo {

/// A PendingFile, with its rules: without `commit` or `commit_to` nothing changes. Throws InputError naming the file
/// and the reason.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view piece);
  void commit();
  /// Leaves the renaming to `files`.
  void commit_to(FileSet& files);

 private:
  struct Deflate;

  void deflate_piece(std::string_view piece, bool last);

  PendingFile file_;
  std::unique_ptr<Deflate> deflate_;  ///< null when the file is plain
};

}  // namespace dbo
