#include "sim/engine/engine.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

using Times = std::vector<std::int64_t>;

/// A dispatch or combine call across all ranks.
struct Call {
  int classes_in = 0;       ///< classes whose ranks have all sent or started
  std::int64_t latest = 0;  ///< end of the slowest send, or start of the last kernel
  Times arrival;            ///< by group: last byte there (send and receive), end (kernel)
  Times start;              ///< by group: own start of a kernel
};

class Engine {
 public:
  Engine(const Plan& plan, const CostTable& costs, const EngineOptions& options) : plan_(plan), options_(options) {
    result_.folding = fold_ranks(plan, costs);
    groups_ = result_.folding.groups.size();
    TapeMaker maker(plan, costs, result_.folding);
    for (std::size_t c = 0; c < plan.classes.size(); ++c) {
      result_.linear.push_back(linearise(plan, static_cast<int>(c)));
      for (const OrderProblem& problem : result_.linear.back().problems)
        throw FindingError(problem.code + ": " + problem.text);
      tapes_.push_back(maker.make(static_cast<int>(c), result_.linear.back()));
    }
    tag_names_ = maker.tags();
    calls_.resize(tag_names_.size());
    const bool graph = plan.execution == Execution::Graph;
    if (graph) {
      node_gap_ = costs.host.node_gap.count();
      lane_gap_ = costs.host.lane_gap.count();
    }
    host_blocks_ = costs.host_blocks && !graph;
    host_.assign(groups_, graph ? costs.host.graph_launch.count() : 0);
    lanes_.assign(plan.lanes.size(), Times(groups_, 0));
    used_.assign(plan.lanes.size(), std::vector<char>(plan.classes.size(), 0));
    crossed_.assign(plan.lanes.size(), Times(groups_, -1));
    port_.assign(groups_, 0);
    for (std::size_t c = 0; c < tapes_.size(); ++c) slots_.emplace_back(tapes_[c].slots * width(c), 0);
    in_flight_.resize(tapes_.size());
    position_.assign(tapes_.size(), 0);
    next_mark_.assign(tapes_.size(), 0);
    result_.step_ns.assign(groups_, 0);
    for (const int group : options.record) {
      const int c = result_.folding.groups[static_cast<std::size_t>(group)].class_index;
      result_.times.emplace_back(result_.linear[static_cast<std::size_t>(c)].ops.size());
    }
  }

  EngineResult run() {
    for (;;) {
      bool moved = false, done = true;
      for (std::size_t c = 0; c < tapes_.size(); ++c) {
        moved = advance(c) || moved;
        done = done && position_[c] == tapes_[c].steps.size();
      }
      if (done) break;
      if (at_mark()) {
        if (!report_mark()) break;
        continue;
      }
      if (!moved) report_deadlock();
    }
    return std::move(result_);
  }

 private:
  std::size_t width(std::size_t c) const {
    return static_cast<std::size_t>(result_.folding.of_class[c].second - result_.folding.of_class[c].first);
  }
  std::size_t begin(std::size_t c) const { return static_cast<std::size_t>(result_.folding.of_class[c].first); }

  /// Runs class c until it ends, reaches a mark or waits for another class. Returns whether it moved.
  bool advance(std::size_t c) {
    const Tape& tape = tapes_[c];
    const std::uint32_t from = position_[c];
    std::uint32_t& at = position_[c];
    while (at < tape.steps.size()) {
      while (next_mark_[c] < tape.marks.size() && tape.marks[next_mark_[c]].step == at) {
        if (options_.on_mark && tape.marks[next_mark_[c]].moe) return at != from;
        ++next_mark_[c];
      }
      if (!execute(c, tape.steps[at])) break;
      ++at;
    }
    return at != from;
  }

  /// One step for all groups of the class; false when it must wait for another class first.
  bool execute(std::size_t c, const TapeStep& step) {
    switch (step.kind) {
      case TapeStep::Kind::Launch:
      case TapeStep::Kind::Send:
        launch(c, step);
        return true;
      case TapeStep::Kind::Recv:
        return receive(c, step);
      case TapeStep::Kind::Collective:
        return collective(c, step);
      case TapeStep::Kind::Record:
        charge_host(c, step);
        if (step.slot != kNone) std::copy_n(&lanes_[step.lane][begin(c)], width(c), &slots_[c][step.slot * width(c)]);
        return true;
      case TapeStep::Kind::Wait:
        charge_host(c, step);
        if (step.slot != kNone) wait(c, step);
        return true;
      case TapeStep::Kind::HostWait:
        return host_wait(c, step);
      case TapeStep::Kind::HostOnly:
        charge_host(c, step);
        return true;
    }
    return true;
  }

  void charge_host(std::size_t c, const TapeStep& step) {
    const std::int64_t cost = step.host.count();
    if (cost == 0) return;
    std::int64_t* host = &host_[begin(c)];
    for (std::size_t g = 0; g < width(c); ++g) host[g] += cost;
  }

  void wait(std::size_t c, const TapeStep& step) {
    const std::int64_t gap = step.op != step.lane ? lane_gap_ : 0;
    std::int64_t* lane = &lanes_[step.lane][begin(c)];
    std::int64_t* crossed = &crossed_[step.lane][begin(c)];
    const std::int64_t* event = &slots_[c][step.slot * width(c)];
    for (std::size_t g = 0; g < width(c); ++g) {
      const std::int64_t ready = event[g] + gap;
      if (ready > lane[g]) {
        lane[g] = ready;
        crossed[g] = ready;
      }
    }
  }

  /// The earliest start of the step's op on each group of the class, into start_.
  void starts(std::size_t c, const TapeStep& step) {
    charge_host(c, step);
    const std::int64_t gap = used_[step.lane][c] ? node_gap_ : 0;
    used_[step.lane][c] = 1;
    start_.resize(width(c));
    const std::int64_t* lane = &lanes_[step.lane][begin(c)];
    const std::int64_t* host = &host_[begin(c)];
    for (std::size_t g = 0; g < width(c); ++g) start_[g] = std::max(lane[g] + gap, host[g]);
  }

  void finish(std::size_t c, const TapeStep& step) {
    std::int64_t* lane = &lanes_[step.lane][begin(c)];
    std::int64_t* last = &result_.step_ns[begin(c)];
    for (std::size_t g = 0; g < width(c); ++g) {
      lane[g] = end_[g];
      last[g] = std::max(last[g], end_[g]);
    }
    if (step.slot != kNone) std::copy(end_.begin(), end_.end(), &slots_[c][step.slot * width(c)]);
  }

  void launch(std::size_t c, const TapeStep& step) {
    starts(c, step);
    const std::int64_t* time = &tapes_[c].times[step.cost];
    end_.resize(width(c));
    for (std::size_t g = 0; g < width(c); ++g) end_[g] = start_[g] + time[g];
    if (step.kind == TapeStep::Kind::Send) send(c, step);
    record(c, step, nullptr);
    finish(c, step);
  }

  void send(std::size_t c, const TapeStep& step) {
    Call& call = calls_[step.tag];
    for (std::size_t g = 0; g < width(c); ++g) call.latest = std::max(call.latest, end_[g]);
    ++call.classes_in;
    in_flight_[c].push_back({step.tag, step.wire});
  }

  /// Lets the data of the class's calls arrive in the order they were sent, up to `tag`: the slowest send, then the
  /// wire into each rank when its port is free. False when a call is not yet sent by every class.
  bool deliver(std::size_t c, std::uint32_t tag) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>>& queue = in_flight_[c];
    if (!calls_[tag].arrival.empty() && calls_[tag].arrival[begin(c)] >= 0) return true;
    std::size_t done = 0;
    bool found = false;
    while (!found && done < queue.size()) {
      Call& call = calls_[queue[done].first];
      if (call.classes_in < static_cast<int>(tapes_.size())) break;
      if (call.arrival.empty()) call.arrival.assign(groups_, -1);
      const std::int64_t* wire = &tapes_[c].wires[queue[done].second];
      for (std::size_t g = 0; g < width(c); ++g) {
        std::int64_t& port = port_[begin(c) + g];
        port = std::max(call.latest, port) + wire[g];
        call.arrival[begin(c) + g] = port;
      }
      found = queue[done].first == tag;
      ++done;
    }
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(done));
    return found;
  }

  bool receive(std::size_t c, const TapeStep& step) {
    if (!deliver(c, step.tag)) return false;
    const Call& call = calls_[step.tag];
    starts(c, step);
    const std::int64_t* time = &tapes_[c].times[step.cost];
    end_.resize(width(c));
    for (std::size_t g = 0; g < width(c); ++g) end_[g] = std::max(start_[g], call.arrival[begin(c) + g]) + time[g];
    record(c, step, &call);
    finish(c, step);
    return true;
  }

  bool collective(std::size_t c, const TapeStep& step) {
    Call& call = calls_[step.tag];
    if (call.start.empty()) {
      call.start.assign(groups_, 0);
      call.arrival.assign(groups_, -1);
    }
    if (call.arrival[begin(c)] == -1) {  // not yet started here
      starts(c, step);
      std::copy(start_.begin(), start_.end(), &call.start[begin(c)]);
      for (const std::int64_t start : start_) call.latest = std::max(call.latest, start);
      ++call.classes_in;
      std::fill_n(&call.arrival[begin(c)], width(c), -2);
    }
    if (call.classes_in < static_cast<int>(tapes_.size())) return false;
    const std::int64_t* time = &tapes_[c].times[step.cost];
    start_.assign(&call.start[begin(c)], &call.start[begin(c)] + width(c));
    end_.resize(width(c));
    for (std::size_t g = 0; g < width(c); ++g) end_[g] = call.arrival[begin(c) + g] = call.latest + time[g];
    record(c, step, &call);
    finish(c, step);
    return true;
  }

  bool host_wait(std::size_t c, const TapeStep& step) {
    if (!host_blocks_) return true;
    std::int64_t* host = &host_[begin(c)];
    if (step.slot != kNone) {
      const std::int64_t* end = &slots_[c][step.slot * width(c)];
      for (std::size_t g = 0; g < width(c); ++g) host[g] = std::max(host[g], end[g]);
      return true;
    }
    if (step.tag == kNone) return true;  // only a kernel that all ranks run together has counts to notify
    const Call& call = calls_[step.tag];
    const std::int64_t* notify = &tapes_[c].notifies[step.cost];
    for (std::size_t g = 0; g < width(c); ++g) host[g] = std::max(host[g], call.latest + notify[g]);
    return true;
  }

  /// Keeps the op's times for the groups of the class that are recorded.
  void record(std::size_t c, const TapeStep& step, const Call* call) {
    for (std::size_t r = 0; r < options_.record.size(); ++r) {
      const auto group = static_cast<std::size_t>(options_.record[r]);
      if (group < begin(c) || group >= begin(c) + width(c)) continue;
      const std::size_t g = group - begin(c);
      OpTimes& times = result_.times[r][step.op];
      times.start = start_[g];
      times.end = end_[g];
      times.issued = host_[group];
      times.bound = bound(step, group, start_[g]);
      if (call == nullptr) continue;
      times.sent = call->latest;
      times.arrived = call->arrival[group];
      const LinearOp& op = result_.linear[c].ops[step.op];
      if (step.kind == TapeStep::Kind::Recv) result_.times[r][op.pair].arrived = times.arrived;
    }
  }

  Bound bound(const TapeStep& step, std::size_t group, std::int64_t start) const {
    const std::int64_t lane = lanes_[step.lane][group];
    if (start == 0) return Bound::Start;
    if (host_[group] == start && start > lane) return Bound::Host;
    return crossed_[step.lane][group] == lane ? Bound::Event : Bound::Lane;
  }

  /// Whether every class stands at its next MoE mark.
  bool at_mark() const {
    if (!options_.on_mark) return false;
    for (std::size_t c = 0; c < tapes_.size(); ++c) {
      const Tape& tape = tapes_[c];
      if (next_mark_[c] >= tape.marks.size()) return false;
      const TapeMark& mark = tape.marks[next_mark_[c]];
      if (!mark.moe || mark.step != position_[c]) return false;
    }
    return true;
  }

  bool report_mark() {
    Times state;
    for (std::size_t c = 0; c < tapes_.size(); ++c) {
      const TapeMark& mark = tapes_[c].marks[next_mark_[c]];
      const auto append = [&](const std::int64_t* values) { state.insert(state.end(), values, values + width(c)); };
      for (const Times& lane : lanes_) append(&lane[begin(c)]);
      for (const std::uint32_t slot : mark.live_slots) append(&slots_[c][slot * width(c)]);
      for (const std::uint32_t tag : mark.live_tags) state.push_back(calls_[tag].latest);
      append(&port_[begin(c)]);
      ++next_mark_[c];
    }
    return options_.on_mark(marks_seen_++, host_, state);
  }

  [[noreturn]] void report_deadlock() const {
    std::string text = "F1: the ranks' orders do not meet:";
    for (std::size_t c = 0; c < tapes_.size(); ++c) {
      const FoldGroup& group = result_.folding.groups[begin(c)];
      text += " rank " + std::to_string(group.first_rank);
      if (position_[c] == tapes_[c].steps.size()) {
        text += " has finished;";
        continue;
      }
      const TapeStep& step = tapes_[c].steps[position_[c]];
      text += " waits for every rank's " + describe(plan_, result_.linear[c].ops[step.op]) + ";";
    }
    text.back() = '.';
    throw FindingError(text);
  }

  const Plan& plan_;
  const EngineOptions& options_;
  EngineResult result_;
  std::size_t groups_ = 0;
  std::vector<Tape> tapes_;
  std::vector<TagName> tag_names_;
  std::vector<Call> calls_;
  std::int64_t node_gap_ = 0, lane_gap_ = 0;
  bool host_blocks_ = true;
  // By group: the host's clock, when each lane is free, the last event that held the lane up, when the port is free.
  Times host_, port_;
  std::vector<Times> lanes_, crossed_;
  std::vector<std::vector<char>> used_;  ///< by lane, then class: an op has run there
  std::vector<Times> slots_;             ///< by class: slot, then group
  /// By class: calls sent but not yet delivered, with the offset of their wires.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> in_flight_;
  std::vector<std::uint32_t> position_;
  std::vector<std::size_t> next_mark_;
  int marks_seen_ = 0;
  Times start_, end_;
};

}  // namespace

std::int64_t EngineResult::step() const {
  return step_ns.empty() ? 0 : *std::max_element(step_ns.begin(), step_ns.end());
}

int EngineResult::slowest() const {
  return static_cast<int>(std::max_element(step_ns.begin(), step_ns.end()) - step_ns.begin());
}

EngineResult run_engine(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  return Engine(plan, costs, options).run();
}

}  // namespace dbo
