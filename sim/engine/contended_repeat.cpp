// Stepping over cycles of layers in the contended executor. The state is taken between rounds, when the first call of
// an iteration is known to all: every rank then stands where it must wait, and what happens next follows from the state
// and the instructions ahead alone.
#include <algorithm>
#include <functional>

#include "sim/engine/contended_run.h"

namespace dbo {
namespace {

/// The iteration a step belongs to: marks passed, less one.
int iteration_of(const Tape& tape, std::uint32_t step) {
  const auto after = std::upper_bound(tape.marks.begin(), tape.marks.end(), step,
                                      [](std::uint32_t s, const TapeMark& mark) { return s < mark.step; });
  return static_cast<int>(after - tape.marks.begin()) - 1;
}

std::size_t count_ops(const std::vector<LaneItem>& lane, std::uint32_t items) {
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < items; ++i) count += lane[i].op != kNone ? 1 : 0;
  return count;
}

}  // namespace

void ContendedRun::append_rank(const Rank& rank, const Actor* actors, int mark, RunState& state,
                               std::vector<std::uint32_t>& tags, Reach& reach) const {
  const LaneProgram& program = programs_[rank.program];
  const Tape& tape = tapes_[rank.program];
  const LaneMark& base = program.marks[static_cast<std::size_t>(mark)];
  const TapeMark& tape_mark = tape.marks[static_cast<std::size_t>(mark)];
  const auto value = [&](auto... numbers) { (state.values.push_back(static_cast<std::int64_t>(numbers)), ...); };
  const auto time = [&](std::int64_t t) { state.times.push_back(t); };
  const auto tag_number = [&](std::uint32_t tag) {
    return static_cast<std::int64_t>(tag) - static_cast<std::int64_t>(tape_mark.layer) * tags_per_layer_;
  };
  std::uint32_t furthest = 0;
  const std::int64_t* hosts = hosts_of(rank);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const Actor& actor = actors[lane];
    value(actor.state, static_cast<std::int64_t>(actor.item) - base.items[lane], actor.held, actor.sm_speed);
    if (actor.state == State::Done) {
      // A lane without work in the layers does not matter; one that has done all of it is as far ahead as that.
      if (!program.lanes[lane].empty())
        reach.ahead = std::max(reach.ahead, iteration_of(tape, program.lanes[lane].back().step) - mark);
      continue;
    }
    const LaneItem& it = program.lanes[lane][actor.item];
    furthest = std::max(furthest, it.step);
    const int ahead = iteration_of(tape, it.step) - mark;
    reach.ahead = std::max(reach.ahead, ahead);
    reach.behind = std::max(reach.behind, -ahead);
    value(actor.crossed, actor.next == kNever, actor.release == kNever);
    time(actor.front);
    if (actor.next != kNever) time(actor.next);
    if (actor.release != kNever) time(actor.release);
    if (host_waits_ && it.segment <= rank.segment) time(hosts[it.segment]);
    if (actor.state < State::Sms) continue;
    time(actor.ready);
    if (actor.state > State::Sms) time(actor.start);
    if (it.tag != kNone) tags.push_back(it.tag);
    if (actor.state == State::Running) {
      value(actor.left, actor.speed, actor.on_sms, actor.unshared, actor.limit);
      time(actor.since);
      if (rank.record >= 0)
        for (const std::int64_t lost : lost_[static_cast<std::size_t>(rank.record) * stride_ + lane]) value(lost);
    }
    const bool exchange = it.kind == TapeStep::Kind::Recv || it.kind == TapeStep::Kind::Collective;
    if (exchange && actor.state == State::Running) time(actor.sent);
    if (it.kind == TapeStep::Kind::Recv && actor.state == State::Running) time(actor.arrived);
    if (actor.state == State::Finish) {
      time(actor.moved);
      time(actor.sent);
    }
  }
  const Actor& wire = actors[lanes_];
  value(wire.state, rank.head, rank.flights.size(), rank.unknown, rank.free_sms, rank.short_sms, rank.hbm_taken,
        rank.changed);
  time(rank.now);
  time(rank.port_free);
  if (rank.unknown > 0) time(rank.horizon);
  if (wire.state != State::Done && wire.next != kNever) time(wire.next);
  if (wire.state == State::Running) {
    value(wire.left, wire.speed, wire.unshared, wire.limit);
    time(wire.since);
  }
  for (const Flight& flight : rank.flights) {
    value(tag_number(flight.tag), flight.wire, flight.known);
    if (flight.arrival >= 0) time(flight.arrival);
    tags.push_back(flight.tag);
  }
  // Events that have happened and that somebody has yet to wait for.
  const std::int64_t* values = values_of(rank);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const std::vector<LaneItem>& items = program.lanes[lane];
    for (std::size_t i = actors[lane].item; i < items.size() && items[i].step <= furthest + program.span; ++i) {
      if (items[i].kind != TapeStep::Kind::Wait || values[items[i].value] < 0) continue;
      value(static_cast<std::int64_t>(items[i].value) - tape_mark.value);
      time(values[items[i].value]);
    }
  }
  value(static_cast<std::int64_t>(rank.segment) - base.segment);
  if (!host_waits_) return;
  time(hosts[rank.segment]);
  for (std::size_t s = rank.segment; s < program.points.size(); ++s) {
    const HostPoint& point = program.points[s];
    if (point.step > furthest + program.span) break;
    if (point.value != kNone && values[point.value] >= 0) {
      value(static_cast<std::int64_t>(point.value) - tape_mark.value);
      time(values[point.value]);
    }
    if (point.tag != kNone && calls_[point.tag].posted > 0) tags.push_back(point.tag);
  }
}

/// The flows on their way, and the calls they belong to.
void ContendedRun::append_flows(int mark, RunState& state, std::vector<std::uint32_t>& tags) const {
  const std::int64_t first_tag =
      std::int64_t{tapes_.front().marks[static_cast<std::size_t>(mark)].layer} * tags_per_layer_;
  network_.append_state(first_tag, state.values, state.times);
  for (const FlowStart& start : starts_) {
    state.values.insert(state.values.end(), {static_cast<std::int64_t>(start.tag) - first_tag, start.group});
    state.times.push_back(start.at);
  }
  tags.insert(tags.end(), under_way_.begin(), under_way_.end());
}

RunState ContendedRun::state_at(int mark, Reach& reach, std::vector<std::uint32_t>& tags) {
  RunState state;
  state.times.reserve(state_size_.first);
  state.values.reserve(state_size_.second);
  state.mark = mark;
  state.host_bound = host_bound_;
  state.host_waits = host_waits_;
  if (!host_waits_)
    for (const LaneProgram& program : programs_)
      state.hosts.push_back(program.marks[static_cast<std::size_t>(mark)].host);
  for (const Rank& rank : ranks_) append_rank(rank, actors_of(rank), mark, state, tags, reach);
  if (flows_) append_flows(mark, state, tags);
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  const std::int64_t layer = tapes_.front().marks[static_cast<std::size_t>(mark)].layer;
  for (const std::uint32_t tag : tags) {
    const Call& call = calls_[tag];
    for (const std::int64_t number :
         {static_cast<std::int64_t>(tag) - layer * tags_per_layer_, static_cast<std::int64_t>(call.posted),
          static_cast<std::int64_t>(call.finished), static_cast<std::int64_t>(call.known),
          static_cast<std::int64_t>(call.all_finished), call.slow, static_cast<std::int64_t>(call.last_in),
          static_cast<std::int64_t>(call.received)})
      state.values.push_back(number);
    for (std::size_t r = 0; flows_ && r < ranks_.size(); ++r) {
      const Delivery& d = delivery(tag, r);
      state.values.insert(state.values.end(),
                          {static_cast<std::int64_t>(d.open), static_cast<std::int64_t>(d.last_in)});
      if (d.last_in >= 0) state.times.push_back(d.last);
    }
    if (call.posted > 0) state.times.push_back(call.latest);
    if (call.finished > 0) state.times.push_back(call.last);
  }
  state.set_newest();
  state_size_ = {state.times.size(), state.values.size()};
  return state;
}

/// Cycles that can be stepped over: the instructions repeat as far as any lane has come and from as far back as any
/// stands.
int ContendedRun::whole_cycles(const Repeat& repeat) const {
  const auto reach_at = [&](int mark) -> const Reach& {
    return *std::find_if(reaches_.begin(), reaches_.end(), [&](const Reach& r) { return r.mark == mark; });
  };
  const int first = repeat.mark - repeat.iterations;
  const Reach &before = reach_at(first), &now = reach_at(repeat.mark);
  const int behind = std::max(before.behind, now.behind), ahead = std::max(before.ahead, now.ahead);
  if (first - behind < 0) return 0;
  for (const Tape& tape : tapes_)
    for (int m = repeat.mark - behind; m < repeat.mark; ++m)
      if (tape.marks[static_cast<std::size_t>(m)].content !=
          tape.marks[static_cast<std::size_t>(m - repeat.iterations)].content)
        return 0;
  const int regular = repeated_cycles(tapes_, repeat.mark, repeat.iterations) * repeat.iterations;
  int cycles = std::max(0, (regular - ahead - 1) / repeat.iterations);
  while (cycles > 0 && !alive_alike(tapes_, repeat.mark, repeat.mark + cycles * repeat.iterations, tags_per_layer_))
    --cycles;
  return cycles;
}

bool ContendedRun::look_for_repeat(int mark) {
  for (const LaneProgram& program : programs_)
    if (static_cast<std::size_t>(mark) >= program.marks.size()) {
      looking_ = false;
      return true;
    }
  Reach reach;
  reach.mark = mark;
  std::vector<std::uint32_t> tags;
  RunState now = state_at(mark, reach, tags);
  // Ranks ahead of the last one may lose their lead for long; the pace is the last one's.
  result_.mark_ns.push_back(flows_ ? clock_ : now.latest());
  reaches_.push_back(reach);
  result_.repeat = finder_.add(std::move(now), [&](const Repeat& r) { return whole_cycles(r) > 0; });
  if (!result_.repeat) return true;
  if (options_.stop_at_repeat) return false;
  const int cycles = whole_cycles(*result_.repeat);
  skip(*result_.repeat, cycles, tags);
  result_.repeat->skipped = cycles * result_.repeat->iterations;
  looking_ = false;
  return true;
}

/// Moves every rank on by whole cycles: positions by the instructions in between, times by the same shift.
void ContendedRun::skip(const Repeat& repeat, int cycles, std::vector<std::uint32_t> tags) {
  const int from = repeat.mark, to = from + cycles * repeat.iterations;
  const std::int64_t shift = cycles * repeat.cycle_ns;
  for (Rank& rank : ranks_) {
    if (rank.record >= 0) fill_recorded(rank, repeat, cycles);
    skip_rank(rank, actors_of(rank), from, to, shift);
  }
  const TapeMark &here = tapes_.front().marks[static_cast<std::size_t>(from)],
                 &there = tapes_.front().marks[static_cast<std::size_t>(to)];
  const auto moved = static_cast<std::uint32_t>(there.layer - here.layer) * tags_per_layer_;
  std::sort(tags.begin(), tags.end(), std::greater<>());
  for (const std::uint32_t tag : tags) {
    Call call = calls_[tag];
    if (call.posted > 0) call.latest += shift;
    if (call.finished > 0) call.last += shift;
    calls_[tag + moved] = call;
    for (std::size_t r = 0; flows_ && r < ranks_.size(); ++r) {
      Delivery d = delivery(tag, r);
      if (d.last_in >= 0) d.last += shift;
      delivery(tag + moved, r) = d;
    }
  }
  if (flows_) skip_flows(shift, moved);
}

void ContendedRun::skip_flows(std::int64_t shift, std::uint32_t tags) {
  clock_ += shift;
  network_.shift(shift, tags);
  for (FlowStart& start : starts_) {
    start.at += shift;
    start.tag += tags;
  }
  for (std::uint32_t& tag : under_way_) tag += tags;
}

void ContendedRun::skip_rank(Rank& rank, Actor* actors, int from, int to, std::int64_t shift) {
  const LaneProgram& program = programs_[rank.program];
  const LaneMark &here = program.marks[static_cast<std::size_t>(from)],
                 &there = program.marks[static_cast<std::size_t>(to)];
  const TapeMark &tape_here = tapes_[rank.program].marks[static_cast<std::size_t>(from)],
                 &tape_there = tapes_[rank.program].marks[static_cast<std::size_t>(to)];
  for (std::size_t a = 0; a < stride_; ++a) {
    Actor& actor = actors[a];
    if (a < lanes_) actor.item += there.items[a] - here.items[a];
    for (std::int64_t Actor::*field : {&Actor::next, &Actor::since, &Actor::front, &Actor::ready, &Actor::start,
                                       &Actor::moved, &Actor::release, &Actor::sent, &Actor::arrived})
      if (actor.*field != kNever) actor.*field += shift;
  }
  rank.now += shift;
  rank.horizon += shift;
  rank.port_free += shift;
  const auto tags = static_cast<std::uint32_t>(tape_there.layer - tape_here.layer) * tags_per_layer_;
  for (Flight& flight : rank.flights) {
    flight.tag += tags;
    if (flight.arrival >= 0) flight.arrival += shift;
  }
  const auto move = [&](std::int64_t* times, std::size_t count, std::size_t by) {
    for (std::size_t i = count; i-- > by;) times[i] = times[i - by] < 0 ? -1 : times[i - by] + shift;
  };
  move(values_of(rank), most_values_, tape_there.value - tape_here.value);
  if (host_waits_) move(hosts_of(rank), most_points_, there.segment - here.segment);
  rank.segment += there.segment - here.segment;
}

void ContendedRun::fill_recorded(const Rank& rank, const Repeat& repeat, int cycles) {
  const LaneProgram& program = programs_[rank.program];
  const Actor* actors = actors_of(rank);
  const LaneMark &before = program.marks[static_cast<std::size_t>(repeat.mark - repeat.iterations)],
                 &now = program.marks[static_cast<std::size_t>(repeat.mark)];
  const std::int64_t host_shift = host_waits_ ? repeat.cycle_ns : now.host - before.host;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const std::vector<LaneItem>& items = program.lanes[lane];
    const std::size_t first = count_ops(items, actors[lane].item);
    const std::size_t cycle = count_ops(items, now.items[lane]) - count_ops(items, before.items[lane]);
    fill_skipped(result_.times[static_cast<std::size_t>(rank.record)], plan_, result_.linear.of_program(rank.program),
                 {program.ops[lane], first, first + cycle * static_cast<std::size_t>(cycles), cycle}, repeat.cycle_ns,
                 host_shift);
  }
}

}  // namespace dbo
