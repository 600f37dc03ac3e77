#include "sim/base/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "sim/base/error.h"

namespace dbo {
namespace {

std::string escape_pointer_token(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

/// Builds Json from nlohmann's SAX events: its DOM would keep the last of duplicate keys without a word.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(static_cast<std::int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return add(Json(static_cast<double>(value)));
    return add(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Frame& frame = stack_.back();
    bool duplicate = false;
    // Small objects are searched; a set is built only for large ones.
    const Json::Object& members = frame.value.members();
    if (members.size() < 16) {
      for (const Json::Member& member : members) duplicate = duplicate || member.first == name;
    } else {
      if (frame.keys.empty())
        for (const Json::Member& member : members) frame.keys.insert(member.first);
      duplicate = !frame.keys.insert(name).second;
    }
    frame.key = std::move(name);
    if (duplicate) throw InputError(file_, pointer(), "duplicate key \"" + frame.key + "\" (each key once)");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::size_t line = 1, column = 1;
    const std::size_t end = std::min(position > 0 ? position - 1 : 0, text_.size());
    for (std::size_t i = 0; i < end; ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n' ? 1 : 0;
    }
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...".
    std::string what = error.what();
    if (const auto cut = what.find(": "); cut != std::string::npos) what = what.substr(cut + 2);
    throw InputError(file_ + ":" + std::to_string(line) + ":" + std::to_string(column), "", "not JSON: " + what);
  }

 private:
  struct Frame {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  std::string pointer() const {
    std::string text;
    for (const Frame& frame : stack_) {
      text += "/";
      text += frame.value.is_object() ? escape_pointer_token(frame.key) : std::to_string(frame.value.items().size());
    }
    return text;
  }

  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = stack_.back(); frame.value.is_object()) {
      frame.value.members().emplace_back(std::move(frame.key), std::move(value));
    } else {
      frame.value.items().push_back(std::move(value));
    }
    return true;
  }

  bool open(Json value) {
    if (stack_.size() >= kMaxDepth)
      throw InputError(file_, pointer(), "nested more than " + std::to_string(kMaxDepth) + " levels deep");
    stack_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(value));
  }

  static constexpr std::size_t kMaxDepth = 512;
  std::string_view text_;
  const std::string& file_;
  std::vector<Frame> stack_;
  Json root_;
};

/// Length of the valid UTF-8 sequence at the start of `text`, or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto tail = [&](std::size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char c = byte(0);
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if (c == 0xE0 && byte(1) < 0xA0) return 0;
    if (c == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (c == 0xF0 && byte(1) < 0x90) return 0;
    if (c == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

void append_compact(std::string& out, const Json& value) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_double()) {
    append_json_number(out, value.as_number());
  } else if (value.is_string()) {
    append_json_string(out, value.as_string());
  } else if (value.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out += ',';
      append_compact(out, value.items()[i]);
    }
    out += ']';
  } else {
    out += '{';
    for (std::size_t i = 0; i < value.members().size(); ++i) {
      if (i > 0) out += ',';
      append_json_string(out, value.members()[i].first);
      out += ':';
      append_compact(out, value.members()[i].second);
    }
    out += '}';
  }
}

/// One-line form with blanks after commas and colons. Left off once the text is longer than `longest`.
void append_inline(std::string& out, const Json& value, std::size_t longest = std::string::npos) {
  if (out.size() > longest) return;
  if (value.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out += ", ";
      append_inline(out, value.items()[i], longest);
      if (out.size() > longest) return;
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    for (std::size_t i = 0; i < value.members().size(); ++i) {
      if (i > 0) out += ", ";
      append_json_string(out, value.members()[i].first);
      out += ": ";
      append_inline(out, value.members()[i].second, longest);
      if (out.size() > longest) return;
    }
    out += '}';
  } else {
    append_compact(out, value);
  }
}

bool all_scalars(const Json::Array& items) {
  for (const Json& item : items)
    if (item.is_array() || item.is_object()) return false;
  return true;
}

constexpr std::size_t kLineWidth = 110;

void append_pretty(std::string& out, const Json& value, std::size_t indent) {
  const bool nested = value.is_array() || value.is_object();
  if (!nested) return append_compact(out, value);
  if (value.is_array() && all_scalars(value.items())) return append_inline(out, value);
  std::string line;
  append_inline(line, value, kLineWidth);
  if (indent > 0 && indent + line.size() <= kLineWidth) {
    out += line;
    return;
  }
  const std::string pad(indent + 2, ' ');
  out += value.is_array() ? "[" : "{";
  const std::size_t count = value.is_array() ? value.items().size() : value.members().size();
  for (std::size_t i = 0; i < count; ++i) {
    out += i > 0 ? ",\n" : "\n";
    out += pad;
    if (value.is_object()) {
      append_json_string(out, value.members()[i].first);
      out += ": ";
    }
    append_pretty(out, value.is_array() ? value.items()[i] : value.members()[i].second, indent + 2);
  }
  if (count > 0) out.append("\n").append(indent, ' ');
  out += value.is_array() ? "]" : "}";
}

}  // namespace

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : members())
    if (member.first == key) return &member.second;
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  for (Member& member : members())
    if (member.first == key) return member.second = std::move(value);
  members().emplace_back(std::string(key), std::move(value));
  return members().back().second;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array{};
  items().push_back(std::move(value));
  return items().back();
}

Json parse_json(std::string_view text, const std::string& file, JsonParseOptions options) {
  Builder builder(text, file);
  const bool ok =
      nlohmann::json::sax_parse(text, &builder, nlohmann::json::input_format_t::json, true, options.comments);
  DBO_CHECK(ok, "the JSON reader stopped without an error");
  return builder.take();
}

std::string compact_json(const Json& value) {
  std::string out;
  append_compact(out, value);
  return out;
}

std::string pretty_json(const Json& value) {
  std::string out;
  append_pretty(out, value, 0);
  out += '\n';
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (length == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)) {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string_view digits(buffer, static_cast<std::size_t>(result.ptr - buffer));
  out += digits;
  // A double stays a double when read back.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

}  // namespace dbo
