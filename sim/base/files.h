// Whole files in and out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dbo {

/// The whole content. Throws InputError naming the file and the system's reason.
std::string read_file(const std::string& path);

/// A file being written. A regular file (or a new one) is written beside its name and renamed by `commit`, so that a
/// reader never sees half of it and a failure leaves the old one; a link is followed, and an existing file keeps its
/// permissions. Whatever else the name stands for (a FIFO, a device) is written into and never replaced, as is standard
/// output: "-", or any name of the file that standard output is. Throws InputError naming the file and the reason.
class PendingFile {
 public:
  explicit PendingFile(std::string path);
  /// Without `commit`, removes what was written beside the name.
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;

  void write(std::string_view bytes);
  /// All bytes are with the file system after this, or it throws.
  void close();
  void commit();

 private:
  [[noreturn]] void fail() const;
  void discard() noexcept;

  std::string path_;       ///< as given: what errors name
  std::string target_;     ///< where links lead
  std::string temporary_;  ///< empty: written in place, or committed
  int fd_ = -1;
  bool owns_fd_ = true;
};

/// Files that belong to one run: all are written before the first takes its name, so that a failure (a full disk)
/// leaves the files of the run before, and never some of each.
class FileSet {
 public:
  void write(const std::string& path, std::string_view content);
  /// Takes a file whose content is complete.
  void add(PendingFile file);
  void commit();

 private:
  std::vector<PendingFile> files_;
};

/// One file through PendingFile.
void write_file(const std::string& path, std::string_view content);

/// Creates the folder and those above it. Throws InputError when that fails or something else is there.
void make_folder(const std::string& path);

}  // namespace dbo
