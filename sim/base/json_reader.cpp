#include "sim/base/json_reader.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/base/files.h"

namespace dbo {
namespace {

bool find_path(const Json& node, const Json* target, std::string& path) {
  if (&node == target) return true;
  const std::size_t length = path.size();
  if (node.is_array()) {
    for (std::size_t i = 0; i < node.items().size(); ++i) {
      path += "/" + std::to_string(i);
      if (find_path(node.items()[i], target, path)) return true;
      path.resize(length);
    }
  } else if (node.is_object()) {
    for (const Json::Member& member : node.members()) {
      path += "/";
      for (const char c : member.first) path += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
      if (find_path(member.second, target, path)) return true;
      path.resize(length);
    }
  }
  return false;
}

constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;

}  // namespace

std::shared_ptr<const JsonDocument> load_json(const std::string& path, JsonParseOptions options) {
  return json_document(read_file(path), path, options);
}

std::shared_ptr<const JsonDocument> json_document(std::string_view text, std::string file, JsonParseOptions options) {
  Json root = parse_json(text, file, options);
  return wrap_json(std::move(root), std::move(file));
}

std::shared_ptr<const JsonDocument> wrap_json(Json root, std::string file) {
  return std::make_shared<const JsonDocument>(JsonDocument{std::move(file), std::move(root), nullptr});
}

std::string JsonRef::pointer() const {
  std::string path;
  find_path(document_->root, value_, path);
  return path.empty() ? "/" : path;
}

void JsonRef::note_asked(std::string_view key) const {
  if (!document_->asked) return;
  const std::string path = pointer();
  document_->asked->insert((path == "/" ? "" : path) + "/" + std::string(key));
}

void JsonRef::fail(const std::string& message) const {
  throw InputError(document_->file, pointer(), message);
}

void JsonRef::fail_type(std::string_view what) const {
  fail("must be " + std::string(what) + ", is " + value_text(*value_));
}

bool JsonRef::boolean() const {
  if (!value_->is_bool()) fail_type("true or false");
  return value_->as_bool();
}

const std::string& JsonRef::string() const {
  if (!value_->is_string()) fail_type("a string");
  return value_->as_string();
}

std::int64_t JsonRef::integer(std::int64_t low, std::int64_t high) const {
  const std::string what = high >= kMaxCount
                               ? "a whole number of at least " + std::to_string(low)
                               : "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  if (!value_->is_int()) {
    // 1e9 and 2.0 are whole numbers to a reader: say what is wrong with them.
    const double written = value_->is_number() ? value_->as_number() : 0.5;
    if (std::trunc(written) == written && std::abs(written) <= static_cast<double>(kMaxCount))
      fail("must be " + what + ", written without point or exponent, is " + value_text(*value_));
    fail_type(what);
  }
  const std::int64_t number = value_->as_int();
  if (number < low || number > std::min(high, kMaxCount)) fail_type(what);
  return number;
}

std::int64_t JsonRef::count(std::int64_t low) const {
  return integer(low, kMaxCount);
}

double JsonRef::number(double low, double high) const {
  std::string what = "a number";
  const auto bound = [](double limit) {
    std::string text;
    append_json_number(text, limit);
    return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
  };
  if (std::isfinite(low) && std::isfinite(high)) {
    what += " from " + bound(low) + " to " + bound(high);
  } else if (std::isfinite(low)) {
    what += " of at least " + bound(low);
  }
  if (!value_->is_number() || !std::isfinite(value_->as_number())) fail_type(what);
  const double number = value_->as_number();
  if (number < low || number > high) fail_type(what);
  return number;
}

std::vector<JsonRef> JsonRef::items() const {
  if (!value_->is_array()) fail_type("an array");
  std::vector<JsonRef> out;
  out.reserve(value_->items().size());
  for (const Json& item : value_->items()) out.emplace_back(*this, item);
  return out;
}

std::vector<std::int64_t> JsonRef::integers(std::int64_t low, std::int64_t high) const {
  if (!value_->is_array()) fail_type("an array of whole numbers");
  std::vector<std::int64_t> out;
  out.reserve(value_->items().size());
  for (const Json& item : value_->items()) out.push_back(JsonRef(*this, item).integer(low, high));
  return out;
}

std::size_t JsonRef::one_of(const std::vector<std::string_view>& names, std::string_view what) const {
  const std::string& name = string();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return i;
  fail("unknown " + std::string(what) + " \"" + name + "\" " + known_names(name, names));
}

ObjectReader::ObjectReader(const JsonRef& ref, std::string_view what) : ref_(ref) {
  if (!ref.value().is_object()) ref.fail_type(what);
}

std::optional<JsonRef> ObjectReader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  ref_.note_asked(key);
  const Json* value = ref_.value().find(key);
  if (value == nullptr) return std::nullopt;
  return JsonRef(ref_, *value);
}

JsonRef ObjectReader::require(std::string_view key) {
  if (auto value = find(key)) return *value;
  ref_.fail("missing key \"" + std::string(key) + "\"");
}

void ObjectReader::done() const {
  for (const Json::Member& member : ref_.value().members()) {
    bool known = false;
    for (const std::string_view key : known_) known = known || key == member.first;
    if (!known)
      JsonRef(ref_, member.second).fail("unknown key \"" + member.first + "\" " + known_names(member.first, known_));
  }
}

std::string value_text(const Json& value, std::size_t limit) {
  std::string text = compact_json(value);
  if (text.size() > limit) {
    // Cut before a UTF-8 continuation byte, never inside a character.
    std::size_t cut = limit;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

}  // namespace dbo
