#include "sim/search/serve_command.h"

#include <algorithm>
#include <charconv>

#include "sim/base/error.h"

namespace dbo {
namespace {

std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // a word has begun, be it an empty quoted one
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else if (c == '\\' && quote == '"' && i + 1 < line.size() && (line[i + 1] == '"' || line[i + 1] == '\\'))
        word += line[++i];
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      open = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      if (line[++i] != '\n') {
        word += line[i];
        open = true;
      }
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (quote != 0) throw InputError(std::string("the command has a quote ") + quote + " that is not closed");
  if (open) words.push_back(std::move(word));
  return words;
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

/// -1.5 and -3 are values, -tp is an option.
bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

/// The name without the member of "--name.member".
std::string whole_name(const std::string& name) {
  return name.substr(0, name.find('.'));
}

/// What follows an option: of one that is not known, what follows the option it looks like.
Takes takes_of(Server server, const std::string& name) {
  const std::string whole = whole_name(name);
  if (const auto takes = find_option(server, whole)) return *takes;
  if (whole.starts_with("no-")) return Takes::Nothing;
  const std::string_view near = nearest_name(whole, option_names(server));
  return near.empty() ? Takes::Value : *find_option(server, near);
}

/// Whether the text names the option: "--name", and no longer one.
bool names_option(const std::string& text, const std::string& name) {
  const std::string word = "--" + name;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const char next = at + word.size() < text.size() ? text[at + word.size()] : ' ';
    if (next != '-' && (next < 'a' || next > 'z') && (next < '0' || next > '9')) return true;
  }
  return false;
}

std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "--" : i + 1 < names.size() ? ", --" : " or --") + std::string(names[i]);
  return text;
}

/// As it is written in a command.
std::string written(Server server, const std::string& name) {
  return (is_short_option(server, whole_name(name)) ? "-" : "--") + name;
}

template <typename Number>
Number parse(Server server, const ServeOption& option, const char* what) {
  const std::string& text = option.values.front();
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw InputError(written(server, option.name) + ": \"" + text + "\" is no " + what);
  return number;
}

}  // namespace

ServeCommand::ServeCommand(const std::string& line) {
  const std::vector<std::string> words = shell_words(line);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool serve = i + 1 < words.size() && words[i + 1] == "serve";
    if (serve && base_name(words[i]) == "vllm") {
      read_options(words, i + 2);
      return;
    }
    if (words[i] == "vllm.entrypoints.openai.api_server") {
      read_options(words, i + 1);
      return;
    }
    if ((serve && base_name(words[i]) == "sglang") || words[i] == "sglang.launch_server") {
      server_ = Server::Sglang;
      read_options(words, i + (serve ? 2 : 1));
      return;
    }
    const std::size_t equals = words[i].find('=');
    if (equals != std::string::npos && equals > 0 && !is_option(words[i]))
      environment_.emplace_back(words[i].substr(0, equals), words[i].substr(equals + 1));
  }
  throw InputError(
      "the command starts no server that is known: \"vllm serve MODEL ...\" or "
      "\"python3 -m sglang.launch_server --model-path MODEL ...\"");
}

void ServeCommand::read_options(const std::vector<std::string>& words, std::size_t first) {
  for (std::size_t i = first; i < words.size();) {
    if (!is_option(words[i])) {
      // The model alone is written so. Behind an option that is refused, a word may be its value.
      if (model_.empty()) {
        model_ = words[i];
      } else if (refused_.empty()) {
        refused_.push_back("\"" + words[i] + "\" belongs to no option");
      }
      ++i;
      continue;
    }
    ServeOption option;
    const std::string dashes = words[i][1] == '-' ? "--" : "-";
    std::string text = words[i].substr(dashes.size());
    // "-O3" is "-O 3".
    if (server_ == Server::Vllm && dashes == "-" && text.size() > 1 && text[0] == 'O' && text[1] >= '0' &&
        text[1] <= '9')
      text.insert(1, "=");
    const std::size_t equals = text.find('=');
    option.name = text.substr(0, equals);
    // vLLM takes underscores for dashes in names, though not in the members of "--name.member".
    if (server_ == Server::Vllm)
      std::replace(
          option.name.begin(),
          option.name.begin() + static_cast<std::ptrdiff_t>(std::min(option.name.find('.'), option.name.size())), '_',
          '-');
    option.name = full_name(option.name, dashes);
    if (equals != std::string::npos) option.values.push_back(text.substr(equals + 1));
    ++i;
    const Takes declared = takes_of(server_, option.name);
    if (declared == Takes::Nothing && !option.values.empty() && find_option(server_, option.name))
      refused_.push_back(dashes + option.name + " takes no value, and is given \"" + option.values[0] + "\"");
    const Takes takes = option.values.empty() ? declared : Takes::Nothing;
    while (takes != Takes::Nothing && i < words.size() && !is_option(words[i])) {
      option.values.push_back(words[i++]);
      if (takes == Takes::Value) break;
    }
    options_.push_back(std::move(option));
  }
}

std::string ServeCommand::full_name(const std::string& name, const std::string& dashes) {
  const std::string whole = whole_name(name), written = dashes + whole;
  const std::string server = server_ == Server::Vllm ? "vLLM" : "SGLang";
  if (find_option(server_, whole)) {
    const bool one_dash = is_short_option(server_, whole);
    if (one_dash && dashes == "--")
      refused_.push_back(written + " is written -" + whole);
    else if (!one_dash && dashes == "-")
      refused_.push_back(written + " is written --" + whole);
    if (const auto instead = gone_option(server_, whole))
      other_versions_.push_back("a version that still has " + written + ": it is gone from " + server + " since" +
                                (instead->empty() ? "" : " (" + std::string(*instead) + ")"));
    return name;
  }
  const std::vector<std::string_view> longer =
      dashes == "--" ? options_beginning(server_, whole) : std::vector<std::string_view>{};
  if (longer.size() == 1) return std::string(longer.front()) + name.substr(whole.size());
  if (!longer.empty() && longer.size() <= 8)
    refused_.push_back(written + " may be " + listed(longer));
  else if (!longer.empty())
    refused_.push_back(written + " is the beginning of " + std::to_string(longer.size()) + " options");
  else if (whole.starts_with("no-") && find_option(server_, whole.substr(3)))
    refused_.push_back(written + ": " + server + "'s --" + whole.substr(3) + " has no --no-");
  else if (const auto near = nearest_name(whole, option_names(server_)); !near.empty())
    refused_.push_back(written + " is no option (did you mean " + (is_short_option(server_, near) ? "-" : "--") +
                       std::string(near) + "?)");
  return name;
}

std::optional<std::string> ServeCommand::environment(std::string_view name) const {
  std::optional<std::string> found;
  for (const auto& [key, value] : environment_)
    if (key == name) found = value;
  return found;
}

const ServeOption* ServeCommand::find(const std::vector<std::string_view>& names) {
  known_.emplace_back(names.begin(), names.end());
  const ServeOption* found = nullptr;
  for (const ServeOption& option : options_)
    if (std::find(names.begin(), names.end(), option.name) != names.end()) found = &option;
  return found;
}

bool ServeCommand::has(std::string_view name) {
  const std::string off = "no-" + std::string(name);
  const ServeOption* option = find({name, off});
  return option != nullptr && option->name != off;
}

bool ServeCommand::has_one_of(const std::vector<std::string_view>& names) {
  find(names);  // so that one name in a report stands for all
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return has(name); });
}

std::optional<std::vector<std::string>> ServeCommand::values(const std::vector<std::string_view>& names) {
  const ServeOption* option = find(names);
  if (option == nullptr) return std::nullopt;
  if (option->values.empty()) throw InputError(written(server_, option->name) + " needs a value");
  return option->values;
}

std::optional<std::string> ServeCommand::value(const std::vector<std::string_view>& names) {
  const auto all = values(names);
  if (!all) return std::nullopt;
  return all->front();
}

std::optional<std::int64_t> ServeCommand::count(const std::vector<std::string_view>& names) {
  if (!values(names)) return std::nullopt;
  return parse<std::int64_t>(server_, *find(names), "whole number");
}

std::optional<std::int64_t> ServeCommand::readable_count(const std::vector<std::string_view>& names) {
  const auto text = value(names);
  if (!text) return std::nullopt;
  constexpr std::string_view kUnits = "kmgtKMGT";
  const std::size_t unit = text->empty() ? std::string_view::npos : kUnits.find(text->back());
  if (unit == std::string_view::npos) return count(names);
  const bool binary = unit >= 4;
  double factor = 1;
  for (std::size_t i = 0; i <= unit % 4; ++i) factor *= binary ? 1024 : 1000;
  const std::string digits = text->substr(0, text->size() - 1);
  double value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed);
  const bool fraction = digits.find('.') != std::string::npos;
  if (error != std::errc() || end != digits.data() + digits.size() || digits.front() == '-' || (binary && fraction) ||
      value * factor > 1e15)
    throw InputError(written(server_, find(names)->name) + ": \"" + *text +
                     "\" is no whole number, nor one with k, m, g, t (thousands) or K, M, G, T (of 1024)");
  return static_cast<std::int64_t>(value * factor);
}

std::optional<double> ServeCommand::number(const std::vector<std::string_view>& names) {
  if (!values(names)) return std::nullopt;
  return parse<double>(server_, *find(names), "number");
}

Json ServeCommand::object(const std::vector<std::string_view>& names) {
  Json object = Json::object();
  if (const auto text = value(names)) {
    object = parse_json(*text, "--" + std::string(names.front()));
    if (!object.is_object())
      throw InputError("--" + std::string(names.front()) + " must be a JSON object, is " + *text);
  }
  for (const ServeOption& option : options_) {
    const std::size_t dot = option.name.find('.');
    if (dot == std::string::npos || option.values.empty()) continue;
    if (std::find(names.begin(), names.end(), std::string_view(option.name).substr(0, dot)) == names.end()) continue;
    known_.push_back({names.begin(), names.end()});
    known_.back().push_back(option.name);
    const std::string& text = option.values.front();
    // As the server does: a value that is JSON is that, and any other is text.
    const bool json = text.find_first_not_of("0123456789") == std::string::npos || text == "true" || text == "false" ||
                      text.starts_with('[') || text.starts_with('{');
    object.set(option.name.substr(dot + 1), json ? parse_json(text, "--" + option.name) : Json(text));
  }
  return object;
}

std::vector<std::string> ServeCommand::unread(const std::vector<std::string>& said) const {
  const auto is_said = [&](const std::string& name) {
    return std::any_of(said.begin(), said.end(), [&](const std::string& text) { return names_option(text, name); });
  };
  std::vector<std::string> out;
  for (const auto& [name, value] : environment_)
    if (std::none_of(said.begin(), said.end(),
                     [&named = name](const auto& t) { return t.find(named) != std::string::npos; }))
      out.push_back(name);  // without its value, which may be a secret
  for (const ServeOption& option : options_) {
    const std::string whole = whole_name(option.name);
    bool found = is_said(option.name) || is_said(whole);
    for (const std::vector<std::string>& names : known_)
      if (std::find(names.begin(), names.end(), option.name) != names.end())
        found = found || std::any_of(names.begin(), names.end(), is_said);
    if (found) continue;
    std::string text = written(server_, option.name);
    if (!find_option(server_, whole)) text += " (not in the version read)";
    if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(std::move(text));
  }
  return out;
}

}  // namespace dbo
