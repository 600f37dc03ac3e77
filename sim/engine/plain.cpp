#include "sim/engine/plain.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "sim/base/error.h"
#include "sim/engine/last_post.h"
#include "sim/engine/repeat.h"
#include "sim/engine/tape.h"

namespace dbo {
namespace {

using Times = std::vector<std::int64_t>;

/// A dispatch or combine call across all ranks.
struct Call {
  int programs_in = 0;      ///< programs whose ranks have all sent or started
  std::int64_t latest = 0;  ///< end of the slowest send, or start of the last kernel
  std::int32_t last = -1;   ///< its group, the first of several; found for recorded runs only
  Times arrival;            ///< by group: last byte there (send and receive), end (kernel); below 0: not yet
  Times start;              ///< by group: own start of a kernel
};

constexpr std::int64_t kUnknown = -1, kStarted = -2;

class Plain {
 public:
  Plain(const Plan& plan, const CostTable& costs, const EngineOptions& options) : plan_(plan), options_(options) {
    result_.folding = fold_ranks(plan, costs);
    result_.linear = Linears(plan, result_.folding);
    groups_ = result_.folding.groups.size();
    TapeMaker maker(plan, costs, result_.folding);
    tags_per_layer_ = maker.tags_per_layer();
    std::uint32_t tags = 0;
    for (std::size_t p = 0; p < result_.linear.programs(); ++p) {
      tapes_.push_back(maker.make(p, result_.linear.of_program(p)));
      slots_.emplace_back(tapes_[p].slots * width(p), 0);
      tags = std::max(tags, tapes_[p].tags);
      host_waits_ = host_waits_ || tapes_[p].host_waits;
    }
    calls_.resize(tags);
    const bool graph = plan.execution == Execution::Graph;
    node_gap_ = costs.host.node_gap_in(plan.execution).count();
    lane_gap_ = costs.host.lane_gap_in(plan.execution).count();
    host_.assign(groups_, graph ? costs.host.graph_launch.count() : 0);
    lanes_.assign(plan.lanes.size(), Times(groups_, 0));
    crossed_.assign(plan.lanes.size(), Times(groups_, -1));
    used_.assign(plan.lanes.size(), std::vector<char>(tapes_.size(), 0));
    port_.assign(groups_, 0);
    in_flight_.resize(tapes_.size());
    position_.assign(tapes_.size(), 0);
    next_mark_.assign(tapes_.size(), 0);
    result_.step_ns.assign(groups_, 0);
    looking_ = options.extrapolate || options.stop_at_repeat;
    recorded_.resize(tapes_.size());
    for (std::size_t r = 0; r < options.record.size(); ++r) {
      const auto group = static_cast<std::size_t>(options.record[r]);
      result_.times.emplace_back(linear_of(group).ops.size());
      recorded_[program_of(group)].push_back(r);
    }
  }

  EngineResult run() {
    for (;;) {
      bool moved = false, done = true;
      for (std::size_t p = 0; p < tapes_.size(); ++p) {
        moved = advance(p) || moved;
        done = done && position_[p] == tapes_[p].steps.size();
      }
      if (done) break;
      if (at_mark()) {
        if (!look_for_repeat()) return std::move(result_);
        continue;
      }
      if (moved) continue;
      // Programs that do not reach their marks together run on without looking for repeats.
      if (!looking_) report_deadlock();
      looking_ = false;
    }
    for (std::size_t r = 0; r < options_.record.size(); ++r)
      fill_arrivals(result_.times[r], plan_, linear_of(static_cast<std::size_t>(options_.record[r])));
    return std::move(result_);
  }

 private:
  std::size_t begin(std::size_t p) const { return static_cast<std::size_t>(result_.folding.of_program[p].first); }
  std::size_t width(std::size_t p) const {
    return static_cast<std::size_t>(result_.folding.of_program[p].second) - begin(p);
  }
  std::size_t program_of(std::size_t group) const {
    const auto c = static_cast<std::size_t>(result_.folding.groups[group].class_index);
    return static_cast<std::size_t>(result_.folding.program_of_class[c]);
  }
  const Linear& linear_of(std::size_t group) const { return result_.linear.of_program(program_of(group)); }

  /// Runs program p until it ends, reaches a mark or waits for another program. Returns whether it moved.
  bool advance(std::size_t p) {
    const Tape& tape = tapes_[p];
    const std::uint32_t from = position_[p];
    std::uint32_t& at = position_[p];
    while (at < tape.steps.size()) {
      if (next_mark_[p] < tape.marks.size() && tape.marks[next_mark_[p]].step == at) {
        if (looking_) return at != from;
        ++next_mark_[p];
      }
      if (!execute(p, tape.steps[at])) break;
      ++at;
    }
    return at != from;
  }

  /// One step for all groups of the program; false when it must wait for another program first.
  bool execute(std::size_t p, const TapeStep& step) {
    switch (step.kind) {
      case TapeStep::Kind::Launch:
      case TapeStep::Kind::Send:
        launch(p, step);
        return true;
      case TapeStep::Kind::Recv:
        return receive(p, step);
      case TapeStep::Kind::Collective:
        return collective(p, step);
      case TapeStep::Kind::Record:
        charge_host(p, step);
        if (step.slot != kNone) std::copy_n(&lanes_[step.lane][begin(p)], width(p), &slots_[p][step.slot * width(p)]);
        return true;
      case TapeStep::Kind::Wait:
        charge_host(p, step);
        if (step.slot != kNone) wait(p, step);
        return true;
      case TapeStep::Kind::HostWait:
        host_wait(p, step);
        return true;
      case TapeStep::Kind::HostOnly:
        charge_host(p, step);
        return true;
    }
    return true;
  }

  void charge_host(std::size_t p, const TapeStep& step) {
    const std::int64_t cost = step.host.count();
    if (cost == 0) return;
    std::int64_t* host = &host_[begin(p)];
    for (std::size_t g = 0; g < width(p); ++g) host[g] += cost;
  }

  void wait(std::size_t p, const TapeStep& step) {
    const std::int64_t gap = step.crosses ? lane_gap_ : 0;
    std::int64_t* lane = &lanes_[step.lane][begin(p)];
    std::int64_t* crossed = &crossed_[step.lane][begin(p)];
    const std::int64_t* event = &slots_[p][step.slot * width(p)];
    for (std::size_t g = 0; g < width(p); ++g) {
      const std::int64_t ready = event[g] + gap;
      const bool later = ready > lane[g];
      lane[g] = later ? ready : lane[g];
      crossed[g] = later ? ready : crossed[g];
    }
  }

  /// The earliest start of the step's op on each group of the program, into start_.
  void starts(std::size_t p, const TapeStep& step) {
    charge_host(p, step);
    const std::int64_t gap = used_[step.lane][p] ? node_gap_ : 0;
    used_[step.lane][p] = 1;
    start_.resize(width(p));
    const std::int64_t* lane = &lanes_[step.lane][begin(p)];
    const std::int64_t* host = &host_[begin(p)];
    bool host_bound = false;
    for (std::size_t g = 0; g < width(p); ++g) {
      const std::int64_t ready = lane[g] + gap;
      host_bound |= host[g] > ready;
      start_[g] = std::max(ready, host[g]);
    }
    host_bound_ += host_bound ? 1 : 0;
  }

  /// Takes the ends from end_.
  void finish(std::size_t p, const TapeStep& step) {
    std::copy(end_.begin(), end_.end(), &lanes_[step.lane][begin(p)]);
    if (step.last) {
      std::int64_t* last = &result_.step_ns[begin(p)];
      for (std::size_t g = 0; g < width(p); ++g) last[g] = std::max(last[g], end_[g]);
    }
    if (step.slot != kNone) std::copy(end_.begin(), end_.end(), &slots_[p][step.slot * width(p)]);
  }

  void launch(std::size_t p, const TapeStep& step) {
    starts(p, step);
    const std::int64_t* time = &tapes_[p].times[step.cost];
    end_.resize(width(p));
    for (std::size_t g = 0; g < width(p); ++g) end_[g] = start_[g] + time[g];
    if (step.kind == TapeStep::Kind::Send) send(p, step);
    record(p, step, nullptr);
    finish(p, step);
  }

  void send(std::size_t p, const TapeStep& step) {
    Call& call = calls_[step.tag];
    post(p, call, end_);
    in_flight_[p].push_back({step.tag, step.wire});
  }

  /// The groups of the program have sent, or started a comm kernel, at `times`.
  void post(std::size_t p, Call& call, const Times& times) const {
    ++call.programs_in;
    // Who was last is only told of recorded runs.
    for (std::size_t g = 0; g < width(p) && !options_.record.empty(); ++g)
      note_post(static_cast<std::int32_t>(begin(p) + g), times[g], call.latest, call.last);
    for (std::size_t g = 0; g < width(p); ++g) call.latest = std::max(call.latest, times[g]);
  }

  bool all_in(const Call& call) const { return call.programs_in == static_cast<int>(tapes_.size()); }

  /// Lets the data of the program's calls arrive in the order they were sent, up to `tag`: the slowest send, then the
  /// wire into each rank when its port is free. False when a call is not yet sent by every program.
  bool deliver(std::size_t p, std::uint32_t tag) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>>& queue = in_flight_[p];
    if (!calls_[tag].arrival.empty() && calls_[tag].arrival[begin(p)] >= 0) return true;
    std::size_t done = 0;
    bool found = false;
    while (!found && done < queue.size()) {
      Call& call = calls_[queue[done].first];
      if (!all_in(call)) break;
      if (call.arrival.empty()) call.arrival.assign(groups_, kUnknown);
      const std::int64_t* wire = &tapes_[p].wires[queue[done].second];
      for (std::size_t g = 0; g < width(p); ++g) {
        std::int64_t& port = port_[begin(p) + g];
        port = std::max(call.latest, port) + wire[g];
        call.arrival[begin(p) + g] = port;
      }
      found = queue[done].first == tag;
      ++done;
    }
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(done));
    return found;
  }

  bool receive(std::size_t p, const TapeStep& step) {
    if (!deliver(p, step.tag)) return false;
    const Call& call = calls_[step.tag];
    starts(p, step);
    const std::int64_t* time = &tapes_[p].times[step.cost];
    end_.resize(width(p));
    for (std::size_t g = 0; g < width(p); ++g) end_[g] = std::max(start_[g], call.arrival[begin(p) + g]) + time[g];
    record(p, step, &call);
    finish(p, step);
    return true;
  }

  bool collective(std::size_t p, const TapeStep& step) {
    Call& call = calls_[step.tag];
    if (call.start.empty()) {
      call.start.assign(groups_, 0);
      call.arrival.assign(groups_, kUnknown);
    }
    if (call.arrival[begin(p)] == kUnknown) {
      starts(p, step);
      std::copy(start_.begin(), start_.end(), &call.start[begin(p)]);
      const std::int64_t* peers = &tapes_[p].peers[step.cost];
      for (std::size_t g = 0; g < width(p); ++g) start_[g] += peers[g];
      post(p, call, start_);
      std::fill_n(&call.arrival[begin(p)], width(p), kStarted);
    }
    if (!all_in(call)) return false;
    const std::int64_t* time = &tapes_[p].times[step.cost];
    start_.assign(&call.start[begin(p)], &call.start[begin(p)] + width(p));
    end_.resize(width(p));
    for (std::size_t g = 0; g < width(p); ++g) end_[g] = call.arrival[begin(p) + g] = call.latest + time[g];
    record(p, step, &call);
    finish(p, step);
    return true;
  }

  void host_wait(std::size_t p, const TapeStep& step) {
    std::int64_t* host = &host_[begin(p)];
    if (step.slot != kNone) {
      const std::int64_t* end = &slots_[p][step.slot * width(p)];
      for (std::size_t g = 0; g < width(p); ++g) host[g] = std::max(host[g], end[g]);
    } else if (step.tag != kNone) {
      const std::int64_t latest = calls_[step.tag].latest;
      const std::int64_t* notify = &tapes_[p].notifies[step.cost];
      for (std::size_t g = 0; g < width(p); ++g) host[g] = std::max(host[g], latest + notify[g]);
    }
  }

  /// Keeps the op's times for the recorded groups of the program.
  void record(std::size_t p, const TapeStep& step, const Call* call) {
    for (const std::size_t r : recorded_[p]) {
      const auto group = static_cast<std::size_t>(options_.record[r]);
      const std::size_t g = group - begin(p);
      OpTimes& times = result_.times[r][step.op];
      times.start = times.ready = start_[g];
      times.end = times.moved = end_[g];
      times.issued = host_[group];
      times.bound = bound(step, group, start_[g]);
      if (call == nullptr) continue;
      times.sent = call->latest;
      times.last = call->last;
      times.arrived = call->arrival[group];
    }
  }

  Bound bound(const TapeStep& step, std::size_t group, std::int64_t start) const {
    const std::int64_t lane = lanes_[step.lane][group];
    if (start == 0) return Bound::Start;
    if (host_[group] == start && start > lane) return Bound::Host;
    return crossed_[step.lane][group] == lane ? Bound::Event : Bound::Lane;
  }

  /// Whether every program stands at its next mark, and all at the same.
  bool at_mark() const {
    if (!looking_) return false;
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      const Tape& tape = tapes_[p];
      if (next_mark_[p] >= tape.marks.size() || tape.marks[next_mark_[p]].step != position_[p]) return false;
    }
    return true;
  }

  RunState state() const {
    RunState state;
    state.mark = static_cast<int>(next_mark_.front());
    state.host_bound = host_bound_;
    state.host_waits = host_waits_;
    state.hosts = host_;
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      const TapeMark& mark = tapes_[p].marks[next_mark_[p]];
      const auto append = [&](const std::int64_t* from) {
        state.times.insert(state.times.end(), from, from + width(p));
      };
      for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        append(&lanes_[lane][begin(p)]);
        state.values.push_back(used_[lane][p]);
        for (const std::size_t r : recorded_[p]) {
          const auto g = static_cast<std::size_t>(options_.record[r]);
          state.values.push_back(crossed_[lane][g] == lanes_[lane][g]);
        }
      }
      append(&port_[begin(p)]);
      for (const std::uint32_t value : mark.live_values) {
        state.values.push_back(static_cast<std::int64_t>(value) - mark.value);
        append(&slots_[p][tapes_[p].slot_of_value[value] * width(p)]);
      }
      const auto number = [&](std::uint32_t tag) {
        return static_cast<std::int64_t>(tag) - static_cast<std::int64_t>(mark.layer) * tags_per_layer_;
      };
      for (const std::uint32_t tag : mark.live_tags) {
        const Call& call = calls_[tag];
        const bool delivered = !call.arrival.empty() && call.arrival[begin(p)] >= 0;
        state.values.insert(state.values.end(), {number(tag), call.programs_in, delivered, call.last});
        state.times.push_back(call.latest);
        if (delivered) append(&call.arrival[begin(p)]);
      }
      for (const auto& [tag, wire] : in_flight_[p]) state.values.insert(state.values.end(), {number(tag), wire});
    }
    state.set_newest();
    return state;
  }

  /// At a mark of all programs. False: the run ends here.
  bool look_for_repeat() {
    RunState now = state();
    result_.mark_ns.push_back(now.latest());
    auto repeat = finder_.add(std::move(now), [&](const Repeat& r) { return whole_cycles(r) > 0; });
    result_.repeat = repeat;
    if (repeat && options_.stop_at_repeat) return false;
    if (repeat) {
      looking_ = false;
      const int cycles = whole_cycles(*repeat);
      skip(*repeat, cycles);
      result_.repeat->skipped = cycles * repeat->iterations;
    }
    for (std::size_t& next : next_mark_) ++next;
    return true;
  }

  /// Cycles that can be stepped over: their instructions repeat, and what is alive behind them is so here too.
  int whole_cycles(const Repeat& repeat) const {
    int cycles = repeated_cycles(tapes_, repeat.mark, repeat.iterations);
    while (cycles > 0 && !alive_alike(tapes_, repeat.mark, repeat.mark + cycles * repeat.iterations, tags_per_layer_))
      --cycles;
    return cycles;
  }

  /// Moves on by whole cycles: every time in the state by the same shift. Times that no longer move lie behind all
  /// others and still do after the shift.
  void skip(const Repeat& repeat, int cycles) {
    const std::int64_t shift = cycles * repeat.cycle_ns;
    Times host_cycle(groups_);
    const RunState& before = finder_.cycle_begin(repeat);
    for (std::size_t g = 0; g < groups_; ++g) host_cycle[g] = host_[g] - before.hosts[g];
    const auto target = static_cast<std::size_t>(repeat.mark + cycles * repeat.iterations);
    move_calls(target, shift);
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      move_values(p, target, shift);
      fill_recorded(p, repeat, target, host_cycle);
    }
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      for (std::int64_t& time : lanes_[lane]) time += shift;
      for (std::int64_t& time : crossed_[lane]) time += shift;
    }
    for (std::int64_t& time : port_) time += shift;
    for (std::size_t g = 0; g < groups_; ++g) host_[g] += cycles * host_cycle[g];
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      next_mark_[p] = target;
      position_[p] = tapes_[p].marks[target].step;
    }
  }

  /// Calls that are under way become those of the target's layers.
  void move_calls(std::size_t target, std::int64_t shift) {
    std::vector<std::uint32_t> under_way;
    std::uint32_t tags = 0;
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      const TapeMark &here = tapes_[p].marks[next_mark_[p]], &there = tapes_[p].marks[target];
      tags = static_cast<std::uint32_t>(there.layer - here.layer) * tags_per_layer_;
      under_way.insert(under_way.end(), here.live_tags.begin(), here.live_tags.end());
      for (auto& [tag, wire] : in_flight_[p]) tag += tags;
    }
    std::sort(under_way.begin(), under_way.end(), std::greater<>());
    under_way.erase(std::unique(under_way.begin(), under_way.end()), under_way.end());
    for (const std::uint32_t tag : under_way) {
      if (tag + tags >= calls_.size()) continue;  // its receive comes before the target's end of the layers
      Call call = calls_[tag];
      call.latest += shift;
      for (std::int64_t& time : call.arrival)
        if (time >= 0) time += shift;
      for (std::int64_t& time : call.start) time += shift;
      calls_[tag + tags] = std::move(call);
    }
  }

  void move_values(std::size_t p, std::size_t target, std::int64_t shift) {
    const Tape& tape = tapes_[p];
    const TapeMark &here = tape.marks[next_mark_[p]], &there = tape.marks[target];
    Times moved(slots_[p].size(), 0);
    for (const std::uint32_t value : there.live_values) {
      const std::uint32_t source = value - (there.value - here.value);
      const std::int64_t* from = &slots_[p][tape.slot_of_value[source] * width(p)];
      std::int64_t* to = &moved[tape.slot_of_value[value] * width(p)];
      for (std::size_t g = 0; g < width(p); ++g) to[g] = from[g] + shift;
    }
    slots_[p] = std::move(moved);
  }

  void fill_recorded(std::size_t p, const Repeat& repeat, std::size_t target, const Times& host_cycle) {
    const Tape& tape = tapes_[p];
    const TapeMark& here = tape.marks[next_mark_[p]];
    const TapeMark& before = tape.marks[static_cast<std::size_t>(repeat.mark - repeat.iterations)];
    if (recorded_[p].empty()) return;
    const Linear& linear = result_.linear.of_program(p);
    std::vector<std::uint32_t> order(linear.ops.size());
    std::iota(order.begin(), order.end(), 0u);
    for (const std::size_t r : recorded_[p])
      fill_skipped(result_.times[r], plan_, linear, {order, here.op, tape.marks[target].op, here.op - before.op},
                   repeat.cycle_ns, host_cycle[static_cast<std::size_t>(options_.record[r])]);
  }

  [[noreturn]] void report_deadlock() const {
    std::string text = "F1: the ranks' orders do not meet:";
    for (std::size_t p = 0; p < tapes_.size(); ++p) {
      const FoldGroup& group = result_.folding.groups[begin(p)];
      text += " rank " + std::to_string(group.first_rank);
      if (position_[p] == tapes_[p].steps.size()) {
        text += " has finished;";
        continue;
      }
      const TapeStep& step = tapes_[p].steps[position_[p]];
      text += " waits for every rank's " + describe(plan_, result_.linear.of_program(p).ops[step.op]) + ";";
    }
    text.back() = '.';
    throw FindingError(text);
  }

  const Plan& plan_;
  const EngineOptions& options_;
  EngineResult result_;
  std::size_t groups_ = 0;
  std::uint32_t tags_per_layer_ = 0;
  std::vector<Tape> tapes_;
  std::vector<Call> calls_;  ///< by tag
  std::int64_t node_gap_ = 0, lane_gap_ = 0, host_bound_ = 0;
  bool host_waits_ = false, looking_ = false;
  // By group: the host's clock, when each lane is free, the last event that held the lane up, when the port is free.
  Times host_, port_;
  std::vector<Times> lanes_, crossed_;
  std::vector<std::vector<char>> used_;  ///< by lane, then program: an op has run there
  std::vector<Times> slots_;             ///< by program: slot, then group
  /// By program: calls sent but not yet delivered, with the offset of their wires.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> in_flight_;
  std::vector<std::uint32_t> position_;
  std::vector<std::size_t> next_mark_;
  std::vector<std::vector<std::size_t>> recorded_;  ///< by program: indices into options_.record
  RepeatFinder finder_;
  Times start_, end_;
};

}  // namespace

EngineResult run_plain(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  return Plain(plan, costs, options).run();
}

}  // namespace dbo
