#include "traces/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/base/error.h"
#include "traces/join.h"
#include "traces/overlap.h"
#include "traces/ready_times.h"
#include "traces/text_table.h"
#include "traces/transfers.h"
#include "traces/windows.h"

namespace dbo {
namespace {

std::int64_t length(const TraceOp& op) {
  return (op.end - op.start).count();
}

Ns span_of(const Trace& trace, std::int32_t rank) {
  SimTime first = SimTime::max(), last = SimTime::min();
  for (const TraceOp& op : trace.ops) {
    if (op.rank != rank) continue;
    first = std::min(first, op.start);
    last = std::max(last, op.end);
  }
  return last > first ? last - first : Ns{0};
}

Ns step_of(const Trace& trace) {
  Ns step{0};
  for (const std::int32_t rank : ranks_of(trace)) step = std::max(step, span_of(trace, rank));
  return step;
}

double error_of(std::int64_t measured, std::int64_t predicted) {
  return static_cast<double>(measured) / static_cast<double>(predicted) - 1.0;
}

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Durations of joined ops, by kind and whether they ran beside the other sort of work.
class KindTable {
 public:
  void add(const TraceOp& op, std::int64_t predicted, std::int64_t measured, bool overlapped, const std::string& name) {
    if (predicted <= 0) return;
    List& list = lists_[{op.kind, overlapped}];
    list.predicted.push_back(predicted);
    list.measured.push_back(measured);
    const double error = error_of(measured, predicted);
    list.errors.push_back(error);
    if (std::abs(error) <= std::abs(list.worst)) return;
    list.worst = error;
    list.worst_op = name;
  }

  std::vector<KindRow> rows() const {
    std::vector<KindRow> rows;
    for (const auto& [key, list] : lists_) {
      KindRow row;
      row.kind = key.first;
      row.overlapped = key.second;
      row.count = static_cast<int>(list.errors.size());
      row.predicted = Ns{median(list.predicted)};
      row.measured = Ns{median(list.measured)};
      row.error = median(list.errors);
      row.worst = list.worst;
      row.worst_op = list.worst_op;
      for (const std::int64_t value : list.predicted) row.predicted_total += Ns{value};
      for (const std::int64_t value : list.measured) row.measured_total += Ns{value};
      rows.push_back(row);
    }
    return rows;
  }

 private:
  struct List {
    std::vector<std::int64_t> predicted, measured;
    std::vector<double> errors;
    double worst = 0;
    std::string worst_op;
  };
  std::map<std::pair<OpKind, bool>, List> lists_;
};

class Comparer {
 public:
  Comparer(const CompareInput& input, const CompareOptions& options) : input_(input), options_(options) {}

  Comparison run() {
    head();
    measured_ = align_clocks(input_.measured, result_.clocks);
    compare_order();
    if (input_.plan) compare_windows();
    compare_kinds();
    compare_step();
    result_.findings = named_findings(input_, measured_, result_, options_);
    judge();
    return std::move(result_);
  }

 private:
  void head() {
    result_.predicted_file = input_.predicted_file;
    result_.measured_file = input_.measured_file;
    result_.foreign = input_.foreign;
    result_.by_plan = input_.plan.has_value();
    result_.plan_hash = input_.predicted.plan_hash();
    const std::string other = input_.measured.plan_hash();
    result_.same_plan = !other.empty() && other == result_.plan_hash;
    if (!options_.any_plan && !other.empty() && !result_.plan_hash.empty() && !result_.same_plan)
      throw InputError(input_.measured_file, "",
                       "is of plan " + other + ", the prediction of plan " + result_.plan_hash +
                           ": not the same work (--any-plan compares them all the same)");
    result_.ranks = ranks_of(input_.measured);
    if (result_.ranks.empty()) throw InputError(input_.measured_file, "", "holds no op");
    if (input_.predicted.ops.empty()) throw InputError(input_.predicted_file, "", "holds no op");
    check_baseline();
    result_.clocks = measure_clocks(input_.measured);
  }

  /// The un-split step must be of the config that the prediction is of, where both say which.
  void check_baseline() const {
    if (!input_.baseline || options_.any_plan) return;
    const auto config_of = [](const Trace& trace) {
      return trace.metadata.is_object() ? trace.metadata.find("config") : nullptr;
    };
    const Json *split = config_of(input_.predicted), *unsplit = config_of(*input_.baseline);
    if (split != nullptr && unsplit != nullptr && compact_json(*split) != compact_json(*unsplit))
      throw InputError(input_.predicted_file, "",
                       "is of another config than the baseline: a gain needs both steps of one config");
  }

  void compare_order() {
    if (input_.plan) {
      OrderOptions order;
      order.lane_slack = options_.lane_slack;
      order.rank_slack = options_.lane_slack;
      for (const RankClock& clock : result_.clocks)
        order.rank_slack = std::max(order.rank_slack, options_.lane_slack + 3 * clock.residual);
      result_.order = check_order(*input_.plan, measured_, order);
    }
    for (const std::int32_t rank : result_.ranks) {
      const std::int32_t like = predicted_rank_for(input_, rank);
      const auto predicted = ops_by_key(input_.predicted, like), measured = ops_by_key(measured_, rank);
      for (const auto& [key, op] : predicted) {
        if (is_wire(key.kind)) continue;
        if (measured.count(key) > 0) {
          ++result_.joined;
        } else {
          ++result_.only_predicted;
          // Else it may have been too short to be seen.
          if (options_.lane_slack < op->end - op->start || starts_are_lanes(measured_)) note_missing(rank, *op);
        }
      }
      for (const auto& [key, op] : measured)
        if (!is_wire(key.kind) && predicted.count(key) == 0) ++result_.only_measured;
      if (!result_.divergence) find_divergence(rank, predicted, measured);
    }
  }

  /// A profiler's trace may well lack kernels; one of ours may not.
  void note_missing(std::int32_t rank, const TraceOp& op) {
    ++missing_;
    if (input_.foreign || result_.order.size() >= 100) return;
    result_.order.push_back(
        {OrderFinding::Kind::Missing, rank, op.plan_op,
         "rank " + std::to_string(rank) + ": " + describe_op(input_.predicted, op) + " did not run"});
  }

  struct Placed {
    std::int64_t place = 0;  ///< position in the plan, or predicted start
    std::int64_t start = 0;
    std::string name;
  };

  /// The ops both traces have, lane by lane of the prediction: in planned and in measured order.
  void find_divergence(std::int32_t rank, const std::map<JoinKey, const TraceOp*>& predicted,
                       const std::map<JoinKey, const TraceOp*>& measured) {
    std::map<std::string, std::vector<Placed>> lanes;
    for (const auto& [key, op] : predicted) {
      const auto other = measured.find(key);
      if (other == measured.end() || is_wire(key.kind)) continue;
      lanes[input_.predicted.lanes[op->lane]].push_back({op->start.time_since_epoch().count(),
                                                         other->second->start.time_since_epoch().count(),
                                                         describe_op(input_.predicted, *op)});
    }
    for (auto& [lane, ops] : lanes) {
      std::stable_sort(ops.begin(), ops.end(), [](const Placed& a, const Placed& b) { return a.place < b.place; });
      std::vector<Placed> seen = ops;
      std::stable_sort(seen.begin(), seen.end(), [](const Placed& a, const Placed& b) { return a.start < b.start; });
      for (std::size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].name == seen[i].name) continue;
        result_.divergence = Divergence{rank, lane, i, i > 0 ? ops[i - 1].name : "", ops[i].name, seen[i].name};
        return;
      }
    }
  }

  void compare_windows() {
    std::vector<PlannedWindows> planned;
    for (std::size_t c = 0; c < input_.plan->classes.size(); ++c)
      planned.push_back(planned_windows(*input_.plan, linearise(*input_.plan, static_cast<int>(c))));
    std::map<std::string, std::size_t> row_of;
    for (const std::int32_t rank : result_.ranks) {
      if (rank >= input_.plan->world.ranks) continue;
      const PlannedWindows& windows = planned[static_cast<std::size_t>(input_.plan->class_of(rank))];
      const auto predicted =
          window_shares(windows, input_.predicted, predicted_rank_for(input_, rank), options_.stretched_gaps);
      const auto measured = window_shares(windows, measured_, rank, options_.stretched_gaps);
      for (std::size_t i = 0; i < measured.size(); ++i) {
        const auto [at, fresh] = row_of.emplace(measured[i].name, result_.windows.size());
        if (fresh) result_.windows.push_back({measured[i].name, 0, 0, {}, {}, {}, {}});
        WindowRow& row = result_.windows[at->second];
        row.planned += measured[i].planned;
        row.measured += measured[i].measured;
        row.predicted_hidden += predicted[i].hidden;
        row.predicted_exposed += predicted[i].exposed;
        row.hidden += measured[i].hidden;
        row.exposed += measured[i].exposed;
      }
    }
  }

  void compare_kinds() {
    KindTable table;
    for (const std::int32_t rank : result_.ranks) {
      const std::int32_t like = predicted_rank_for(input_, rank);
      const auto predicted = ops_by_key(input_.predicted, like), measured = ops_by_key(measured_, rank);
      const Intervals compute = compute_intervals(measured_, rank);
      const Transfers transfers(measured_, rank), expected(input_.predicted, like);
      const Intervals communication = transfer_intervals(transfers);
      const std::string suffix = ", rank " + std::to_string(rank);
      for (const auto& [key, op] : measured) {
        const auto other = predicted.find(key);
        if (other == predicted.end() || is_wire(key.kind)) continue;
        const Interval one{op->start.time_since_epoch().count(), op->end.time_since_epoch().count()};
        const Intervals& beside = is_comm(key.kind) ? compute : communication;
        const bool overlapped = 2 * covered(beside, one) >= one.end - one.begin;
        // What a receive waited is the wire's time, which has a row of its own.
        const auto own = [](const TraceOp& o) {
          return length(o) - (is_recv(o.kind) ? std::min(o.waited.count(), length(o)) : 0);
        };
        table.add(*op, own(*other->second), own(*op), overlapped, describe_op(measured_, *op) + suffix);
      }
      for (const auto& [key, parts] : expected.all()) {
        if (parts.kernel) continue;  // it was joined above
        const auto planned = Transfers::interval(parts);
        const auto seen = transfers.find(std::get<0>(key), std::get<1>(key), std::get<2>(key));
        if (!planned || !seen) continue;
        const Transfers::Parts* wire_parts = transfers.parts(std::get<0>(key), std::get<1>(key), std::get<2>(key));
        if (!Transfers::end_seen(*wire_parts, options_.lane_slack)) continue;
        TraceOp wire;
        wire.kind = std::get<0>(key) ? OpKind::DWire : OpKind::CWire;
        wire.layer = std::get<1>(key);
        wire.ubatch = static_cast<std::int16_t>(std::get<2>(key));
        const bool overlapped = 2 * covered(compute, *seen) >= seen->end - seen->begin;
        table.add(wire, planned->end - planned->begin, seen->end - seen->begin, overlapped,
                  describe_op(measured_, wire) + suffix);
      }
    }
    result_.kinds = table.rows();
  }

  static Intervals transfer_intervals(const Transfers& transfers) {
    std::vector<Interval> any;
    for (const auto& [key, parts] : transfers.all())
      if (const auto interval = Transfers::interval(parts)) any.push_back(*interval);
    return unite(std::move(any));
  }

  void compare_step() {
    result_.predicted_step = step_of(input_.predicted);
    result_.measured_step = step_of(measured_);
    std::int32_t slowest = result_.ranks.front();
    for (const std::int32_t rank : result_.ranks) {
      if (span_of(measured_, rank) > span_of(measured_, slowest)) slowest = rank;
      result_.measured_exposed = std::max(result_.measured_exposed, exposed_communication(measured_, rank));
      result_.predicted_exposed = std::max(result_.predicted_exposed,
                                           exposed_communication(input_.predicted, predicted_rank_for(input_, rank)));
    }
    if (input_.baseline) {
      result_.baseline_step = step_of(*input_.baseline);
      result_.baseline_measured = input_.baseline_measured;
    }
    split_error(slowest);
  }

  /// The compute lane's time by what it was spent on: work by kind, waiting in receives, and idle.
  std::map<std::string, std::int64_t> lane_parts(const Trace& trace, std::int32_t rank) const {
    std::map<std::string, std::int64_t> parts;
    std::vector<Interval> busy;
    for (const TraceOp& op : trace.ops) {
      if (op.rank != rank || op.lane >= trace.lanes.size() || trace.lanes[op.lane] != "compute") continue;
      const std::int64_t waited = is_recv(op.kind) ? std::min(op.waited.count(), length(op)) : 0;
      parts[std::string(op_name(op.kind))] += length(op) - waited;
      if (is_recv(op.kind)) parts["waiting in receives"] += waited;
      busy.push_back({op.start.time_since_epoch().count(), op.end.time_since_epoch().count()});
    }
    parts["idle"] = span_of(trace, rank).count() - total(unite(std::move(busy)));
    return parts;
  }

  static std::string assumption_of(const std::string& part) {
    static const std::map<std::string, std::string> kAssumptions = {
        {"A0", "attention projections: achieved GEMM rate and weight-read floor"},
        {"A1", "attention core: achieved rate at this context; output projection and gate"},
        {"MLP", "grouped GEMM: rows per expert, weight-read floor, tile waves, SMs left by communication"},
        {"S", "shared expert: GEMM rate at this batch"},
        {"FFN", "dense feed-forward: GEMM rate at this batch"},
        {"D.send", "send kernel of the dispatch"},
        {"C.send", "send kernel of the combine"},
        {"D.recv", "receive kernel of the dispatch, without waiting"},
        {"C.recv", "receive kernel of the combine, without waiting"},
        {"waiting in receives", "wire time: link rate, skew between ranks, routing imbalance"},
        {"idle", "launch costs, gaps between kernels, and waits for the comm lane"},
        {"EMB", "embedding, which the model takes as memory traffic"},
        {"HEAD", "final norm and logits"},
        {"C.copy", "copy of combined tokens"}};
    const auto at = kAssumptions.find(part);
    return at == kAssumptions.end() ? "an op the prediction has no model for" : at->second;
  }

  void split_error(std::int32_t rank) {
    const auto predicted = lane_parts(input_.predicted, predicted_rank_for(input_, rank));
    const auto measured = lane_parts(measured_, rank);
    std::map<std::string, StepPart> parts;
    for (const auto& [what, ns] : predicted) parts[what].predicted = Ns{ns};
    for (const auto& [what, ns] : measured) parts[what].measured = Ns{ns};
    for (auto& [what, part] : parts) {
      part.what = what;
      part.assumption = assumption_of(what);
      result_.parts.push_back(part);
    }
    std::stable_sort(result_.parts.begin(), result_.parts.end(), [](const StepPart& a, const StepPart& b) {
      return std::abs((a.measured - a.predicted).count()) > std::abs((b.measured - b.predicted).count());
    });
  }

  void judge() {
    const auto add = [&](std::string what, bool ok, std::string value, std::string allowed) {
      result_.criteria.push_back({std::move(what), ok, std::move(value), std::move(allowed)});
    };
    const auto share = [](double value) { return fixed_text(value * 100, 1) + " %"; };
    add("ops joined", result_.joined > 0, std::to_string(result_.joined), "at least one");
    // A profiler's trace may well lack kernels; one of ours may not.
    if (!input_.foreign)
      add("predicted ops seen", missing_ == 0, std::to_string(missing_) + " were not", "all that can be");
    if (input_.plan)
      add("order and dependencies", result_.order.empty(), std::to_string(result_.order.size()) + " findings", "none");
    else
      add("order of lanes", !result_.divergence.has_value(), result_.divergence ? "diverges" : "kept", "kept");
    add("step time", std::abs(result_.step_error()) <= options_.step_tolerance, share(result_.step_error()),
        "+-" + share(options_.step_tolerance));
    const auto small = static_cast<std::int64_t>(static_cast<double>(result_.predicted_step.count()) *
                                                 options_.small_share * static_cast<double>(result_.ranks.size()));
    for (const WindowRow& row : result_.windows) {
      const int least = input_.foreign ? std::min(row.planned, 1) : row.planned;
      if (row.measured < least)
        add("window " + row.name + " seen", false, std::to_string(row.measured) + " of " + std::to_string(row.planned),
            "at least " + std::to_string(least));
      if (!row.share() || !row.predicted_share() || (row.predicted_hidden + row.predicted_exposed).count() < small)
        continue;
      add("window " + row.name, *row.share() >= *row.predicted_share() - options_.window_tolerance, share(*row.share()),
          ">= " + share(*row.predicted_share() - options_.window_tolerance));
    }
    for (const KindRow& row : result_.kinds) {
      if (std::max(row.predicted_total, row.measured_total).count() < small) continue;
      add(std::string(op_name(row.kind)) + (row.overlapped ? " in overlap" : " alone"),
          std::abs(row.error) <= options_.kind_tolerance, share(row.error), "+-" + share(options_.kind_tolerance));
    }
  }

  const CompareInput& input_;
  const CompareOptions& options_;
  Trace measured_;   ///< with aligned clocks
  int missing_ = 0;  ///< predicted ops that should have been seen
  Comparison result_;
};

std::optional<double> share_of(Ns hidden, Ns exposed) {
  const std::int64_t all = (hidden + exposed).count();
  if (all == 0) return std::nullopt;
  return static_cast<double>(hidden.count()) / static_cast<double>(all);
}

}  // namespace

std::optional<double> WindowRow::predicted_share() const {
  return share_of(predicted_hidden, predicted_exposed);
}
std::optional<double> WindowRow::share() const {
  return share_of(hidden, exposed);
}

double Comparison::step_error() const {
  return predicted_step.count() == 0 ? 0 : error_of(measured_step.count(), predicted_step.count());
}
bool Comparison::pass() const {
  return std::all_of(criteria.begin(), criteria.end(), [](const Criterion& criterion) { return criterion.ok; });
}

std::int32_t predicted_rank_for(const CompareInput& input, std::int32_t rank) {
  const std::vector<std::int32_t> ranks = ranks_of(input.predicted);
  if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return rank;
  if (input.plan && rank >= 0 && rank < input.plan->world.ranks)
    for (const std::int32_t other : ranks)
      if (other < input.plan->world.ranks && input.plan->class_of(other) == input.plan->class_of(rank)) return other;
  return ranks.empty() ? 0 : ranks.front();
}

Comparison compare_traces(const CompareInput& input, const CompareOptions& options) {
  return Comparer(input, options).run();
}

}  // namespace dbo
