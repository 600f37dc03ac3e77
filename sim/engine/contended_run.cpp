#include "sim/engine/contended_run.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/last_post.h"

namespace dbo {

EngineResult ContendedRun::run() {
  for (Rank& rank : ranks_) {
    Actor* actors = actors_of(rank);
    actors[lanes_].state = State::Done;
    actors[lanes_].next = kNever;
    for (std::size_t lane = 0; lane < lanes_; ++lane) feed(rank, actors, lane);
    move_host(rank, actors);
  }
  if (flows_ && !run_flows()) return std::move(result_);
  while (!flows_) {
    bool moved = false, done = true;
    for (Rank& rank : ranks_) {
      if (!rank.done) moved = advance(rank, actors_of(rank)) || moved;
      done = done && rank.done;
    }
    if (done) break;
    if (!fresh_.empty()) {
      if (!resolve_calls()) return std::move(result_);
      continue;
    }
    if (!moved && !lift_horizons()) report_deadlock();
  }
  for (std::size_t r = 0; r < options_.record.size(); ++r) {
    const Rank& rank = ranks_[static_cast<std::size_t>(options_.record[r])];
    fill_arrivals(result_.times[r], plan_, result_.linear.of_program(rank.program));
  }
  return std::move(result_);
}

/// Runs a rank as far as it can go. Returns whether it moved.
bool ContendedRun::advance(Rank& rank, Actor* actors) {
  if (rank.unknown > 0 || host_waits_) resolve(rank, actors);
  bool moved = false;
  for (;;) {
    std::int64_t next = next_time(rank, actors);
    if (rank.changed && next > rank.now) {
      retime(rank, actors);
      next = next_time(rank, actors);
    }
    if (next == kNever || (rank.unknown > 0 && next > rank.horizon)) return moved;
    if (options_.audit && next > rank.now) report_usage(rank, actors, next);
    rank.now = next;
    process(rank, actors, next);
    moved = true;
    if (rank.done) return true;
  }
}

std::int64_t ContendedRun::next_time(const Rank& rank, const Actor* actors) const {
  std::int64_t next = actors[0].next;
  for (std::size_t a = 1; a < stride_; ++a) next = std::min(next, actors[a].next);
  if (rank.short_sms > 0)
    for (std::size_t a = 0; a < lanes_; ++a) next = std::min(next, actors[a].release);
  return next;
}

/// Events of one instant, in order: what the wire brings, ends, blocks leaving, starts of communication, of compute. An
/// event may make another of an earlier sort at the same instant, so only one sort is done at a time.
void ContendedRun::process(Rank& rank, Actor* actors, std::int64_t now) {
  for (;;) {
    if (actors[lanes_].next <= now) {
      wire_event(rank, actors);
      continue;
    }
    bool ended = false, starts = false;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (actors[lane].next > now) continue;
      if (actors[lane].state == State::Pending) {
        starts = true;
      } else {
        end_event(rank, actors, lane);
        ended = true;
      }
    }
    if (ended || (rank.short_sms > 0 && release_due(rank, actors))) continue;
    if (!starts) return;
    if (!start_due(rank, actors, true)) start_due(rank, actors, false);
  }
}

bool ContendedRun::release_due(Rank& rank, Actor* actors) {
  bool any = false;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (actors[lane].release > rank.now) continue;
    release(rank, actors, lane);
    any = true;
  }
  return any;
}

bool ContendedRun::start_due(Rank& rank, Actor* actors, bool comm) {
  bool any = false;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (actors[lane].next > rank.now || actors[lane].state != State::Pending) continue;
    if (item(rank, actors, lane).comm != comm) continue;
    start(rank, actors, lane);
    any = true;
  }
  return any;
}

/// Takes in what the other ranks have decided since this one stopped.
void ContendedRun::resolve(Rank& rank, Actor* actors) {
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    Actor& actor = actors[lane];
    if (actor.next != kNever) continue;
    if (actor.state == State::Peers) {
      const Call& call = calls_[item(rank, actors, lane).tag];
      if (!call.known) continue;
      actor.sent = actor.next = call.latest;
      --rank.unknown;
    } else if (actor.state == State::Finish) {
      const LaneItem& it = item(rank, actors, lane);
      const Call& call = calls_[it.tag];
      if (!call.all_finished) continue;
      // What contention cost the slowest sender, everybody's last data waits for; but nobody waits past its end.
      const std::int64_t late = call.latest + own_time(rank, it.cost) + call.slow;
      actor.next = std::max(actor.moved, std::min(late, call.last));
      --rank.unknown;
    }
  }
  for (Flight& flight : rank.flights) {
    if (flight.known || !calls_[flight.tag].known) continue;
    flight.known = true;
    --rank.unknown;
  }
  queue_wire(rank, actors[lanes_]);
  if (host_waits_) move_host(rank, actors);
}

/// Works through a lane's queue up to the next op.
void ContendedRun::feed(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  const std::vector<LaneItem>& items = programs_[rank.program].lanes[lane];
  actor.state = State::Pending;
  actor.next = kNever;
  for (; actor.item < items.size(); ++actor.item) {
    const LaneItem& it = items[actor.item];
    if (it.kind == TapeStep::Kind::Record) {
      set_value(rank, actors, it.value, actor.front);
    } else if (it.kind == TapeStep::Kind::Wait) {
      const std::int64_t event = values_of(rank)[it.value];
      if (event < 0) {
        actor.state = State::Event;
        return;
      }
      if (event + it.gap <= actor.front) continue;
      actor.front = event + it.gap;
      actor.crossed = true;
    } else {
      if (it.segment > rank.segment) {
        actor.state = State::Host;
        return;
      }
      const std::int64_t issued = hosts_of(rank)[it.segment] + it.issued;
      const std::int64_t free = actor.front + (it.first ? 0 : node_gap_);
      host_bound_ += issued > free ? 1 : 0;
      actor.next = std::max(free, issued);
      return;
    }
  }
  actor.state = State::Done;
  rank.done = true;
  for (std::size_t other = 0; other < lanes_; ++other) rank.done = rank.done && actors[other].state == State::Done;
}

/// An event has happened or an op ended: lanes and the host that waited for it go on.
void ContendedRun::set_value(Rank& rank, Actor* actors, std::uint32_t value, std::int64_t time) {
  values_of(rank)[value] = time;
  for (std::size_t lane = 0; lane < lanes_; ++lane)
    if (actors[lane].state == State::Event && item(rank, actors, lane).value == value) feed(rank, actors, lane);
  if (host_waits_) move_host(rank, actors);
}

void ContendedRun::move_host(Rank& rank, Actor* actors) {
  const std::vector<HostPoint>& points = programs_[rank.program].points;
  std::int64_t* hosts = hosts_of(rank);
  bool moved = false;
  while (rank.segment < points.size()) {
    const HostPoint& point = points[rank.segment];
    std::int64_t until = 0;
    if (point.value != kNone) {
      until = values_of(rank)[point.value];
      if (until < 0) break;
    } else if (point.tag != kNone) {
      const Call& call = calls_[point.tag];
      if (!call.known) break;
      until = call.latest + tapes_[rank.program].notifies[point.cost + rank.place];
    }
    hosts[rank.segment + 1] = std::max(hosts[rank.segment] + point.before, until);
    ++rank.segment;
    moved = true;
  }
  if (!moved) return;
  for (std::size_t lane = 0; lane < lanes_; ++lane)
    if (actors[lane].state == State::Host) feed(rank, actors, lane);
}

/// The op at the head of the lane may start: it does when it gets its SMs.
void ContendedRun::start(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  const LaneItem& it = item(rank, actors, lane);
  actor.ready = rank.now;
  actor.share = &programs_[rank.program].shares[it.cost + rank.place];
  const std::int32_t wanted = actor.share->most_sms;
  if (wanted == 0) return begin(rank, actors, lane);
  if (rank.free_sms < wanted || rank.hungry) {
    actor.state = State::Sms;
    actor.next = kNever;
    rank.changed = true;
    return grant(rank, actors);
  }
  rank.free_sms -= wanted;
  actor.held = wanted;
  actor.sm_speed = static_cast<std::int32_t>(sm_speed(*actor.share, wanted, machine_));
  begin(rank, actors, lane);
}

void ContendedRun::begin(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  const LaneItem& it = item(rank, actors, lane);
  actor.start = rank.now;
  rank.changed = true;
  switch (it.kind) {
    case TapeStep::Kind::Collective:
      actor.state = State::Peers;
      actor.next = kNever;
      if (flows_) return begin_collective(rank, actor, it);
      post(rank, it.tag, rank.now + tapes_[rank.program].peers[it.cost + rank.place]);
      return post_unknown(rank);
    case TapeStep::Kind::Recv:
      if (flows_) {
        actor.state = State::Data;
        actor.next = delivered(rank, it.tag) ? std::max(rank.now, data_there(rank, it)) : kNever;
        return;
      }
      for (std::size_t f = 0; f < rank.head; ++f) {
        if (rank.flights[f].tag != it.tag) continue;
        actor.sent = calls_[it.tag].latest;
        actor.arrived = rank.flights[f].arrival;
        take_flight(rank, f);
        return begin_work(rank, actor, own_time(rank, it.cost));
      }
      actor.state = State::Data;
      actor.next = kNever;
      return;
    case TapeStep::Kind::Send: {
      const std::int64_t after = tapes_[rank.program].data_after[it.cost + rank.place];
      if (flows_ && after < own_time(rank, it.cost)) schedule_flows(rank, it.tag, rank.now + after);
      return begin_work(rank, actor, own_time(rank, it.cost));
    }
    default:
      return begin_work(rank, actor, own_time(rank, it.cost));
  }
}

void ContendedRun::begin_work(Rank& rank, Actor& actor, std::int64_t time) {
  actor.state = State::Running;
  actor.left = time << kSpeedBits;
  actor.since = rank.now;
  actor.speed = -1;
  actor.next = time == 0 ? rank.now : kNever;
  rank.changed = true;
  if (rank.record >= 0)
    lost_[static_cast<std::size_t>(rank.record) * stride_ + static_cast<std::size_t>(&actor - actors_of(rank))] = {};
}

/// A comm kernel's peers are all there, an op's own work is done, or a comm kernel's slowest peer is.
void ContendedRun::end_event(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  if (actor.state == State::Peers) return begin_work(rank, actor, own_time(rank, item(rank, actors, lane).cost));
  if (actor.state == State::Data) {
    take_data(rank, actor, item(rank, actors, lane));
    return begin_work(rank, actor, own_time(rank, item(rank, actors, lane).cost));
  }
  if (actor.state == State::Running) {
    settle(rank, actors, lane, rank.now);
    actor.moved = rank.now;
    const LaneItem& it = item(rank, actors, lane);
    if (it.kind == TapeStep::Kind::Collective && flows_) {
      actor.state = State::Finish;
      actor.next = delivered(rank, it.tag) ? std::max(rank.now, data_there(rank, it)) : kNever;
      rank.changed = true;
      return;
    }
    if (it.kind == TapeStep::Kind::Collective && ranks_.size() > 1) {
      Call& call = calls_[it.tag];
      call.last = std::max(call.last, rank.now);
      call.slow = std::max(call.slow, rank.now - actor.sent - own_time(rank, it.cost));
      if (++call.finished == ranks_.size()) fresh_.push_back(it.tag);
      actor.state = State::Finish;
      actor.next = kNever;
      rank.changed = true;
      return post_unknown(rank);
    }
  }
  complete(rank, actors, lane);
}

void ContendedRun::complete(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  const LaneItem& it = item(rank, actors, lane);
  if (rank.record >= 0) record(rank, actor, lane);
  actor.crossed = actor.crossed && actor.front == rank.now;  // an op of no length hides nothing
  actor.front = rank.now;
  actor.state = State::Pending;
  actor.next = actor.release = kNever;
  rank.changed = true;
  std::int64_t& last = result_.step_ns[static_cast<std::size_t>(&rank - ranks_.data())];
  last = std::max(last, rank.now);
  if (actor.held > 0) give_back(rank, actors, lane);
  if (it.kind == TapeStep::Kind::Send) {
    post(rank, it.tag, rank.now);
    if (flows_) {
      if (tapes_[rank.program].data_after[it.cost + rank.place] >= own_time(rank, it.cost))
        schedule_flows(rank, it.tag, rank.now);
    } else {
      rank.flights.push_back({it.tag, it.wire, false, -1});
      post_unknown(rank);
    }
  } else if (flows_ && it.kind == TapeStep::Kind::Collective) {
    consume(it.tag);
  }
  ++actor.item;
  if (it.value != kNone) set_value(rank, actors, it.value, rank.now);
  feed(rank, actors, lane);
}

/// The wire starts on the next call, or brings the last byte of one.
void ContendedRun::wire_event(Rank& rank, Actor* actors) {
  Actor& wire = actors[lanes_];
  rank.changed = true;
  Flight& flight = rank.flights[rank.head];
  if (wire.state == State::Pending) {
    wire.share = &programs_[rank.program].wire_shares[flight.wire + rank.place];
    return begin_work(rank, wire, tapes_[rank.program].wires[flight.wire + rank.place]);
  }
  flight.arrival = rank.port_free = rank.now;
  const std::uint32_t tag = flight.tag;
  ++rank.head;
  wire.state = State::Done;
  wire.next = kNever;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    Actor& actor = actors[lane];
    if (actor.state != State::Data || item(rank, actors, lane).tag != tag) continue;
    actor.sent = calls_[tag].latest;
    actor.arrived = rank.now;
    take_flight(rank, rank.head - 1);
    begin_work(rank, actor, own_time(rank, item(rank, actors, lane).cost));
    break;
  }
  queue_wire(rank, wire);
}

/// One port carries one call after the other, in the order they were sent.
void ContendedRun::queue_wire(Rank& rank, Actor& wire) {
  if (wire.state != State::Done || rank.head == rank.flights.size() || !rank.flights[rank.head].known) return;
  wire.state = State::Pending;
  wire.next = std::max(calls_[rank.flights[rank.head].tag].latest, rank.port_free);
}

void ContendedRun::take_flight(Rank& rank, std::size_t flight) {
  rank.flights.erase(rank.flights.begin() + static_cast<std::ptrdiff_t>(flight));
  --rank.head;
}

/// The rank has sent, or started a comm kernel.
void ContendedRun::post(Rank& rank, std::uint32_t tag, std::int64_t time) {
  Call& call = calls_[tag];
  note_post(static_cast<std::int32_t>(index(rank)), time, call.latest, call.last_in);
  if (++call.posted == ranks_.size()) fresh_.push_back(tag);
}

void ContendedRun::post_unknown(Rank& rank) {
  if (rank.unknown++ == 0) rank.horizon = rank.now;
}

/// Between rounds: what all ranks have posted is known to all. False: the run ends here.
bool ContendedRun::resolve_calls() {
  int mark = -1;
  for (const std::uint32_t tag : fresh_) {
    Call& call = calls_[tag];
    if (!call.known) mark = std::max(mark, mark_of_tag_[tag]);
    call.known = true;
    call.all_finished = call.finished == ranks_.size();
  }
  fresh_.clear();
  return mark < 0 || !looking_ || look_for_repeat(mark);
}

/// Nobody can move, and no call is complete: ranks post their calls in different orders. Nothing can happen before the
/// earliest next event of any rank, so that one may.
bool ContendedRun::lift_horizons() {
  std::int64_t earliest = kNever;
  for (const Rank& rank : ranks_)
    if (!rank.done) earliest = std::min(earliest, next_time(rank, actors_of(rank)));
  if (earliest == kNever) return false;
  for (Rank& rank : ranks_) rank.horizon = std::max(rank.horizon, earliest);
  return true;
}

void ContendedRun::report_deadlock() const {
  std::string text = "F1: the ranks' orders do not meet:";
  for (std::size_t p = 0; p < programs_.size(); ++p) {
    const auto group = static_cast<std::size_t>(result_.folding.of_program[p].first);
    const Rank& rank = ranks_[group];
    text += " rank " + std::to_string(result_.folding.groups[group].first_rank);
    if (rank.done) {
      text += " has finished;";
      continue;
    }
    const Actor* actors = actors_of(rank);
    // The lane that waits for others; lanes behind it wait for it.
    std::size_t stuck = lanes_;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const State state = actors[lane].state;
      const bool waits = state == State::Peers || state == State::Data || state == State::Finish || state == State::Sms;
      if (waits && stuck == lanes_) stuck = lane;
    }
    if (stuck == lanes_) {
      text += " waits for itself;";
      continue;
    }
    text += actors[stuck].state == State::Sms ? " waits for SMs for " : " waits for every rank's ";
    text += describe(plan_, result_.linear.of_program(p).ops[item(rank, actors, stuck).op]) + ";";
  }
  text.back() = '.';
  throw FindingError(text);
}

}  // namespace dbo
