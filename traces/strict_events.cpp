#include "traces/strict_events.h"

#include <algorithm>
#include <charconv>

namespace dbo::strict {
namespace {

void read_value(JsonScanner& scanner, Event& event, Fields& fields, std::string_view key) {
  Field field;
  const std::string name(key);
  const char first = scanner.peek();
  if (first == '{' || first == '[')
    field.text = scanner.raw_value();
  else
    field.text = scanner.string_or_scalar(field.quoted);
  if (!fields.emplace(name, std::move(field)).second) event.duplicates.push_back(name);
}

}  // namespace

Event read_event(JsonScanner& scanner) {
  Event event;
  scanner.peek();
  event.offset = scanner.offset();
  scanner.object([&](std::string_view key) {
    if (key == "args" && scanner.peek() == '{') {
      event.has_args = true;
      scanner.object([&](std::string_view arg) { read_value(scanner, event, event.args, arg); });
    } else {
      read_value(scanner, event, event.fields, key);
    }
  });
  return event;
}

std::optional<std::int64_t> whole(const Field* field) {
  if (field == nullptr || field->quoted) return std::nullopt;
  std::int64_t value = 0;
  const char* end = field->text.data() + field->text.size();
  const auto [stop, error] = std::from_chars(field->text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// "12.345": digits, a point, three digits.
std::optional<std::int64_t> exact_micros(const Field* field) {
  if (field == nullptr || field->quoted || field->text.size() < 5) return std::nullopt;
  const std::string& text = field->text;
  if (text[text.size() - 4] != '.') return std::nullopt;
  Field digits{text.substr(0, text.size() - 4) + text.substr(text.size() - 3), false};
  if (!std::all_of(digits.text.begin(), digits.text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  return whole(&digits);
}

const Field* find(const Fields& fields, std::string_view name) {
  const auto at = fields.find(name);
  return at == fields.end() ? nullptr : &at->second;
}

std::string text_of(const Fields& fields, std::string_view name) {
  const Field* field = find(fields, name);
  return field == nullptr ? std::string() : field->text;
}

std::vector<Slice> partly_overlapping(std::vector<Slice>& row) {
  std::stable_sort(row.begin(), row.end(), [](const Slice& a, const Slice& b) {
    return a.start != b.start ? a.start < b.start : a.end > b.end;
  });
  std::vector<Slice> bad;
  std::vector<std::int64_t> open;  // ends of the slices around the one at hand
  for (const Slice& slice : row) {
    while (!open.empty() && open.back() <= slice.start) open.pop_back();
    if (!open.empty() && slice.end > open.back()) bad.push_back(slice);
    open.push_back(slice.end);
  }
  return bad;
}

bool inside_a_slice(const std::vector<Slice>& row, std::int64_t time) {
  // Of disjoint slices only the last one that starts by then can hold the time; of nested ones its parents can too.
  auto at = std::upper_bound(row.begin(), row.end(), time,
                             [](std::int64_t t, const Slice& slice) { return t < slice.start; });
  for (int parents = 0; at != row.begin() && parents < 512; ++parents)
    if (time < (--at)->end) return true;
  return false;
}

}  // namespace dbo::strict
