#include "sim/base/error.h"

#include <algorithm>
#include <numeric>

namespace dbo {
namespace {

std::string place_and_message(const std::string& file, const std::string& pointer, const std::string& message) {
  std::string text = file;
  if (!pointer.empty()) text += (text.empty() ? "" : ": ") + pointer;
  return text + (text.empty() ? "" : ": ") + message;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t up = row[j];
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
      diagonal = up;
    }
  }
  return row[b.size()];
}

/// Upper and lower case alike.
bool begins_with(std::string_view text, std::string_view begin) {
  return lower_case(text).starts_with(lower_case(begin));
}

/// Whether `word` is one of the words, or some that follow each other, of a name written with underscores or hyphens.
bool is_word_of(std::string_view word, std::string_view name) {
  const auto ends = [&](std::size_t at) { return at == name.size() || name[at] == '_' || name[at] == '-'; };
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1))
    if ((at == 0 || ends(at - 1)) && ends(at + word.size())) return true;
  return false;
}

}  // namespace

InputError::InputError(std::string file, std::string pointer, std::string message)
    : Error(place_and_message(file, pointer, message)),
      file_(std::move(file)),
      pointer_(std::move(pointer)),
      message_(std::move(message)) {}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known) {
  // "H200" is the beginning of "h200-sxm", and only one letter from "h20".
  std::string_view best;
  for (const std::string_view candidate : known) {
    const bool begins = name.size() >= 3 && begins_with(candidate, name);
    if (begins && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  if (!best.empty()) return best;
  // A third of the letters wrong is still a likely typing error; more is another word.
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  // "tokens" for "decode_tokens".
  for (const std::string_view candidate : known)
    if (best.empty() && name.size() >= 3 && is_word_of(name, candidate)) best = candidate;
  return best;
}

std::string known_names(std::string_view name, const std::vector<std::string_view>& known) {
  std::string text = "(known: ";
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (i > 0) text += ", ";
    text += known[i];
  }
  const std::string_view near = nearest_name(name, known);
  if (!near.empty()) text.append("; did you mean \"").append(near).append("\"?");
  return text + ")";
}

void throw_internal(std::string_view condition, std::string_view detail, const char* file, int line) {
  std::string text = "internal error: ";
  text.append(detail).append(" [").append(condition).append("] at ").append(file);
  text.append(":").append(std::to_string(line));
  throw InternalError(text);
}

}  // namespace dbo
