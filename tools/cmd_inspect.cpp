// dbo inspect: any Chrome or Kineto trace to what it says about overlap, and back to a plan with costs.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "tools/commands.h"
#include "traces/chrome_writer.h"
#include "traces/found_order.h"
#include "traces/inspect.h"
#include "traces/kineto_writer.h"
#include "traces/timeline_svg.h"

namespace dbo {
namespace {

/// A bar on a terminal, nothing elsewhere.
class Progress {
 public:
  explicit Progress(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(double share) {
    const int percent = static_cast<int>(share * 100);
    if (!shown_ || percent == last_) return;
    last_ = percent;
    drawn_ = true;
    constexpr int kWidth = 40;
    const int full = percent * kWidth / 100;
    fmt::print(stderr, "\rreading [{:=<{}}{:<{}}] {:3} %", "", full, "", kWidth - full, percent);
    std::fflush(stderr);
  }

 private:
  bool shown_, drawn_ = false;
  int last_ = -1;
};

std::int32_t first_rank(const InspectCommand& options, const Inspection& inspection) {
  if (options.rank) return static_cast<std::int32_t>(*options.rank);
  const std::vector<std::int32_t> ranks = inspection.classified.ranks();
  return ranks.empty() ? 0 : ranks.front();
}

void write_order(const InspectCommand& options, const Inspection& inspection) {
  if (options.plan_out.empty() && options.profile_out.empty()) return;
  if (options.plan_out.empty() && inspection.placed > 0) {
    // Costs alone serve a config: by kind of op.
    write_file(options.profile_out, pretty_json(costs_by_kind(inspection.ops, options.trace)));
    return;
  }
  OrderSearchOptions search;
  search.rank = first_rank(options, inspection);
  search.step = static_cast<std::int32_t>(options.step.value_or(-1));
  search.host = !options.no_host;
  const FoundOrder order = find_order(inspection.classified, search);
  FileSet files;
  if (!options.plan_out.empty()) files.write(options.plan_out, plan_text(order.plan));
  if (!options.profile_out.empty()) files.write(options.profile_out, pretty_json(found_costs(order)));
  files.commit();
  fmt::print(stderr, "order: rank {}, {} launches on {} lanes, {} edges between lanes, {} pieces of host work\n",
             search.rank, order.launches.size(), order.plan.lanes.size(), order.edges.size(), order.host_work.size());
}

/// "3-10" or "3".
RowFilter filter_of(const InspectCommand& options) {
  RowFilter filter;
  const auto cap = [](const char* flag, std::int64_t value) {
    if (value < 0 || value > INT32_MAX) throw InputError(fmt::format("{}: must be a count, is {}", flag, value));
    return value;
  };
  filter.max_ranks = static_cast<int>(cap("--max-ranks", options.max_ranks.value_or(0)));
  filter.max_slices = cap("--max-slices", options.max_slices.value_or(0));
  if (options.layers.empty()) return filter;
  const std::string& text = options.layers;
  const auto dash = text.find('-');
  const auto layer = [&](std::string_view part) {
    std::int32_t value = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || stop != part.data() + part.size() || value < 0)
      throw InputError(fmt::format("--layers: must be FIRST-LAST or one layer, is \"{}\"", text));
    return value;
  };
  filter.first_layer = layer(std::string_view(text).substr(0, dash));
  filter.last_layer = dash == std::string::npos ? filter.first_layer : layer(std::string_view(text).substr(dash + 1));
  if (filter.last_layer < filter.first_layer)
    throw InputError(fmt::format("--layers: the last layer comes before the first, is \"{}\"", text));
  return filter;
}

void write_traces(const InspectCommand& options, const RowFilter& filter, const Inspection& inspection) {
  if (!options.svg.empty())
    write_file(options.svg,
               timeline_svg(inspection.ops,
                            {.title = std::filesystem::path(options.trace).filename().string(), .subtitle = {}}));
  if (!options.chrome_out.empty()) {
    ChromeOptions chrome;
    chrome.filter = filter;
    write_chrome_trace(options.chrome_out, inspection.ops, chrome);
  }
  if (!options.kineto_out.empty()) {
    KinetoOptions kineto;
    kineto.rank = first_rank(options, inspection);
    kineto.filter = filter;
    kineto.nccl_names = options.comm_names.value_or("nccl") == "nccl";
    write_kineto_trace(options.kineto_out, inspection.ops, kineto);
  }
}

/// Options that nothing asked for would heed.
void check_use(const InspectCommand& o) {
  const bool plan = !o.plan_out.empty() || !o.profile_out.empty();
  const bool trace = !o.chrome_out.empty() || !o.kineto_out.empty();
  const auto unused = [](const char* option, const char* what) {
    throw InputError(fmt::format("{} is of {}: add it, or leave {} out", option, what, option));
  };
  if (o.rank && !plan && o.kineto_out.empty()) unused("--rank", "--plan-out, --profile-out and --kineto-out");
  if (o.step && !plan) unused("--step", "--plan-out and --profile-out");
  if (o.no_host && !plan) unused("--no-host", "--plan-out and --profile-out");
  if (!o.layers.empty() && !trace) unused("--layers", "--chrome-out and --kineto-out");
  if (o.max_ranks && !trace) unused("--max-ranks", "--chrome-out and --kineto-out");
  if (o.max_slices && !trace) unused("--max-slices", "--chrome-out and --kineto-out");
  if (o.comm_names && o.kineto_out.empty()) unused("--comm-names", "--kineto-out");
}

}  // namespace

int run_inspect(const InspectCommand& options) {
  check_use(options);
  std::vector<std::string> inputs = options.rules;
  inputs.push_back(options.trace);
  const bool taken = check_outputs(options.json,
                                   {{"--plan-out", options.plan_out},
                                    {"--profile-out", options.profile_out},
                                    {"--svg", options.svg},
                                    {"--chrome-out", options.chrome_out},
                                    {"--kineto-out", options.kineto_out}},
                                   inputs);
  const RowFilter filter = filter_of(options);
  for (const auto& [flag, value] : {std::pair{"--rank", options.rank}, std::pair{"--step", options.step}})
    if (value && (*value < 0 || *value > INT32_MAX))
      throw InputError(fmt::format("{}: must be a number from 0, is {}", flag, *value));
  InspectOptions inspect;
  inspect.rule_files = options.rules;
  Progress progress(true);
  inspect.read.progress = [&](double share) { progress.show(share); };
  const Inspection inspection = inspect_trace(options.trace, inspect);
  if (!options.rules.empty() && inspection.own)
    throw InputError("--rules: " + options.trace + " is a trace of ours, which names its ops: leave it out");
  write_order(options, inspection);
  write_traces(options, filter, inspection);
  fmt::print(taken ? stderr : stdout, "{}",
             options.json ? pretty_json(inspection_json(inspection)) : inspection_text(inspection, inspect));
  return 0;
}

}  // namespace dbo
