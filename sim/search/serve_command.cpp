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

/// Switches that take no value: a word after one is the model.
constexpr std::string_view kSwitches[] = {"enable-dbo",
                                          "enable-expert-parallel",
                                          "ep",
                                          "enforce-eager",
                                          "trust-remote-code",
                                          "enable-eplb",
                                          "headless",
                                          "aggregate-engine-logging",
                                          "enable-prefix-caching",
                                          "async-scheduling",
                                          "data-parallel-hybrid-lb",
                                          "data-parallel-external-lb",
                                          "enable-two-batch-overlap",
                                          "enable-dp-attention",
                                          "disable-cuda-graph",
                                          "disable-radix-cache"};

bool is_switch(std::string_view name) {
  return name.starts_with("no-") || std::find(std::begin(kSwitches), std::end(kSwitches), name) != std::end(kSwitches);
}

[[noreturn]] void bad_value(const std::string& name, const std::string& value, const char* what) {
  throw InputError("--" + name + ": \"" + value + "\" is no " + what);
}

template <typename Number>
Number parse(const ServeOption& option, const char* what) {
  const std::string& text = option.values.front();
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) bad_value(option.name, text, what);
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
      if (model_.empty()) model_ = words[i];
      ++i;
      continue;
    }
    ServeOption option;
    const std::string text = words[i].substr(words[i][1] == '-' ? 2 : 1);
    const std::size_t equals = text.find('=');
    option.name = text.substr(0, equals);
    // vLLM takes underscores for dashes in names, though not in the members of "--name.member".
    if (server_ == Server::Vllm)
      std::replace(
          option.name.begin(),
          option.name.begin() + static_cast<std::ptrdiff_t>(std::min(option.name.find('.'), option.name.size())), '_',
          '-');
    if (equals != std::string::npos) option.values.push_back(text.substr(equals + 1));
    ++i;
    if (!is_switch(option.name))
      while (i < words.size() && !is_option(words[i])) option.values.push_back(words[i++]);
    options_.push_back(std::move(option));
  }
}

std::optional<std::string> ServeCommand::environment(std::string_view name) const {
  std::optional<std::string> found;
  for (const auto& [key, value] : environment_)
    if (key == name) found = value;
  return found;
}

const ServeOption* ServeCommand::find(const std::vector<std::string_view>& names) {
  known_.insert(known_.end(), names.begin(), names.end());
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

std::optional<std::vector<std::string>> ServeCommand::values(const std::vector<std::string_view>& names) {
  const ServeOption* option = find(names);
  if (option == nullptr) return std::nullopt;
  if (option->values.empty()) throw InputError("--" + option->name + " needs a value");
  return option->values;
}

std::optional<std::string> ServeCommand::value(const std::vector<std::string_view>& names) {
  const auto all = values(names);
  if (!all) return std::nullopt;
  return all->front();
}

std::optional<std::int64_t> ServeCommand::count(const std::vector<std::string_view>& names) {
  if (!values(names)) return std::nullopt;
  return parse<std::int64_t>(*find(names), "whole number");
}

std::optional<double> ServeCommand::number(const std::vector<std::string_view>& names) {
  if (!values(names)) return std::nullopt;
  return parse<double>(*find(names), "number");
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
    known_.push_back(option.name);
    const std::string& text = option.values.front();
    // As the server does: a value that is JSON is that, and any other is text.
    const bool json = text.find_first_not_of("0123456789") == std::string::npos || text == "true" || text == "false" ||
                      text.starts_with('[') || text.starts_with('{');
    object.set(option.name.substr(dot + 1), json ? parse_json(text, "--" + option.name) : Json(text));
  }
  return object;
}

std::vector<std::string> ServeCommand::unread() const {
  std::vector<std::string> out;
  for (const ServeOption& option : options_)
    if (std::find(known_.begin(), known_.end(), option.name) == known_.end()) out.push_back("--" + option.name);
  return out;
}

}  // namespace dbo
