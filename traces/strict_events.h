// Events of a trace file as the strict checkers read them: every member as it stands in the text, places and slices.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/json_scanner.h"

namespace dbo::strict {

inline constexpr std::int64_t kMaxExact = std::int64_t{1}
                                          << 53;  ///< beyond it a double, and so a browser, is off by one

/// A member of an event as it stands in the file.
struct Field {
  std::string text;
  bool quoted = false;
};
using Fields = std::map<std::string, Field, std::less<>>;

struct Event {
  std::uint64_t offset = 0;
  Fields fields, args;
  bool has_args = false;
  std::vector<std::string> duplicates;  ///< keys that came twice
};

/// One row: (pid, tid).
struct Place {
  std::int64_t pid = 0, tid = 0;
  auto operator<=>(const Place&) const = default;
};

struct Slice {
  std::int64_t start = 0, end = 0;
  std::uint64_t offset = 0;
};

/// Reads the next element of traceEvents. Throws ScanError.
Event read_event(JsonScanner& scanner);

const Field* find(const Fields& fields, std::string_view name);
std::string text_of(const Fields& fields, std::string_view name);  ///< empty when absent

/// A whole number written as one.
std::optional<std::int64_t> whole(const Field* field);
/// "12.345", digits, a point, three digits: in nanoseconds.
std::optional<std::int64_t> exact_micros(const Field* field);

/// Sorts the slices of a row and returns those that partly overlap one before them.
std::vector<Slice> partly_overlapping(std::vector<Slice>& row);
/// Whether a slice of a sorted row holds the time.
bool inside_a_slice(const std::vector<Slice>& row, std::int64_t time);

}  // namespace dbo::strict
