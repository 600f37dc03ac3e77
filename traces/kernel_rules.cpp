#include "traces/kernel_rules.h"

#include <algorithm>
#include <array>

#include "sim/base/data_file.h"
#include "sim/base/json_reader.h"

namespace dbo {

extern const DataFile kTraceRules[];

namespace {

constexpr std::array<std::string_view, kRoles> kNames = {"unknown",
                                                         "attention",
                                                         "attention.prep",
                                                         "router",
                                                         "experts",
                                                         "experts.aux",
                                                         "norm",
                                                         "gemm",
                                                         "elementwise",
                                                         "embed",
                                                         "sample",
                                                         "dispatch.setup",
                                                         "dispatch",
                                                         "dispatch.low-latency",
                                                         "dispatch.send",
                                                         "dispatch.recv",
                                                         "combine.setup",
                                                         "combine",
                                                         "combine.low-latency",
                                                         "combine.send",
                                                         "combine.recv",
                                                         "comm.setup",
                                                         "allgather",
                                                         "reducescatter",
                                                         "alltoall",
                                                         "comm",
                                                         "memory"};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

/// Where `part` (lower case) begins in `text` from `from` on, ignoring case.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from) {
  const auto at = std::search(text.begin() + static_cast<std::ptrdiff_t>(from), text.end(), part.begin(), part.end(),
                              [](char a, char b) { return lower(a) == b; });
  return at == text.end() && !part.empty() ? std::string_view::npos : static_cast<std::size_t>(at - text.begin());
}

bool any_matches(const std::vector<std::string>& patterns, std::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return pattern_matches(pattern, text); });
}

std::vector<std::string> patterns(const JsonRef& ref) {
  std::vector<std::string> list;
  for (const JsonRef& item : ref.items()) {
    list.push_back(lower(item.string()));
    if (list.back().empty() || list.back() == "^") item.fail("must not be empty: it would match every name");
  }
  return list;
}

}  // namespace

std::string_view role_name(Role role) {
  return kNames[static_cast<std::size_t>(role)];
}

KernelClass class_of(Role role) {
  switch (role) {
    case Role::Unknown:
    case Role::Attention:
    case Role::AttentionPrep:
    case Role::Router:
    case Role::Experts:
    case Role::ExpertsAux:
    case Role::Norm:
    case Role::Gemm:
    case Role::Elementwise:
    case Role::Embed:
    case Role::Sample:
      return KernelClass::Compute;
    case Role::DispatchSetup:
    case Role::Dispatch:
    case Role::DispatchLowLatency:
    case Role::DispatchSend:
    case Role::DispatchRecv:
    case Role::CombineSetup:
    case Role::Combine:
    case Role::CombineLowLatency:
    case Role::CombineSend:
    case Role::CombineRecv:
    case Role::CommSetup:
    case Role::AllGather:
    case Role::ReduceScatter:
    case Role::AllToAll:
    case Role::Comm:
      return KernelClass::Comm;
    case Role::Memory:
      return KernelClass::Memory;
  }
  return KernelClass::Compute;
}

bool pattern_matches(std::string_view pattern, std::string_view text) {
  const bool tied = !pattern.empty() && pattern.front() == '^';
  if (tied) pattern.remove_prefix(1);
  std::size_t at = 0;
  bool first = true;
  while (true) {
    const std::size_t star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    const std::size_t found = find_part(text, part, at);
    if (found == std::string_view::npos || (first && tied && found != 0)) return false;
    if (star == std::string_view::npos) return true;
    at = found + part.size();
    pattern.remove_prefix(star + 1);
    first = false;
  }
}

KernelRules::KernelRules() {
  add("kernel_rules.json", kTraceRules[0].text, false);
}

void KernelRules::add_file(const std::string& path) {
  add(path, {}, true);
}

void KernelRules::add(const std::string& path_or_name, std::string_view text, bool file) {
  const JsonParseOptions options{.comments = true};
  const auto document = file ? load_json(path_or_name, options) : json_document(text, path_or_name, options);
  ObjectReader root(JsonRef(document), "a rule file");
  if (const auto format = root.find("format")) format->integer(1, 1);
  std::vector<Rule> kernels, ranges;
  const std::vector<std::string_view> roles(kNames.begin() + 1, kNames.end());
  if (const auto list = root.find("kernels")) {
    for (const JsonRef& item : list->items()) {
      ObjectReader reader(item, "a kernel rule");
      Rule rule;
      rule.role = static_cast<Role>(reader.require("role").one_of(roles, "role") + 1);
      rule.match = patterns(reader.require("match"));
      if (const auto except = reader.find("except")) rule.except = patterns(*except);
      if (const auto from = reader.find("from")) from->string();
      reader.done();
      kernels.push_back(std::move(rule));
    }
  }
  if (const auto list = root.find("ranges")) {
    std::vector<std::string_view> ops = {"A"};
    for (int kind = 0; kind < kOpKinds; ++kind) ops.push_back(op_name(static_cast<OpKind>(kind)));
    for (const JsonRef& item : list->items()) {
      ObjectReader reader(item, "a range rule");
      Rule rule;
      const std::size_t op = reader.require("op").one_of(ops, "op");
      rule.range.attention_whole = op == 0;
      rule.range.kind = op == 0 ? OpKind::A0 : static_cast<OpKind>(op - 1);
      rule.match = patterns(reader.require("match"));
      if (const auto except = reader.find("except")) rule.except = patterns(*except);
      if (const auto from = reader.find("from")) from->string();
      reader.done();
      ranges.push_back(std::move(rule));
    }
  }
  root.done();
  kernels_.insert(kernels_.begin(), std::make_move_iterator(kernels.begin()), std::make_move_iterator(kernels.end()));
  ranges_.insert(ranges_.begin(), std::make_move_iterator(ranges.begin()), std::make_move_iterator(ranges.end()));
}

Role KernelRules::role(std::string_view kernel_name) const {
  for (const Rule& rule : kernels_)
    if (any_matches(rule.match, kernel_name) && !any_matches(rule.except, kernel_name)) return rule.role;
  return Role::Unknown;
}

std::optional<RangeOp> KernelRules::range(std::string_view range_name) const {
  for (const Rule& rule : ranges_)
    if (any_matches(rule.match, range_name) && !any_matches(rule.except, range_name)) return rule.range;
  return std::nullopt;
}

}  // namespace dbo
