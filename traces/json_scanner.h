// A streaming JSON cursor for traces: files of gigabytes in a buffer of one megabyte, numbers as the text they were
// written in, and, unless strict, a forgiving reading of what profilers really write. The strict form serves the
// checkers of our own files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace dbo {

/// Text that is not JSON, at a byte offset of the uncompressed input.
class ScanError : public Error {
 public:
  ScanError(std::uint64_t offset, bool truncated, const std::string& what)
      : Error("byte " + std::to_string(offset) + ": " + what), offset_(offset), truncated_(truncated) {}

  std::uint64_t offset() const { return offset_; }
  bool truncated() const { return truncated_; }  ///< the input ended inside a value

 private:
  std::uint64_t offset_;
  bool truncated_;
};

class JsonScanner {
 public:
  /// Fills up to `size` bytes and returns how many; 0 at the end. May throw.
  using Source = std::function<std::size_t(char* to, std::size_t size)>;

  /// Reads from memory, which must outlive the scanner.
  explicit JsonScanner(std::string_view text, bool strict = false)
      : strict_(strict), cur_(text.data()), end_(text.data() + text.size()), base_(text.data()) {}
  /// Reads from a stream.
  explicit JsonScanner(Source source, bool strict = false);

  JsonScanner(const JsonScanner&) = delete;
  JsonScanner& operator=(const JsonScanner&) = delete;

  /// The next character that is no blank, or 0 at the end of the input. Does not move past it.
  char peek();
  /// Moves past `c` if it is the next character that is no blank.
  bool consume(char c);
  void expect(char c);
  std::uint64_t offset() const { return origin_ + static_cast<std::uint64_t>(cur_ - base_); }

  /// The characters of a string, escapes resolved. The view lives until the next call on the scanner.
  /// Not strict: control characters are taken as they are, and a quote that no comma, colon or bracket follows is part
  /// of the string (profilers have written names with bare quotes in them).
  std::string_view string() { return string(!strict_); }
  /// The text of a number, or of a bare word (true, false, null; not strict: NaN, Infinity and the like).
  std::string_view scalar();
  /// A string's characters or a scalar's text, whichever comes; `quoted` says which it was.
  std::string_view string_or_scalar(bool& quoted);
  /// The next value as it stands, blanks inside strings included (bounded: throws above 64 MiB).
  std::string raw_value();
  void skip_value() { skip_value(0); }

  /// Calls `on_key(name)` for each member; it must consume the value.
  template <typename F>
  void object(F on_key) {
    expect('{');
    if (consume('}')) return;
    while (true) {
      if (!strict_ && consume('}')) return;  // after a trailing comma
      key_.assign(string(false));
      expect(':');
      on_key(std::string_view(key_));
      if (consume('}')) return;
      if (!consume(',')) fail("expected ',' or '}'");
    }
  }

  /// Calls `on_item()` for each element; it must consume the value.
  template <typename F>
  void array(F on_item) {
    expect('[');
    if (consume(']')) return;
    while (true) {
      if (!strict_ && consume(']')) return;
      on_item();
      if (consume(']')) return;
      if (!consume(',')) fail("expected ',' or ']'");
    }
  }

  /// Moves past a UTF-8 byte order mark if one is next.
  void skip_byte_order_mark();

  /// After an error inside an array of objects: moves to the next place where an object of that array can begin (a
  /// comma, then a brace, then a quote), or to the end of the input. Returns whether there is one.
  bool resync();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip_value(int depth);
  /// `bare_quotes`: a quote may be part of the string; never in keys, or a missing colon would swallow what follows.
  std::string_view string(bool bare_quotes);
  std::string_view escaped_string(const char* from, bool bare_quotes);
  void append_escape(std::string& out);
  unsigned hex4();
  bool closes_string(const char* quote) const;
  /// Makes at least one more byte readable behind `end_`, keeping everything from `keep` on (moved to the front of the
  /// buffer; `keep` and `cur_` are adjusted). Returns false at the end of the input.
  bool refill(const char*& keep);
  bool more() {
    const char* keep = cur_;
    return refill(keep);
  }

  Source source_;
  bool strict_;
  std::vector<char> buffer_;
  const char* cur_ = nullptr;
  const char* end_ = nullptr;
  const char* base_ = nullptr;  ///< start of what is in memory
  std::uint64_t origin_ = 0;    ///< offset of base_ in the input
  std::string scratch_, key_;
};

}  // namespace dbo
