#include <algorithm>
#include <map>

#include "sim/plan/linearise.h"
#include "traces/compare.h"
#include "traces/join.h"
#include "traces/overlap.h"
#include "traces/ready_times.h"
#include "traces/text_table.h"
#include "traces/windows.h"

namespace dbo {
namespace {

constexpr std::size_t kMostEvidence = 5;
/// A start this close behind an end was waiting for it: what a lane takes to go on behind another one, eagerly.
constexpr Ns kTight{10'000};
/// Delays below this are gaps, not waits.
constexpr Ns kShortDelay{5'000};
/// Of a transfer's own duration: what it starts late by is worth a name from there on, and the moment it had to wait
/// for is not told apart from one so near. A transfer of two milliseconds does not lose its overlap to ten
/// microseconds.
constexpr std::int64_t kShareOfTransfer = 10;

/// How exactly the start of one transfer can be read and judged.
struct Reading {
  Ns blur{};   ///< how wrong the distance of two times of its rank may be
  Ns delay{};  ///< shorter delays are gaps
  Ns tight{};  ///< so far behind an end, a start waited for it
};

/// `residual`: of the rank's clock, which was fitted to the other ranks' and stretched with it.
Reading reading_of(const TraceOp& transfer, Ns lane_slack, Ns residual) {
  const Ns blur = lane_slack + residual;
  const Ns share = (transfer.end - transfer.start) / kShareOfTransfer;
  return {blur, std::max(kShortDelay, share) + blur, std::max(kTight, share) + blur};
}

/// How often transfers of one window began only when a compute op they should have run beside was over.
struct Serialised {
  int seen = 0, behind = 0;
  std::vector<std::string> examples;
};

class Finder {
 public:
  Finder(const CompareInput& input, const Trace& measured, const Comparison& comparison, const CompareOptions& options)
      : input_(input), measured_(measured), comparison_(comparison), options_(options) {}

  std::vector<NamedFinding> run() {
    from_order();
    if (input_.plan) {
      for (std::size_t c = 0; c < input_.plan->classes.size(); ++c)
        linear_.push_back(linearise(*input_.plan, static_cast<int>(c)));
      late_transfers();
      too_many_in_flight();
    }
    no_benefit();
    host_bound();
    return std::move(findings_);
  }

 private:
  void add(std::string code, std::string title, std::vector<std::string> evidence) {
    const std::size_t more = evidence.size() > kMostEvidence ? evidence.size() - kMostEvidence : 0;
    if (more > 0) {
      evidence.resize(kMostEvidence);
      evidence.push_back("and " + std::to_string(more) + " more");
    }
    findings_.push_back({std::move(code), std::move(title), std::move(evidence)});
  }

  /// What check_order found, under the names of the failures it shows.
  void from_order() {
    std::map<OrderFinding::Kind, std::vector<std::string>> by_kind;
    std::vector<std::string> hooks;
    for (const OrderFinding& finding : comparison_.order) {
      const bool receive = finding.text.find(".recv") != std::string::npos;
      if (receive && (finding.kind == OrderFinding::Kind::Twice || finding.kind == OrderFinding::Kind::Missing))
        hooks.push_back(finding.text);
      else
        by_kind[finding.kind].push_back(finding.text);
    }
    const auto take = [&](OrderFinding::Kind kind) { return std::move(by_kind[kind]); };
    if (auto text = take(OrderFinding::Kind::WrongLane); !text.empty())
      add("F4", "ops ran on another lane than planned (a launch with a stale stream?)", std::move(text));
    if (auto text = take(OrderFinding::Kind::Wait); !text.empty())
      add("F5", "ops began before what their lane waits for was over (a wait is missing)", std::move(text));
    if (!hooks.empty()) add("F7", "receive hooks ran twice or not at all", std::move(hooks));
    if (auto text = take(OrderFinding::Kind::Arrival); !text.empty())
      add("clock or data",
          "receives or comm kernels ended before every rank had sent: clocks are off, or data is stale",
          std::move(text));
  }

  /// F3 and F17 look alike in durations and differ in cause: a transfer on a lane of its own, which could have run
  /// beside a compute op, began only when that op was over. Where starts are those of lanes, it was ordered so (an
  /// event recorded too late). Where they are those of kernels, it was with SMs set aside for communication; without,
  /// it found no SM.
  void late_transfers() {
    std::map<std::string, Serialised> windows;
    for (const std::int32_t rank : comparison_.ranks) {
      if (rank >= input_.plan->world.ranks) continue;
      const Linear& linear = linear_[static_cast<std::size_t>(input_.plan->class_of(rank))];
      const RankOps ops(measured_, rank, linear.ops.size());
      const std::vector<SimTime> ready = ready_times(*input_.plan, linear, ops);
      const PlannedWindows planned = planned_windows(*input_.plan, linear);
      for (const PlannedWindow& window : planned.windows) {
        const TraceOp* transfer = ops[window.transfer];
        // On the compute lane a send is behind compute by its order.
        if (transfer == nullptr || linear.ops[window.transfer].lane == kComputeLane) continue;
        note(windows[planned.names[window.name]], *transfer, ready[window.transfer], planned, window, ops);
      }
    }
    std::vector<std::string> evidence;
    for (const auto& [name, window] : windows) {
      if (window.seen == 0 || 2 * window.behind < window.seen) continue;
      std::string text = name + ": " + std::to_string(window.behind) + " of " + std::to_string(window.seen) +
                         " transfers began only when the compute they were to run beside was over";
      for (const std::string& example : window.examples) text += "; " + example;
      evidence.push_back(std::move(text));
    }
    if (evidence.empty()) return;
    const SmBudget& sm = input_.plan->sm;
    const bool set_aside = sm.control != SmControl::None && sm.comm > 0;
    if (set_aside || starts_are_lanes(measured_))
      add("F3", "late event: communication waits for the other ubatch's compute, though the plan does not let it",
          std::move(evidence));
    else
      add("F17", "SM starvation: no SM is set aside for communication, which waits until compute has drained",
          std::move(evidence));
  }

  void note(Serialised& window, const TraceOp& transfer, SimTime ready, const PlannedWindows& planned,
            const PlannedWindow& one, const RankOps& ops) const {
    ++window.seen;
    const Reading reading = reading_of(transfer, options_.lane_slack, residual_of(transfer.rank));
    if (ready == SimTime::min() || transfer.start - ready < reading.delay) return;
    for (std::uint32_t i = one.first; i < one.last; ++i) {
      const TraceOp* compute = ops[planned.compute[i]];
      // Behind an op that outlasted the moment the transfer could have begun.
      if (compute == nullptr || compute->end <= ready || compute->start >= transfer.start) continue;
      const Ns behind = transfer.start - compute->end;
      if (behind < -reading.blur || behind > reading.tight) continue;
      ++window.behind;
      if (window.examples.size() < 1)
        window.examples.push_back(describe_op(measured_, transfer) + " on rank " + std::to_string(transfer.rank) +
                                  " could begin at " + us_text(ready.time_since_epoch().count()) + " us, began " +
                                  us_text(behind.count()) + " us after " + describe_op(measured_, *compute) + " at " +
                                  us_text(transfer.start.time_since_epoch().count()));
      return;
    }
  }

  Ns residual_of(std::int32_t rank) const {
    for (const RankClock& clock : comparison_.clocks)
      if (clock.rank == rank) return clock.residual;
    return {};
  }

  /// F6: low-latency buffers alternate, so a third call that was sent and not received overwrites the first.
  void too_many_in_flight() {
    const int slots = transport_info(input_.plan->transport).handle_slots;
    if (slots <= 0) return;
    std::vector<std::string> evidence;
    for (const std::int32_t rank : comparison_.ranks) {
      std::vector<std::pair<SimTime, const TraceOp*>> ends;
      for (const TraceOp& op : measured_.ops)
        if (op.rank == rank && (is_send(op.kind) || is_recv(op.kind)))
          ends.emplace_back(is_send(op.kind) ? op.start : op.end, &op);
      std::stable_sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : is_recv(a.second->kind) && is_send(b.second->kind);
      });
      int open = 0;
      for (const auto& [time, op] : ends) {
        open += is_send(op->kind) ? 1 : -1;
        if (open <= slots) continue;
        evidence.push_back("rank " + std::to_string(rank) + ": " + describe_op(measured_, *op) + " at " +
                           us_text(time.time_since_epoch().count()) + " us makes " + std::to_string(open) +
                           " calls that were sent and not received; the transport holds " + std::to_string(slots));
        break;
      }
    }
    if (!evidence.empty())
      add("F6", "more low-latency calls in flight than the transport has buffers", std::move(evidence));
  }

  void no_benefit() {
    if (!comparison_.baseline_step || comparison_.measured_step < *comparison_.baseline_step) return;
    std::vector<std::string> evidence;
    evidence.push_back("split step " + ms_text(comparison_.measured_step) + ", un-split " +
                       ms_text(*comparison_.baseline_step) +
                       (comparison_.baseline_measured ? " (measured)" : " (predicted)"));
    evidence.push_back("exposed communication " + ms_text(comparison_.measured_exposed) + " of the split step");
    for (const StepPart& part : comparison_.parts)
      if (part.what == "idle")
        evidence.push_back("compute lane idle for " + ms_text(part.measured) + ", predicted " +
                           ms_text(part.predicted));
    add("F16", "no benefit: the split step is not faster than the un-split one", std::move(evidence));
  }

  /// The compute lane idles much longer than predicted although communication is hidden as planned: nothing was there
  /// to run.
  void host_bound() {
    // A graph's launches are on the GPU before it needs them.
    if (input_.plan && input_.plan->execution == Execution::Graph) return;
    for (const StepPart& part : comparison_.parts) {
      if (part.what != "idle") continue;
      const Ns more = part.measured - part.predicted - std::max(options_.tracing, Ns{0});
      const Ns exposed = comparison_.measured_exposed - comparison_.predicted_exposed;
      if (more - std::max(Ns{0}, exposed) < comparison_.measured_step / 10) continue;
      add("host-bound", "the compute lane idles without waiting for communication: launches come too late",
          {"idle " + ms_text(part.measured) + ", predicted " + ms_text(part.predicted) + "; exposed communication " +
           ms_text(comparison_.measured_exposed) + ", predicted " + ms_text(comparison_.predicted_exposed)});
    }
  }

  const CompareInput& input_;
  const Trace& measured_;
  const Comparison& comparison_;
  const CompareOptions& options_;
  std::vector<Linear> linear_;
  std::vector<NamedFinding> findings_;
};

}  // namespace

std::vector<NamedFinding> named_findings(const CompareInput& input, const Trace& aligned, const Comparison& comparison,
                                         const CompareOptions& options) {
  return Finder(input, aligned, comparison, options).run();
}

}  // namespace dbo
