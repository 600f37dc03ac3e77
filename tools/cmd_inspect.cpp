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
  if (options.rank >= 0) return static_cast<std::int32_t>(options.rank);
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
  search.step = static_cast<std::int32_t>(options.step);
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
  filter.max_ranks = static_cast<int>(cap("--max-ranks", options.max_ranks));
  filter.max_slices = cap("--max-slices", options.max_slices);
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
  return filter;
}

void write_traces(const InspectCommand& options, const Inspection& inspection) {
  if (!options.svg.empty())
    write_file(options.svg,
               timeline_svg(inspection.ops,
                            {.title = std::filesystem::path(options.trace).filename().string(), .subtitle = {}}));
  const RowFilter filter = filter_of(options);
  if (!options.chrome_out.empty()) {
    ChromeOptions chrome;
    chrome.filter = filter;
    write_chrome_trace(options.chrome_out, inspection.ops, chrome);
  }
  if (!options.kineto_out.empty()) {
    KinetoOptions kineto;
    kineto.rank = first_rank(options, inspection);
    kineto.filter = filter;
    kineto.nccl_names = options.comm_names == "nccl";
    write_kineto_trace(options.kineto_out, inspection.ops, kineto);
  }
}

}  // namespace

int run_inspect(const InspectCommand& options) {
  const std::vector<std::string> outputs = {options.plan_out, options.profile_out, options.svg, options.chrome_out,
                                            options.kineto_out};
  const bool taken = check_standard_output(options.json, outputs);
  for (const auto& [flag, value] : {std::pair{"--rank", options.rank}, std::pair{"--step", options.step}})
    if (value < -1 || value > INT32_MAX)
      throw InputError(fmt::format("{}: must be a number from 0, is {}", flag, value));
  InspectOptions inspect;
  inspect.rule_files = options.rules;
  Progress progress(true);
  inspect.read.progress = [&](double share) { progress.show(share); };
  const Inspection inspection = inspect_trace(options.trace, inspect);
  write_order(options, inspection);
  write_traces(options, inspection);
  fmt::print(taken ? stderr : stdout, "{}",
             options.json ? pretty_json(inspection_json(inspection)) : inspection_text(inspection, inspect));
  return 0;
}

}  // namespace dbo
