// dbo optimise: the order with the smallest period, and what no order can beat.
#include <fmt/format.h>

#include <chrono>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "sim/search/optimise.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/summary.h"

namespace dbo {
namespace {

Json notation_json(const Notation& notation) {
  Json out = Json::object();
  out.set("compute", notation.compute);
  if (!notation.comm.empty()) out.set("comm", notation.comm);
  out.set("order", notation.order);
  return out;
}

Json to_json(const OptimiseResult& r) {
  Json out = Json::object();
  out.set("period_ns", r.period_ns);
  out.set("bound_ns", r.bound_ns);
  out.set("proved", r.proved);
  out.set("gap_ns", r.gap_ns());
  out.set("lower_bound_ns", r.lower_bound_ns);
  out.set("contention", r.contention);
  out.set("complete", r.complete);
  out.set("notation", notation_json(r.notation));
  out.set("schedule", r.schedule.empty() ? Json() : Json(r.schedule));
  Json best, builtins = Json::array();
  for (const SchedulePeriod& b : r.builtins) {
    Json entry = Json::object();
    entry.set("schedule", b.schedule);
    entry.set("period_ns", b.period_ns);
    if (best.is_null()) best = entry;
    builtins.push(std::move(entry));
  }
  out.set("best_builtin", std::move(best));
  out.set("builtins", std::move(builtins));
  out.set("unsplit_period_ns", r.unsplit_period_ns);
  out.set("plan_hash", plan_hash(r.plan));
  return out;
}

std::string row(const char* name, const std::string& text) {
  return text.empty() ? "" : fmt::format("{:<8} {}\n", name, text);
}

std::string proof(const OptimiseResult& r) {
  if (r.proved) return "no order of these ops on these lanes is faster";
  const double percent = 100.0 * static_cast<double>(r.gap_ns()) / static_cast<double>(r.period_ns);
  return fmt::format("at most {} ({:.1f} %) above the fastest order{}", ms_text(r.gap_ns()), percent,
                     r.complete ? "" : "; the time limit ended the search");
}

std::string table(const OptimiseResult& r) {
  std::string out = fmt::format("period   {} a MoE layer: {}\n", ms_text(r.period_ns), proof(r));
  out += fmt::format("bound    {}{}\n", ms_text(r.bound_ns),
                     r.contention ? " with each op alone on the GPU: what they take from each other adds to it" : "");
  for (const SchedulePeriod& b : r.builtins) {
    const double slower = 100.0 * (static_cast<double>(b.period_ns) / static_cast<double>(r.period_ns) - 1);
    out += fmt::format("         {} with {}{}\n", ms_text(b.period_ns), b.schedule,
                       b.period_ns == r.period_ns ? ", just as fast" : fmt::format(", {:.1f} % slower", slower));
  }
  out += fmt::format("         {} un-split\n", ms_text(r.unsplit_period_ns));
  if (!r.schedule.empty())
    out += fmt::format("plan     of {} itself: its own waits and copies make it faster than the same order noted\n",
                       r.schedule);
  return out + row("compute:", r.notation.compute) + row("comm:", r.notation.comm) + row("order:", r.notation.order);
}

/// The config with the schedule found, and its plan.
void write_outputs(const std::string& folder, Config config, const OptimiseResult& r) {
  make_folder(folder);
  config.overlap.schedule = r.schedule;
  config.overlap.notation.reset();
  if (r.schedule.empty())
    config.overlap.notation = NotationConfig{r.notation.compute, r.notation.comm, r.notation.order};
  FileSet files;
  files.write(folder + "/config.json", pretty_json(config_to_json(config)));
  files.write(folder + "/plan.json", plan_text(r.plan));
  files.commit();
}

}  // namespace

int run_optimise(const OptimiseCommand& command) {
  constexpr std::int64_t kMostInFlight = 1024;
  if (command.in_flight < 1 || command.in_flight > kMostInFlight)
    throw InputError(fmt::format("--in-flight: must be from 1 to {}, is {}", kMostInFlight, command.in_flight));
  if (!(command.time_limit_s > 0))  // nor "nan", which compares with nothing
    throw InputError(fmt::format("--time-limit: must be above 0 seconds, is {}", command.time_limit_s));
  check_folder(command.out);
  const Config config = load_config(command.config);
  print_profile_warnings(config);
  print_sm_warnings(config);
  OptimiseOptions options;
  options.in_flight = static_cast<int>(command.in_flight);
  const auto begin = std::chrono::steady_clock::now();
  ProgressLine line;
  options.keep_going = [&](const OptimiseProgress& p) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    line.show(seconds, [&] {
      return fmt::format("optimise: {} best, {} proved, {} partial orders, {:.0f} of {:.0f} s", ms_text(p.best_ns),
                         ms_text(p.lower_bound_ns), p.states, seconds, command.time_limit_s);
    });
    return seconds < command.time_limit_s;
  };
  const OptimiseResult result = optimise(config, options);
  line.clear();
  if (!command.out.empty()) write_outputs(command.out, config, result);
  if (command.json) {
    fmt::print("{}", pretty_json(to_json(result)));
  } else {
    fmt::print("{}", table(result));
    if (!command.out.empty()) fmt::print("simulate it: dbo simulate {}/config.json\n", command.out);
  }
  return 0;
}

}  // namespace dbo
