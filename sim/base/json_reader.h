// Strict, path-tracking reading of a parsed JSON document: every error names file, pointer, value, what is allowed and
// the nearest known name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace dbo {

/// A parsed file, and what its messages call it.
struct JsonDocument {
  std::string file;
  Json root;
  /// When set, collects the pointer of every key an ObjectReader asks for: what a reader knows, for tests of schemas.
  std::shared_ptr<std::set<std::string>> asked;
};

/// Reads and parses a file. Throws InputError when it cannot be read or parsed.
std::shared_ptr<const JsonDocument> load_json(const std::string& path, JsonParseOptions options = {});
/// The same for text already in memory; `file` is the name used in messages.
std::shared_ptr<const JsonDocument> json_document(std::string_view text, std::string file,
                                                  JsonParseOptions options = {});
std::shared_ptr<const JsonDocument> wrap_json(Json root, std::string file);

/// A place in a document. Cheap to copy: the pointer text is found by search only when an error needs it.
class JsonRef {
 public:
  explicit JsonRef(std::shared_ptr<const JsonDocument> document)
      : document_(std::move(document)), value_(&document_->root) {}
  JsonRef(const JsonRef& parent, const Json& child) : document_(parent.document_), value_(&child) {}

  const Json& value() const { return *value_; }
  const std::string& file() const { return document_->file; }
  std::string pointer() const;
  /// Notes that `key` of this object was asked for, when the document collects that.
  void note_asked(std::string_view key) const;

  /// Throws InputError at this place.
  [[noreturn]] void fail(const std::string& message) const;
  /// "must be WHAT, is VALUE".
  [[noreturn]] void fail_type(std::string_view what) const;

  bool boolean() const;
  const std::string& string() const;
  /// A whole number within [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  /// A count: a whole number within [low, 2^53].
  std::int64_t count(std::int64_t low = 0) const;
  /// Any finite number within [low, high].
  double number(double low, double high) const;
  std::vector<JsonRef> items() const;
  std::vector<std::int64_t> integers(std::int64_t low, std::int64_t high) const;
  /// One of `names`; returns its index.
  std::size_t one_of(const std::vector<std::string_view>& names, std::string_view what) const;

 private:
  std::shared_ptr<const JsonDocument> document_;
  const Json* value_;
};

/// An object whose keys are asked for one by one; `done` then rejects every key nobody asked for. Keys asked for are
/// the known ones, so the list in the message cannot fall behind the code.
class ObjectReader {
 public:
  /// Fails at `ref` when it is no object; `what` says what the object is, for messages.
  explicit ObjectReader(const JsonRef& ref, std::string_view what = "an object");

  const JsonRef& ref() const { return ref_; }
  std::optional<JsonRef> find(std::string_view key);
  /// Fails when the key is absent.
  JsonRef require(std::string_view key);
  bool has(std::string_view key) const { return ref_.value().find(key) != nullptr; }
  /// Throws on the first unknown key. Call it before using what was read.
  void done() const;

 private:
  JsonRef ref_;
  std::vector<std::string_view> known_;
};

/// The value as it stands in the file, cut to about `limit` characters, for messages.
std::string value_text(const Json& value, std::size_t limit = 60);

}  // namespace dbo
