#include "tests/sim/config/json_schema.h"

#include "sim/base/error.h"

namespace dbo {
namespace {

const Json& resolved(const Json& root, const Json& schema) {
  const Json* ref = schema.find("$ref");
  if (ref == nullptr) return schema;
  constexpr std::string_view kPrefix = "#/$defs/";
  DBO_CHECK(ref->as_string().starts_with(kPrefix), "a reference into $defs");
  const Json* target = root.find("$defs")->find(ref->as_string().substr(kPrefix.size()));
  DBO_CHECK(target != nullptr, "a definition for " + ref->as_string());
  return *target;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") return value.is_int();
  DBO_CHECK(type == "number", "type " + type);
  return value.is_number();
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  std::string violation(const Json& schema, const Json& value, const std::string& at) const {
    for (const Json::Member& member : schema.members()) {
      const std::string found = check(member.first, member.second, schema, value, at);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  std::string check(const std::string& keyword, const Json& argument, const Json& schema, const Json& value,
                    const std::string& at) const {
    for (const std::string_view note : {"$schema", "$defs", "title", "description", "default"})
      if (keyword == note) return {};
    if (keyword == "$ref") return violation(resolved(root_, schema), value, at);
    if (keyword == "type") return has_type(value, argument.as_string()) ? "" : at + ": not " + argument.as_string();
    if (keyword == "enum") return check_enum(argument, value, at);
    if (keyword == "anyOf" || keyword == "oneOf") return check_forms(keyword == "oneOf", argument, value, at);
    if (keyword == "required") return check_required(argument, value, at);
    if (keyword == "properties") return check_properties(argument, value, at);
    if (keyword == "additionalProperties") return check_additional(schema, value, at);
    if (keyword == "items") return check_items(argument, value, at);
    if (keyword == "minItems")
      return static_cast<std::int64_t>(value.items().size()) >= argument.as_int() ? "" : at + ": too few items";
    if (keyword == "minimum") return value.as_number() >= argument.as_number() ? "" : at + ": too small";
    if (keyword == "maximum") return value.as_number() <= argument.as_number() ? "" : at + ": too large";
    throw InternalError("the validator does not know " + keyword);
  }

  static std::string check_enum(const Json& argument, const Json& value, const std::string& at) {
    for (const Json& allowed : argument.items())
      if (allowed == value) return {};
    return at + ": none of the allowed values";
  }

  std::string check_forms(bool exactly_one, const Json& forms, const Json& value, const std::string& at) const {
    int matches = 0;
    std::string reasons;
    for (const Json& form : forms.items()) {
      const std::string found = violation(form, value, at);
      matches += found.empty() ? 1 : 0;
      reasons += found.empty() ? "" : "\n  " + found;
    }
    if (matches == 0) return at + ": matches no form" + reasons;
    return exactly_one && matches > 1 ? at + ": matches several forms" : "";
  }

  static std::string check_required(const Json& keys, const Json& value, const std::string& at) {
    for (const Json& key : keys.items())
      if (value.find(key.as_string()) == nullptr) return at + ": lacks " + key.as_string();
    return {};
  }

  std::string check_properties(const Json& properties, const Json& value, const std::string& at) const {
    for (const Json::Member& member : value.members()) {
      const Json* schema = properties.find(member.first);
      if (schema == nullptr) continue;
      const std::string found = violation(*schema, member.second, at + "/" + member.first);
      if (!found.empty()) return found;
    }
    return {};
  }

  static std::string check_additional(const Json& schema, const Json& value, const std::string& at) {
    for (const Json::Member& member : value.is_object() ? value.members() : Json::Object{})
      if (schema.find("properties")->find(member.first) == nullptr) return at + "/" + member.first + ": unknown key";
    return {};
  }

  std::string check_items(const Json& schema, const Json& value, const std::string& at) const {
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      const std::string found = violation(schema, value.items()[i], at + "/" + std::to_string(i));
      if (!found.empty()) return found;
    }
    return {};
  }

  const Json& root_;
};

void collect_paths(const Json& root, const Json& schema, const std::string& at, std::set<std::string>& paths) {
  const Json& target = resolved(root, schema);
  if (const Json* properties = target.find("properties"))
    for (const Json::Member& member : properties->members()) {
      paths.insert(at + "/" + member.first);
      collect_paths(root, member.second, at + "/" + member.first, paths);
    }
  if (const Json* items = target.find("items")) collect_paths(root, *items, at + "/*", paths);
  for (const std::string_view forms : {"anyOf", "oneOf"})
    if (const Json* list = target.find(forms))
      for (const Json& form : list->items()) collect_paths(root, form, at, paths);
}

}  // namespace

std::string schema_violation(const Json& schema, const Json& value) {
  return Validator(schema).violation(schema, value, "");
}

std::set<std::string> schema_paths(const Json& schema) {
  std::set<std::string> paths;
  collect_paths(schema, schema, "", paths);
  return paths;
}

}  // namespace dbo
