// The bytes of a trace file, plain or gzip.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dbo {

class TraceFile {
 public:
  /// `progress` may be empty. Throws InputError naming the file and the reason.
  TraceFile(const std::string& path, std::function<void(double)> progress);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Up to `size` unpacked bytes; 0 at the end, also where a compressed file was cut. Throws InputError with the offset
  /// when the data cannot be unpacked.
  std::size_t read(char* to, std::size_t size);

 private:
  std::string path_;
  std::function<void(double)> progress_;
  void* file_ = nullptr;  ///< gzFile: zlib reads plain files as well
  double size_ = 0;
  std::uint64_t offset_ = 0, next_report_ = 0;
};

}  // namespace dbo
