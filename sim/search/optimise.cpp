#include "sim/search/optimise.h"

#include <algorithm>
#include <optional>
#include <set>

#include "sim/base/error.h"
#include "sim/base/schedule_names.h"
#include "sim/engine/bound.h"
#include "sim/engine/period.h"
#include "sim/search/all_orders.h"
#include "sim/search/order_search.h"
#include "sim/search/predict.h"

namespace dbo {
namespace {

constexpr std::size_t kAlike = 16;           ///< orders with the same ideal cycle that the engine compares
constexpr std::size_t kMostOrders = 500000;  ///< as many as the engine may be asked to time all of

class Optimiser {
 public:
  Optimiser(const Config& config, const OptimiseOptions& options)
      : config_(config), options_(options), decision_(decide(only_step(config, "optimise"), decide_settings(config))) {
    if (!decision_.split)
      throw InputError(config.file, "",
                       "the step is not split (" + decision_.reason_text + "), so there is no order to choose");
    const TransportInfo& transport = transport_info(config.overlap.transport);
    if (options.in_flight > 1 && !config.overlap.low_latency)
      throw InputError("--in-flight " + std::to_string(options.in_flight) + ": is of low-latency calls, and over " +
                       std::string(transport.name) + " this schedule makes none: leave it out");
    if (options.in_flight > transport.handle_slots)
      throw InputError("--in-flight " + std::to_string(options.in_flight) + ": transport " +
                       std::string(transport.name) + " has " + std::to_string(transport.handle_slots) + " buffers");
    spec_ = step_spec(config, decision_);
    // Any order has the same ops, so one table of costs serves all plans.
    Plan plan = make_plan(plain_notation(), spec_);
    costs_.emplace(step_costs(config, plan, true));
    ops_ = plan.ops;
    task_ = make_order_task(plan, *costs_, options.in_flight);
    result_.bound_ns = period_bound(plan, *costs_, options.in_flight).bound_ns;
    result_.lower_bound_ns = result_.bound_ns;
    // In flows of ranks that differ, data may have come before the last sender's: the task has no such wires.
    if (!costs_->flows.on() || costs_->groups() == 1)
      result_.lower_bound_ns = std::max(result_.bound_ns, task_.period(cycle_bound(task_)));
  }

  OptimiseResult run() {
    time_unsplit();
    time_builtins();
    search();
    if (result_.period_ns > result_.lower_bound_ns) improve();
    if (result_.period_ns > result_.lower_bound_ns && result_.complete) try_all();
    finish();
    return std::move(result_);
  }

 private:
  /// One ubatch behind the other: the simplest order there is.
  Notation plain_notation() const {
    OrderTask task;
    task.low_latency = config_.overlap.low_latency;
    task.shared = spec_.shape.has_shared();
    LaunchOrder order;
    for (int u = 0; u < spec_.ubatches; ++u)
      for (const OpKind kind : task.chain()) order.push_back({kind, u});
    return notation_of_order(task, order);
  }

  bool keep_going() {
    if (!options_.keep_going) return true;
    if (!options_.keep_going({result_.period_ns, result_.lower_bound_ns, result_.states, result_.timed}))
      result_.complete = false;
    return result_.complete;
  }

  void time_unsplit() {
    const Decision off = decide(config_.workload.steps.front(), without_dbo(decide_settings(config_)));
    const CostedPlan baseline = make_costed_plan(config_, off, true);
    result_.unsplit_period_ns = steady_period_time(baseline.plan, baseline.costs).period_ns;
  }

  void time_builtins() {
    for (const ScheduleName& schedule : schedule_names()) {
      const TransportClass wanted =
          config_.overlap.low_latency ? TransportClass::LowLatency : TransportClass::HighThroughput;
      if (schedule.schedule_class != wanted || spec_.ubatches > schedule.most_ubatches) continue;
      const Plan plan = make_plan(schedule.name, spec_);
      result_.builtins.push_back({std::string(schedule.name), time_plan(plan)});
      consider(order_of(plan));
    }
    std::stable_sort(result_.builtins.begin(), result_.builtins.end(),
                     [](const SchedulePeriod& a, const SchedulePeriod& b) { return a.period_ns < b.period_ns; });
    if (config_.overlap.notation) {
      const NotationConfig& own = *config_.overlap.notation;
      consider(order_of(make_plan(Notation{own.compute, own.comm, own.order}, spec_)));
    }
  }

  std::int64_t time_plan(const Plan& plan) const {
    if (plan.ops == ops_) return steady_period_time(plan, *costs_).period_ns;
    return steady_period_time(plan, step_costs(config_, plan, true)).period_ns;
  }

  static LaunchOrder order_of(const Plan& plan) {
    LaunchOrder order;
    for (const NotedOp& op : steady_period(plan))
      if (op.kind != OpKind::CCopy) order.push_back({op.kind, op.ubatch});
    return order;
  }

  /// Times an order and keeps it when it is the best so far.
  bool consider(const LaunchOrder& order) {
    if (!is_order(task_, order)) return false;
    if (!seen_.insert(text_of(order)).second) return false;
    const Plan plan = make_plan(notation_of_order(task_, order), spec_);
    DBO_CHECK(plan.ops == ops_, "an order changed the plan's ops");
    const std::int64_t period = steady_period_time(plan, *costs_).period_ns;
    ++result_.timed;
    best_cycle_ = std::min(best_cycle_, cycle_time(task_, order));
    if (!best_.empty() && period >= result_.period_ns) return false;
    best_ = order;
    result_.period_ns = period;
    return true;
  }

  static std::string text_of(const LaunchOrder& order) {
    // From A0 of ubatch 0 on: where a period begins does not matter.
    std::string text;
    const auto begin = std::find(order.begin(), order.end(), OrderOp{OpKind::A0, 0}) - order.begin();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const OrderOp& op = order[(static_cast<std::size_t>(begin) + i) % order.size()];
      text += static_cast<char>('a' + static_cast<int>(op.kind));
      text += static_cast<char>('0' + op.ubatch);
    }
    return text;
  }

  void search() {
    if (result_.period_ns <= result_.lower_bound_ns) return;
    const KeepGoing going = [this] { return keep_going(); };
    OrderSearch found = task_.low_latency ? search_one_lane(task_, best_cycle_, going)
                                          : search_two_lanes(task_, best_cycle_, kAlike, going);
    result_.states = found.states;
    result_.lower_bound_ns = std::max(result_.lower_bound_ns, task_.period(found.lower_bound));
    for (const LaunchOrder& order : found.orders) consider(order);
  }

  /// Moves single launches as long as that helps. Matters where the engine sees more than lanes: a host that is slow or
  /// blocked, ranks that wait for each other, bandwidth that is shared.
  void improve() {
    for (bool better = true; better && result_.period_ns > result_.lower_bound_ns;) {
      better = false;
      const LaunchOrder from = best_;
      for (std::size_t i = 0; i < from.size() && !better; ++i) {
        for (std::size_t j = 0; j < from.size() && !better; ++j) {
          if (i == j) continue;
          if (!keep_going()) return;
          LaunchOrder moved = from;
          const OrderOp op = moved[i];
          moved.erase(moved.begin() + static_cast<std::ptrdiff_t>(i));
          moved.insert(moved.begin() + static_cast<std::ptrdiff_t>(j), op);
          better = consider(moved);
        }
      }
    }
  }

  /// Every order by the engine, those first that lanes alone give the shortest cycle. Whatever slows the ops of an
  /// order besides only adds to that, so where it exceeds the best period nothing faster is left.
  void try_all() {
    const std::optional<OrderList> orders = all_orders(task_, kMostOrders, [this] { return keep_going(); });
    if (!orders) return;
    std::vector<std::pair<std::int64_t, std::size_t>> by_cycle;
    const std::int64_t longest = (result_.period_ns - 1) * task_.layers * task_.stride;
    for (std::size_t i = 0; i < orders->size(); ++i) {
      if ((i & 0xff) == 0 && !keep_going()) return;
      const LaunchOrder order = orders->at(i);
      if (!cycle_exceeds(task_, order, longest)) by_cycle.emplace_back(task_.period(cycle_time(task_, order)), i);
    }
    std::sort(by_cycle.begin(), by_cycle.end());
    for (const auto& [period, i] : by_cycle) {
      if (period >= result_.period_ns) break;
      result_.lower_bound_ns = std::max(result_.lower_bound_ns, period);
      if (!keep_going()) return;
      consider(orders->at(i));
    }
    result_.lower_bound_ns = result_.period_ns;
  }

  void finish() {
    DBO_CHECK(!best_.empty(), "no order at all was timed");
    // Noted from where the fewest primes are needed; the period does not depend on where it begins.
    result_.notation = notation_of(make_plan(notation_of_order(task_, best_), spec_));
    result_.plan = make_plan(result_.notation, spec_);
    result_.period_ns = steady_period_time(result_.plan, *costs_).period_ns;
    if (!result_.builtins.empty() && result_.builtins.front().period_ns < result_.period_ns) {
      // Waits and copies that no order has may keep ops apart that slow each other.
      result_.schedule = result_.builtins.front().schedule;
      result_.period_ns = result_.builtins.front().period_ns;
      result_.plan = make_plan(result_.schedule, spec_);
      result_.notation = notation_of(result_.plan);
      result_.lower_bound_ns = std::min(result_.lower_bound_ns, result_.period_ns);
    }
    result_.contention = costs_->machine.any();
    result_.proved = result_.period_ns <= result_.lower_bound_ns;
  }

  const Config& config_;
  const OptimiseOptions& options_;
  Decision decision_;
  ScheduleSpec spec_;
  std::optional<CostTable> costs_;
  std::vector<OpDef> ops_;
  OrderTask task_;
  std::set<std::string> seen_;
  LaunchOrder best_;
  std::int64_t best_cycle_ = INT64_MAX / 256;
  OptimiseResult result_;
};

}  // namespace

OptimiseResult optimise(const Config& config, const OptimiseOptions& options) {
  return Optimiser(config, options).run();
}

}  // namespace dbo
