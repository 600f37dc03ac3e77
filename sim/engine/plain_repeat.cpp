// Stepping over cycles of layers in the plain executor, at marks that all programs have come to.
#include <algorithm>
#include <functional>
#include <numeric>

#include "sim/engine/plain_run.h"

namespace dbo {

/// Whether every program stands at its next mark, and all at the same.
bool PlainRun::at_mark() const {
  if (!looking_) return false;
  for (std::size_t p = 0; p < tapes_.size(); ++p) {
    const Tape& tape = tapes_[p];
    if (next_mark_[p] >= tape.marks.size() || tape.marks[next_mark_[p]].step != position_[p]) return false;
  }
  return true;
}

RunState PlainRun::state() const {
  RunState state;
  state.mark = static_cast<int>(next_mark_.front());
  state.host_bound = host_bound_;
  state.host_waits = host_waits_;
  state.hosts = host_;
  for (std::size_t p = 0; p < tapes_.size(); ++p) {
    const TapeMark& mark = tapes_[p].marks[next_mark_[p]];
    const auto append = [&](const std::int64_t* from) { state.times.insert(state.times.end(), from, from + width(p)); };
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
bool PlainRun::look_for_repeat() {
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
int PlainRun::whole_cycles(const Repeat& repeat) const {
  int cycles = repeated_cycles(tapes_, repeat.mark, repeat.iterations);
  while (cycles > 0 && !alive_alike(tapes_, repeat.mark, repeat.mark + cycles * repeat.iterations, tags_per_layer_))
    --cycles;
  return cycles;
}

/// Moves on by whole cycles: every time in the state by the same shift. Times that no longer move lie behind all
/// others and still do after the shift.
void PlainRun::skip(const Repeat& repeat, int cycles) {
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
void PlainRun::move_calls(std::size_t target, std::int64_t shift) {
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

void PlainRun::move_values(std::size_t p, std::size_t target, std::int64_t shift) {
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

void PlainRun::fill_recorded(std::size_t p, const Repeat& repeat, std::size_t target, const Times& host_cycle) {
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

}  // namespace dbo
