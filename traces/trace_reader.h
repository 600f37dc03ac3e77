// Reads Chrome and Kineto traces, plain or gzip, array or object form, by streaming: memory goes with what is kept.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "traces/raw_trace.h"

namespace dbo {

struct ReadOptions {
  /// Called now and then with the share of the file that was read, 0 to 1.
  std::function<void(double)> progress;
  /// Slices of traces without GPU slices that are kept at most; more are counted as skipped.
  std::size_t max_generic = 4'000'000;
};

/// Throws InputError naming the file and, for what cannot be read at all, the byte offset (of the uncompressed text).
/// A file cut in the middle is no error as long as one event was read: RawTrace::truncated says so.
RawTrace read_raw_trace(const std::string& path, const ReadOptions& options = {});
/// The same from memory; `name` stands for the file in messages.
RawTrace read_raw_trace_text(std::string_view text, const std::string& name, const ReadOptions& options = {});

/// Microseconds as written, to nanoseconds: plain decimals exactly (rounded half up at the third decimal), other number
/// forms through a double. False when it is no finite number or beyond 126 years.
bool parse_micros(std::string_view text, std::int64_t& ns);

}  // namespace dbo
