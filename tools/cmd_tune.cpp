// dbo tune: sweeps settings and batches, keeps finished points, and says what to tell a server.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <exception>
#include <filesystem>
#include <thread>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/schedule_names.h"
#include "sim/search/check_config.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/jobs.h"
#include "tools/progress.h"
#include "tools/summary.h"
#include "tools/tune_files.h"
#include "tools/tune_output.h"

namespace dbo {
namespace {

std::vector<std::string> split_list(const char* option, const std::string& text) {
  if (text.empty()) throw InputError(std::string(option) + ": the list is empty: leave it out for the default");
  std::vector<std::string> items;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    items.push_back(text.substr(begin, end - begin));
  }
  return items;
}

/// What a number of a list may be.
struct Range {
  const char* option;
  std::int64_t least, most;
};

std::int64_t whole_number(const Range& range, std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = stop == text.data() + text.size() && error != std::errc::invalid_argument;
  if (!whole || error == std::errc::result_out_of_range || value < range.least || value > range.most)
    throw InputError(fmt::format("{}: must be whole numbers from {} to {}, or ranges of them, has \"{}\"", range.option,
                                 range.least, range.most, text));
  return value;
}

void add_range(const Range& range, const std::string& item, std::vector<std::int64_t>& out) {
  constexpr std::int64_t kMostValues = 100000;
  const std::size_t first = item.find(':'), second = item.find(':', first + 1);
  if (second == std::string::npos)
    throw InputError(fmt::format("{}: a range is FROM:TO:STEP, such as 16:512:16, is \"{}\"", range.option, item));
  const std::string_view text = item;
  const std::int64_t from = whole_number(range, text.substr(0, first));
  const std::int64_t to = whole_number(range, text.substr(first + 1, second - first - 1));
  const std::int64_t step = whole_number({range.option, 1, range.most}, text.substr(second + 1));
  if (to < from || (to - from) / step > kMostValues)
    throw InputError(
        fmt::format("{}: the range \"{}\" has no end, or more than {} values", range.option, item, kMostValues));
  for (std::int64_t value = from; value <= to; value += step) out.push_back(value);
}

/// "8,16,32" or "16:512:16" (from, to, step), or both.
template <typename Int>
std::vector<Int> numbers(const Range& range, const std::optional<std::string>& text) {
  if (!text) return {};
  std::vector<std::int64_t> values;
  for (const std::string& item : split_list(range.option, *text)) {
    if (item.find(':') == std::string::npos)
      values.push_back(whole_number(range, item));
    else
      add_range(range, item, values);
  }
  return std::vector<Int>(values.begin(), values.end());
}

std::vector<std::string> words(const char* option, const std::optional<std::string>& text) {
  return text ? split_list(option, *text) : std::vector<std::string>{};
}

TuneLists lists_of(const TuneCommand& c) {
  // As in a config.
  constexpr std::int64_t kMostTokens = (1 << 30) - 1, kMostGpus = 1 << 16, kMostUbatches = 64, kMostSms = 1 << 20;
  TuneLists lists;
  lists.tokens = numbers<std::int64_t>({"--batch", 1, kMostTokens}, c.batch);
  lists.contexts = numbers<std::int64_t>({"--context", 1, kMostTokens}, c.context);
  lists.expert_parallel = numbers<int>({"--ep", 1, kMostGpus}, c.expert_parallel);
  lists.ubatches = numbers<int>({"--ubatches", 2, kMostUbatches}, c.ubatches);  // un-split is always tried
  lists.comm_sms = numbers<int>({"--comm-sms", 0, kMostSms}, c.comm_sms);
  lists.schedules = words("--schedule", c.schedules);
  for (const std::string& name : words("--transport", c.transports)) {
    const auto transport = find_transport(name);
    if (!transport)
      throw InputError("--transport: unknown transport \"" + name + "\" " + known_names(name, transport_names()));
    lists.transports.push_back(*transport);
  }
  const std::vector<std::string_view> controls = {"limit", "green-context", "none"};
  for (const std::string& name : words("--sm-control", c.sm_controls)) {
    const auto found = std::find(controls.begin(), controls.end(), name);
    if (found == controls.end())
      throw InputError("--sm-control: unknown SM control \"" + name + "\" " + known_names(name, controls));
    lists.sm_controls.push_back(static_cast<SmControl>(found - controls.begin()));
  }
  return lists;
}

TuneGoal goal_of(const TuneCommand& c) {
  TuneGoal goal;
  if (c.objective.value_or("") == "step_ms") goal.objective = TuneObjective::StepTime;
  constexpr double kMostMs = 1e9;
  if (!c.max_step_ms) return goal;
  if (!(*c.max_step_ms > 0 && *c.max_step_ms <= kMostMs))
    throw InputError(fmt::format("--max-step-ms: must be above 0 and at most {}, is {}", kMostMs, *c.max_step_ms));
  goal.max_step_ns = ns_from_us(*c.max_step_ms * 1000).count();
  return goal;
}

/// Simulates groups of points on all threads; every finished point is kept at once.
class Sweeper {
 public:
  Sweeper(const Config& config, const TuneGrid& grid, TuneResults& results, TuneFolder* folder)
      : config_(config), grid_(grid), results_(results), folder_(folder) {}

  void run(const std::vector<std::size_t>& groups, int jobs) {
    for (const std::size_t g : groups)
      for (std::size_t i = grid_.groups[g].first; i < grid_.groups[g].end; ++i) all_ += results_[i] ? 0 : 1;
    std::vector<std::thread> threads;
    for (int t = 1; t < jobs; ++t) threads.emplace_back([&] { work(groups, false); });
    work(groups, true);
    for (std::thread& thread : threads) thread.join();
    line_.clear();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work(const std::vector<std::size_t>& groups, bool shows) {
    try {
      TuneEvaluator evaluator(config_);
      for (std::size_t n = next_++; n < groups.size() && !failed_; n = next_++) {
        const TuneGroup& group = grid_.groups[groups[n]];
        for (std::size_t i = group.first; i < group.end; ++i) {
          if (results_[i]) continue;
          results_[i] = evaluator.evaluate(grid_.points[i]);
          if (folder_ != nullptr) folder_->add(i, *results_[i]);
          ++done_;
        }
        if (shows) show();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  void show() {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    line_.show(seconds, [&] {
      const double done = static_cast<double>(done_.load()), left = static_cast<double>(all_) - done;
      const auto filled = static_cast<std::size_t>(done / static_cast<double>(all_) * 20);
      return fmt::format("tune [{:<20}] {} of {} points, {:.0f} s left", std::string(filled, '#'), done_.load(), all_,
                         done > 0 ? seconds / done * left : 0);
    });
  }

  const Config& config_;
  const TuneGrid& grid_;
  TuneResults& results_;
  TuneFolder* folder_;
  std::atomic<std::size_t> next_{0}, done_{0};
  std::atomic<bool> failed_{false};
  std::size_t all_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;
  ProgressLine line_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// What `dbo check` says of the settings that are advised: the best one, and what servers are told.
void warn(const TuneOutput& out) {
  std::vector<TunePoint> settings;
  const auto add = [&](const TunePoint& point) {
    const std::string text = setting_text(point);
    const auto same = [&](const TunePoint& other) { return setting_text(other) == text; };
    if (std::none_of(settings.begin(), settings.end(), same)) settings.push_back(point);
  };
  if (const auto best = out.report.own_best ? out.report.own_best : out.report.best) add(out.grid.points[*best]);
  for (const Advice& advice : out.report.advice)
    if (advice.on && advice.setting) add(*advice.setting);
  TuneEvaluator evaluator(out.config);
  for (const TunePoint& point : settings) {
    const PlanCheck check = check_config(evaluator.config_of(point));
    if (check.findings.empty()) continue;
    fmt::print(stderr, "dbo: of {}:\n", setting_text(point));
    print_warnings(check.findings);
  }
}

int report(const TuneCommand& c, const Config& config, const TuneGrid& grid, const TuneResults& found,
           const TuneGoal& goal) {
  std::vector<TuneResult> results;
  for (const auto& result : found) results.push_back(*result);
  const TuneOutput out{config, grid, results, goal, make_tune_report(config, grid, results, goal)};
  if (!c.out.empty()) {
    make_folder(c.out);
    FileSet files;
    files.write(c.out + "/tune.json", pretty_json(tune_json(out)));
    files.write(c.out + "/points.csv", tune_csv(out));
    files.write(c.out + "/gain.svg", tune_svg(out));
    const auto best = out.report.own_best ? out.report.own_best : out.report.best;
    if (best) {
      TuneEvaluator evaluator(config);
      files.write(c.out + "/best.json", pretty_json(config_to_json(evaluator.config_of(grid.points[*best]))));
    }
    files.commit();
  }
  if (c.json) {
    fmt::print("{}", pretty_json(tune_json(out)));
  } else {
    fmt::print("{}", tune_table(out));
    if (!c.out.empty()) fmt::print("written       {0}/points.csv, {0}/tune.json, {0}/gain.svg, {0}/best.json\n", c.out);
  }
  warn(out);
  return static_cast<int>(out.report.best ? Exit::Ok : Exit::Finding);
}

/// What the folder of a sweep says already.
void check_merge(const TuneCommand& c) {
  if (!c.config.empty()) throw InputError("--merge takes the config from the folder: name no other");
  for (const auto& [option, given] :
       {std::pair{"--batch", c.batch.has_value()}, std::pair{"--context", c.context.has_value()},
        std::pair{"--ep", c.expert_parallel.has_value()}, std::pair{"--transport", c.transports.has_value()},
        std::pair{"--schedule", c.schedules.has_value()}, std::pair{"--ubatches", c.ubatches.has_value()},
        std::pair{"--comm-sms", c.comm_sms.has_value()}, std::pair{"--sm-control", c.sm_controls.has_value()},
        std::pair{"--jobs", c.jobs.has_value()}})
    if (given) throw InputError(fmt::format("--merge reports on points that are finished: leave {} out", option));
  std::vector<std::string> folders;
  for (const std::string& folder : c.merge) {
    std::error_code none;
    const std::string name = std::filesystem::weakly_canonical(folder + "/.", none).lexically_normal().string();
    if (std::find(folders.begin(), folders.end(), name) != folders.end())
      throw InputError("--merge: " + folder + " is named twice");
    folders.push_back(name);
  }
}

/// Whether what was asked for by name can be tried at all.
void check_lists(const TuneCommand& c, const TuneGrid& grid) {
  const std::vector<Transport>& over = grid.lists.transports;
  std::string names;
  for (const Transport t : over) names += (names.empty() ? "" : ", ") + std::string(transport_info(t).name);
  const bool limits = std::any_of(over.begin(), over.end(), [](Transport t) { return transport_info(t).limits_sms; });
  for (const auto& [option, given] :
       {std::pair{"--comm-sms", c.comm_sms.has_value()}, std::pair{"--sm-control", c.sm_controls.has_value()}})
    if (given && !limits)
      throw InputError(
          fmt::format("{}: no SMs are set aside for {}: leave it out, or name another --transport", option, names));
  for (const std::string& name : words("--schedule", c.schedules)) {
    if (name == kSequentialSchedule)
      throw InputError(
          fmt::format("--schedule: {} is the un-split step, which is always tried: name those that split", name));
    const TransportClass wanted = find_schedule_name(name)->schedule_class;
    if (std::none_of(over.begin(), over.end(), [&](Transport t) { return serves(transport_info(t), wanted); }))
      throw InputError(fmt::format("--schedule: {} cannot run over {}: name a --transport that it can", name, names));
  }
}

int run_merge(const TuneCommand& c) {
  const Sweep sweep = read_sweep(c.merge.front());
  const std::string text = sweep_text(sweep.config, sweep.lists);
  const TuneGrid grid = make_tune_grid(sweep.config, sweep.lists);
  TuneResults results(grid.points.size());
  for (const std::string& folder : c.merge) {
    if (read_file(folder + "/sweep.json") != text)
      throw InputError(folder + "/sweep.json", "", "is of another sweep than " + c.merge.front());
    TuneFolder::load_all(folder, results);
  }
  const auto missing = std::count(results.begin(), results.end(), std::nullopt);
  if (missing > 0)
    throw FindingError(
        fmt::format("{} of {} points are missing: not all shards have finished", missing, results.size()));
  return report(c, sweep.config, grid, results, goal_of(c));
}

}  // namespace

int run_tune(const TuneCommand& c) {
  check_folder(c.out);
  if (!c.merge.empty()) {
    check_merge(c);
    return run_merge(c);
  }
  if (c.config.empty()) throw InputError("CONFIG is needed, or --merge with the folders of a sweep");
  const std::size_t threads = thread_count(c.jobs.value_or(0));
  const TuneShard shard = parse_shard(c.shard);
  if (!shard.whole() && c.out.empty()) throw InputError("--shard needs --out: the folder the shards meet in");
  for (const auto& [option, given] :
       {std::pair{"--objective", c.objective.has_value()}, std::pair{"--max-step-ms", c.max_step_ms.has_value()}})
    if (given && !shard.whole())
      throw InputError(
          fmt::format("{} is of the report, which a shard does not make: give it to dbo tune --merge", option));
  const Config config = load_config(c.config);
  const TuneGoal goal = goal_of(c);
  const TuneGrid grid = make_tune_grid(config, lists_of(c));
  check_lists(c, grid);
  print_profile_warnings(config);
  TuneResults results(grid.points.size());
  std::unique_ptr<TuneFolder> folder;
  if (!c.out.empty()) {
    folder = std::make_unique<TuneFolder>(c.out, sweep_text(config, grid.lists), shard);
    folder->load(results);
  }
  std::vector<std::size_t> groups, points;
  for (std::size_t g = 0; g < grid.groups.size(); ++g) {
    if (g % shard.of != shard.index) continue;
    groups.push_back(g);
    for (std::size_t i = grid.groups[g].first; i < grid.groups[g].end; ++i) points.push_back(i);
  }
  const InterruptNote interrupted(
      folder ? "dbo: interrupted: the same command goes on with what is done, which is in " + c.out
             : std::string("dbo: interrupted: nothing was kept; with --out DIR the same command would go on"));
  Sweeper(config, grid, results, folder.get()).run(groups, static_cast<int>(threads));
  if (folder) folder->finish(results, points);
  if (!shard.whole() && c.json) {
    fmt::print("{}", pretty_json(Json(Json::Object{{"shard", static_cast<std::int64_t>(shard.index)},
                                                   {"of", static_cast<std::int64_t>(shard.of)},
                                                   {"points", static_cast<std::int64_t>(points.size())},
                                                   {"points_of_all", static_cast<std::int64_t>(grid.points.size())},
                                                   {"folder", c.out}})));
    return 0;
  }
  if (!shard.whole()) {
    fmt::print("shard {} of {}: {} of {} points in {}; when all have finished: dbo tune --merge {}\n", shard.index,
               shard.of, points.size(), grid.points.size(), c.out, c.out);
    return 0;
  }
  return report(c, config, grid, results, goal);
}

}  // namespace dbo
