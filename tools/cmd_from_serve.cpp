// dbo from-serve: a config from a serving command.
#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/search/from_serve.h"
#include "tools/commands.h"

namespace dbo {
namespace {

Json strings(const std::vector<std::string>& items) {
  Json list = Json::array();
  for (const std::string& item : items) list.push(item);
  return list;
}

std::string list_text(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

/// A line each, for a terminal or as comments of the config.
std::string report_lines(const FromServe& r, const char* prefix) {
  std::string text;
  const auto add = [&](const char* what, const std::vector<std::string>& items) {
    for (const std::string& item : items) text += fmt::format("{}{:<8} {}\n", prefix, what, item);
  };
  add("took", r.took);
  add("assumed", r.assumed);
  add("refused", r.refused);
  if (!r.unread.empty()) text += fmt::format("{}{:<8} {}\n", prefix, "passed", list_text(r.unread));
  return text + fmt::format("{}rules of {}\n", prefix, r.version);
}

Json to_json(const FromServe& r) {
  Json out = Json::object();
  out.set("config", r.config);
  out.set("server", r.server);
  out.set("version", r.version);
  out.set("took", strings(r.took));
  out.set("assumed", strings(r.assumed));
  out.set("refused", strings(r.refused));
  out.set("passed_over", strings(r.unread));
  return out;
}

/// 0 without a value.
std::int64_t count_of(const char* option, const std::optional<std::int64_t>& value, std::int64_t most) {
  if (!value) return 0;
  if (*value < 1 || *value > most)
    throw InputError(fmt::format("{}: must be from 1 to {}, is {}", option, most, *value));
  return *value;
}

}  // namespace

int run_from_serve(const FromServeCommand& c) {
  ServeHints hints;
  hints.model = c.model;
  hints.gpu = c.gpu;
  // As in a config.
  constexpr std::int64_t kMostGpus = 1 << 16, kMostTokens = (1 << 30) - 1;
  hints.gpus_per_node = static_cast<int>(count_of("--gpus-per-node", c.gpus_per_node, kMostGpus));
  hints.tokens = count_of("--tokens", c.tokens, kMostTokens);
  hints.context = count_of("--context", c.context, kMostTokens);
  if (!c.phase.empty()) hints.phase = c.phase == "decode" ? Phase::Decode : Phase::Prefill;
  const FromServe r = from_serve(c.command, hints);
  const std::string config = report_lines(r, "// ") + pretty_json(r.config);
  check_outputs(c.json, {{"--out", c.out}}, {});
  if (!c.out.empty()) write_file(c.out, config);
  if (c.out == "-")
    fmt::print(stderr, "{}", report_lines(r, ""));
  else if (c.json)
    fmt::print("{}", pretty_json(to_json(r)));
  else if (c.out.empty())
    fmt::print("{}", config);
  else
    fmt::print("{}written  {}\n", report_lines(r, ""), c.out);
  for (const std::string& refusal : r.refused) fmt::print(stderr, "dbo: {} would refuse: {}\n", r.server, refusal);
  return static_cast<int>(r.refused.empty() ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
