// A JSON value that keeps what configuration and plan files need kept: member order, exact integers, duplicate keys as
// errors. Parsing is nlohmann's; only json.cpp sees that header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dbo {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  ///< in file order; keys are unique

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(unsigned value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  bool as_bool() const { return std::get<bool>(value_); }
  std::int64_t as_int() const { return std::get<std::int64_t>(value_); }
  double as_number() const { return is_int() ? static_cast<double>(as_int()) : std::get<double>(value_); }
  const std::string& as_string() const { return std::get<std::string>(value_); }
  const Array& items() const { return std::get<Array>(value_); }
  Array& items() { return std::get<Array>(value_); }
  const Object& members() const { return std::get<Object>(value_); }
  Object& members() { return std::get<Object>(value_); }

  /// The member of an object, or nullptr when there is none (or this is no object).
  const Json* find(std::string_view key) const;
  /// Appends a member to an object (null becomes an object) or replaces the one of that name. Returns the new value.
  Json& set(std::string_view key, Json value);
  /// Appends to an array (null becomes an array).
  Json& push(Json value);

  friend bool operator==(const Json&, const Json&) = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct JsonParseOptions {
  bool comments = false;  ///< allow // and /* */ comments
};

/// Parses `text`. Throws InputError with `file` and line:column on a syntax error, and with the pointer on a duplicate
/// key. Integers outside 64 bits and all numbers with a point or exponent become doubles.
Json parse_json(std::string_view text, const std::string& file, JsonParseOptions options = {});

/// Shortest text that reads back the same: no blanks, members in order. The canonical form that hashes are taken over.
std::string compact_json(const Json& value);

/// Text for people: two blanks an indent, arrays of scalars and short objects on one line. Ends with a newline.
std::string pretty_json(const Json& value);

/// Appends `text` as a JSON string with its quotes, escaping what must be escaped; invalid UTF-8 bytes become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

/// Appends the shortest decimal that reads back as `value`; NaN and infinities, which JSON lacks, become null.
void append_json_number(std::string& out, double value);

}  // namespace dbo
