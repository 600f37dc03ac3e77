#include "traces/json_scanner.h"

#include <cstring>

#include "sim/base/json.h"

namespace dbo {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kMaxTokenBytes = 64 << 20;  // a longer string is no name but a sign of a missing quote
constexpr int kMaxDepth = 512;

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool ends_scalar(char c) {
  return is_blank(c) || c == ',' || c == '}' || c == ']' || c == ':' || c == '"' || c == '{' || c == '[';
}

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// RFC 8259's grammar of a number.
bool is_json_number(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - from;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const std::size_t first = i;
  const std::size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[first] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

}  // namespace

JsonScanner::JsonScanner(Source source, bool strict) : source_(std::move(source)), strict_(strict) {
  buffer_.resize(kBufferBytes);
  cur_ = end_ = base_ = buffer_.data();
}

void JsonScanner::fail(const std::string& what) const {
  throw ScanError(offset(), cur_ == end_, cur_ == end_ ? what + ", found the end of the file" : what);
}

bool JsonScanner::refill(const char*& keep) {
  if (!source_) return false;
  const auto kept = static_cast<std::size_t>(end_ - keep);
  const auto ahead = static_cast<std::size_t>(cur_ - keep);
  if (kept > kMaxTokenBytes) throw ScanError(offset(), false, "a value longer than 64 MiB");
  origin_ += static_cast<std::uint64_t>(keep - base_);
  if (kept + kBufferBytes / 2 > buffer_.size()) {
    std::vector<char> larger(buffer_.size() * 2);
    std::memcpy(larger.data(), keep, kept);
    buffer_.swap(larger);
  } else if (keep != buffer_.data()) {
    std::memmove(buffer_.data(), keep, kept);
  }
  base_ = keep = buffer_.data();
  cur_ = keep + ahead;
  const std::size_t got = source_(buffer_.data() + kept, buffer_.size() - kept);
  end_ = base_ + kept + got;
  return got > 0;
}

char JsonScanner::peek() {
  while (true) {
    while (cur_ < end_ && is_blank(*cur_)) ++cur_;
    if (cur_ < end_) return *cur_;
    if (!more()) return 0;
  }
}

bool JsonScanner::consume(char c) {
  if (peek() != c || cur_ == end_) return false;
  ++cur_;
  return true;
}

void JsonScanner::expect(char c) {
  if (!consume(c)) fail(std::string("expected '") + c + "'");
}

bool JsonScanner::closes_string(const char* quote) const {
  const char* p = quote + 1;
  while (p < end_ && is_blank(*p)) ++p;
  // At the end of what is in memory there is nothing to look at; a quote there is taken as the closing one.
  return p == end_ || *p == ',' || *p == ':' || *p == '}' || *p == ']';
}

std::string_view JsonScanner::string(bool bare_quotes) {
  expect('"');
  const char* from = cur_;
  while (true) {
    while (cur_ < end_ && *cur_ != '"' && *cur_ != '\\' && static_cast<unsigned char>(*cur_) >= 0x20) ++cur_;
    // The look-ahead of closes_string needs some bytes behind the quote.
    if ((cur_ == end_ || (bare_quotes && *cur_ == '"' && end_ - cur_ < 64)) && refill(from)) continue;
    if (cur_ == end_) fail("unfinished string");
    if (*cur_ == '"' && (!bare_quotes || closes_string(cur_))) {
      const std::string_view text(from, static_cast<std::size_t>(cur_ - from));
      ++cur_;
      return text;
    }
    if (*cur_ == '\\') return escaped_string(from, bare_quotes);
    if (strict_) fail("control character in a string");
    ++cur_;
  }
}

std::string_view JsonScanner::escaped_string(const char* from, bool bare_quotes) {
  scratch_.assign(from, cur_);
  while (true) {
    if ((cur_ == end_ || (bare_quotes && *cur_ == '"' && end_ - cur_ < 64)) && more()) continue;
    if (cur_ == end_) fail("unfinished string");
    if (scratch_.size() > kMaxTokenBytes) fail("a string longer than 64 MiB");
    if (*cur_ == '"' && (!bare_quotes || closes_string(cur_))) {
      ++cur_;
      return scratch_;
    }
    if (*cur_ == '\\') {
      ++cur_;
      append_escape(scratch_);
      continue;
    }
    if (strict_ && static_cast<unsigned char>(*cur_) < 0x20) fail("control character in a string");
    scratch_ += *cur_++;
  }
}

void JsonScanner::append_escape(std::string& out) {
  if (cur_ == end_ && !more()) fail("unfinished string");
  const char c = *cur_++;
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out += c;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u':
      break;
    default:
      if (strict_) fail("unknown escape");
      out += '\\';  // a path or template name written without escaping
      out += c;
      return;
  }
  unsigned code = hex4();
  if (code >= 0xD800 && code < 0xDC00) {
    while (end_ - cur_ < 6 && more()) {
    }
    if (end_ - cur_ >= 6 && cur_[0] == '\\' && cur_[1] == 'u') {
      cur_ += 2;
      const unsigned low = hex4();
      code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
    } else {
      code = 0xFFFD;
    }
  } else if (code >= 0xDC00 && code < 0xE000) {
    code = 0xFFFD;
  }
  append_utf8(out, code);
}

unsigned JsonScanner::hex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i) {
    if (cur_ == end_ && !more()) fail("unfinished escape");
    const char c = *cur_++;
    const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
    if (!digit && !lower && !upper) fail("an escape \\u needs four hexadecimal digits");
    code = code * 16 + static_cast<unsigned>(digit ? c - '0' : (lower ? c - 'a' : c - 'A') + 10);
  }
  return code;
}

std::string_view JsonScanner::scalar() {
  peek();
  const char* from = cur_;
  while (true) {
    while (cur_ < end_ && !ends_scalar(*cur_)) ++cur_;
    if (cur_ < end_ || !refill(from)) break;
  }
  const std::string_view text(from, static_cast<std::size_t>(cur_ - from));
  if (text.empty()) fail("expected a value");
  const bool word = text == "true" || text == "false" || text == "null";
  if (strict_ && !word && !is_json_number(text)) fail("\"" + std::string(text.substr(0, 40)) + "\" is no JSON value");
  return text;
}

std::string_view JsonScanner::string_or_scalar(bool& quoted) {
  quoted = peek() == '"';
  return quoted ? string() : scalar();
}

void JsonScanner::skip_value(int depth) {
  if (depth > kMaxDepth) fail("nested more than 512 levels deep");
  switch (peek()) {
    case '{':
      expect('{');
      if (consume('}')) return;
      while (true) {
        if (!strict_ && consume('}')) return;
        string(false);
        expect(':');
        skip_value(depth + 1);
        if (consume('}')) return;
        if (!consume(',')) fail("expected ',' or '}'");
      }
    case '[':
      array([&] { skip_value(depth + 1); });
      return;
    case '"':
      string();
      return;
    default:
      scalar();
      return;
  }
}

std::string JsonScanner::raw_value() {
  // Only small values are asked for (metadata, configurations), so they are rebuilt rather than kept in the buffer.
  std::string out;
  const std::function<void(int)> copy = [&](int depth) {
    if (depth > kMaxDepth) fail("nested more than 512 levels deep");
    if (out.size() > kMaxTokenBytes) fail("a value longer than 64 MiB");
    const char c = peek();
    if (c == '"') {
      append_json_string(out, string());
      return;
    }
    if (c != '{' && c != '[') {
      const std::string_view text = scalar();
      const bool word = text == "true" || text == "false" || text == "null";
      out += word || is_json_number(text) ? text : "null";
      return;
    }
    const char close = c == '{' ? '}' : ']';
    expect(c);
    out += c;
    bool first = true;
    while (!consume(close)) {
      if (!first) expect(',');
      if (!first && !strict_ && consume(close)) break;
      if (!first) out += ',';
      first = false;
      if (c == '{') {
        append_json_string(out, string(false));
        expect(':');
        out += ':';
      }
      copy(depth + 1);
    }
    out += close;
  };
  copy(0);
  return out;
}

void JsonScanner::skip_byte_order_mark() {
  while (end_ - cur_ < 3 && more()) {
  }
  if (end_ - cur_ >= 3 && std::memcmp(cur_, "\xEF\xBB\xBF", 3) == 0) cur_ += 3;
}

bool JsonScanner::resync() {
  while (true) {
    while (cur_ < end_ && *cur_ != ',') ++cur_;
    if (cur_ == end_) {
      if (!more()) return false;
      continue;
    }
    const char* keep = cur_;
    // Look past the comma without moving: "  ,  {  \"".
    const char* p = cur_ + 1;
    while (true) {
      while (p < end_ && is_blank(*p)) ++p;
      if (p < end_) break;
      const auto at = p - keep;
      if (!refill(keep)) return false;
      p = keep + at;
    }
    if (*p == '{') {
      const char* q = p + 1;
      while (true) {
        while (q < end_ && is_blank(*q)) ++q;
        if (q < end_) break;
        const auto at_q = q - keep, at_p = p - keep;
        if (!refill(keep)) return false;
        q = keep + at_q;
        p = keep + at_p;
      }
      if (*q == '"') {
        cur_ = p;
        return true;
      }
    }
    cur_ = keep + 1;
  }
}

}  // namespace dbo
