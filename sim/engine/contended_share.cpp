// SMs and rates of one rank of the contended executor.
#include <algorithm>

#include "sim/engine/contended_run.h"

namespace dbo {

/// Works out every running actor's speed anew; those whose speed changes get a new end.
void ContendedRun::retime(Rank& rank, Actor* actors) {
  rank.changed = false;
  int count = 0;
  for (std::size_t a = 0; a < stride_; ++a) {
    const Actor& actor = actors[a];
    if (actor.state != State::Running) continue;
    Runner& runner = runners_[static_cast<std::size_t>(count)];
    runner.share = actor.share;
    runner.sm_speed = actor.sm_speed;
    const bool lane = a < lanes_;
    // Sends and receives hold SMs whatever moves their data.
    runner.comm = lane ? item(rank, actors, a).moves && (actor.held > 0 || costs_.copies_slow) : costs_.copies_slow;
    runner.compute = lane && !item(rank, actors, a).comm;
    running_[static_cast<std::size_t>(count++)] = a;
  }
  share_out(runners_.data(), count, rank.hbm_taken);
  for (int i = 0; i < count; ++i) {
    const Runner& runner = runners_[static_cast<std::size_t>(i)];
    const std::size_t a = running_[static_cast<std::size_t>(i)];
    Actor& actor = actors[a];
    if (actor.speed != runner.speed) {
      settle(rank, actors, a, rank.now);
      actor.speed = static_cast<std::int32_t>(runner.speed);
      if (actor.speed == kFullSpeed) {
        actor.next = rank.now + ((actor.left + kFullSpeed - 1) >> kSpeedBits);
      } else {
        actor.next = actor.speed == 0 ? kNever : rank.now + ceil_div(actor.left, actor.speed);
      }
    } else if (actor.limit != runner.limit || actor.unshared != runner.unshared || actor.on_sms != runner.sm_speed) {
      settle(rank, actors, a, rank.now);
    }
    actor.on_sms = static_cast<std::int32_t>(runner.sm_speed);
    actor.unshared = static_cast<std::int32_t>(runner.unshared);
    actor.limit = runner.limit;
    if (rank.short_sms > 0 && a < lanes_) set_release(rank, actors, actor);
  }
}

/// Counts the work done since the last time, and for recorded ranks what made it slow.
void ContendedRun::settle(Rank& rank, Actor* actors, std::size_t actor_index, std::int64_t now) {
  Actor& actor = actors[actor_index];
  const std::int64_t passed = now - actor.since;
  actor.since = now;
  if (passed == 0 || actor.speed < 0) return;
  actor.left = std::max<std::int64_t>(actor.left - passed * actor.speed, 0);
  if (rank.record < 0 || actor.speed == kFullSpeed) return;
  Lost& lost = lost_[static_cast<std::size_t>(rank.record) * stride_ + actor_index];
  const auto add = [&](SlowCause cause, std::int64_t from, std::int64_t to) {
    lost[static_cast<std::size_t>(cause)] += passed * (from - to);
  };
  add(SlowCause::Sms, kFullSpeed, actor.on_sms);
  add(SlowCause::Beside, actor.on_sms, actor.unshared);
  switch (actor.limit) {
    case Limit::None:
      break;
    case Limit::Hbm:
      add(SlowCause::Hbm, actor.unshared, actor.speed);
      break;
    case Limit::Link:
      add(SlowCause::Link, actor.unshared, actor.speed);
      break;
    case Limit::Nic:
      add(SlowCause::Nic, actor.unshared, actor.speed);
      break;
  }
}

/// When the running blocks of a compute op end next and make room for a comm kernel: at multiples of its block time.
void ContendedRun::set_release(const Rank& rank, const Actor* actors, Actor& actor) const {
  const auto lane = static_cast<std::size_t>(&actor - actors);
  actor.release = kNever;
  if (actor.held == 0 || item(rank, actors, lane).comm || actor.speed == 0) return;
  const std::int64_t block = actor.share->block_ns << kSpeedBits;
  if (block == 0) {
    actor.release = rank.now;
    return;
  }
  const std::int64_t total = own_time(rank, item(rank, actors, lane).cost) << kSpeedBits;
  const std::int64_t left = actor.left - (rank.now - actor.since) * actor.speed;
  const std::int64_t done = total - std::max<std::int64_t>(left, 0);
  const std::int64_t into = done % block;
  const std::int64_t until = into == 0 && done > 0 ? 0 : block - into;
  actor.release = rank.now + ceil_div(until, actor.speed);
}

void ContendedRun::release(Rank& rank, Actor* actors, std::size_t lane) {
  Actor& actor = actors[lane];
  actor.release = kNever;
  const std::int32_t freed = std::min(actor.held, rank.short_sms);
  actor.held -= freed;
  rank.free_sms += freed;
  actor.sm_speed = static_cast<std::int32_t>(sm_speed(*actor.share, actor.held, machine_));
  rank.changed = true;
  grant(rank, actors);
}

/// The op has ended.
void ContendedRun::give_back(Rank& rank, Actor* actors, std::size_t lane) {
  rank.free_sms += actors[lane].held;
  actors[lane].held = 0;
  actors[lane].sm_speed = kFullSpeed;
  if (rank.hungry) grant(rank, actors);
}

/// SMs that all blocks of an op take: those that are free, one block each, while it finds them so; what its blocks fit
/// on once it waited for others' blocks to leave, since the first SMs that fall free get as many as fit. Blocks that
/// run stay where they are.
std::int32_t ContendedRun::wanted_sms(const Rank& rank, const Actor& actor) {
  const std::int32_t least = actor.share->least_sms;
  if (actor.held > 0) return std::max(actor.held, least);
  const bool waited = actor.ready < rank.now;
  return waited ? least : std::clamp(rank.free_sms, least, actor.share->most_sms);
}

/// Gives an op as many of the free SMs as it can use. False: it cannot start with what there is.
bool ContendedRun::take_sms(Rank& rank, Actor& actor, bool cooperative) {
  const std::int32_t missing = wanted_sms(rank, actor) - actor.held;
  const std::int32_t given = std::min(missing, rank.free_sms);
  if (given == 0 || (cooperative && given < missing)) return actor.held > 0;
  actor.held += given;
  rank.free_sms -= given;
  actor.sm_speed = static_cast<std::int32_t>(sm_speed(*actor.share, actor.held, machine_));
  rank.changed = true;
  return true;
}

/// Shares out free SMs: to comm kernels, which run at high priority, by how long they have waited; then running compute
/// ops grow, then waiting ones start. A cooperative kernel that waits for all of its SMs keeps later ones from taking
/// them.
void ContendedRun::grant(Rank& rank, Actor* actors) {
  std::array<std::size_t, 64> order;
  rank.hungry = false;
  for (const bool comm : {true, false}) {
    std::size_t count = 0;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const Actor& actor = actors[lane];
      const bool holds = actor.state >= State::Sms && actor.state < State::Done;
      if (!holds || actor.share == nullptr || actor.held >= wanted_sms(rank, actor)) continue;
      if (item(rank, actors, lane).comm == comm) order[count++] = lane;
    }
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), [&](std::size_t a, std::size_t b) {
      const bool a_waits = actors[a].state == State::Sms, b_waits = actors[b].state == State::Sms;
      if (!comm && a_waits != b_waits) return b_waits;
      return actors[a].ready != actors[b].ready ? actors[a].ready < actors[b].ready : a < b;
    });
    bool kept = false;
    if (comm) rank.short_sms = 0;
    for (std::size_t i = 0; i < count; ++i) {
      Actor& actor = actors[order[i]];
      const bool waits = actor.state == State::Sms;
      const bool cooperative = actor.share->cooperative;
      const bool runs = !kept && take_sms(rank, actor, cooperative && waits);
      const std::int32_t missing = wanted_sms(rank, actor) - actor.held;
      if (comm) rank.short_sms += missing;
      rank.hungry = rank.hungry || missing > 0;
      if (runs && waits) begin(rank, actors, order[i]);
      kept = kept || (comm && cooperative && waits && !runs);
    }
    if (comm && rank.short_sms > 0) {
      rank.hungry = true;
      return;
    }
  }
}

void ContendedRun::report_usage(const Rank& rank, const Actor* actors, std::int64_t to) const {
  Usage usage;
  usage.group = static_cast<int>(&rank - ranks_.data());
  usage.from = rank.now;
  usage.to = to;
  usage.hbm = rank.hbm_taken;
  for (std::size_t a = 0; a < stride_; ++a) {
    const Actor& actor = actors[a];
    usage.sms += actor.held;
    if (actor.state != State::Running) continue;
    usage.hbm += (actor.share->hbm * static_cast<std::int64_t>(actor.speed)) >> kSpeedBits;
    usage.link += (actor.share->link * static_cast<std::int64_t>(actor.speed)) >> kSpeedBits;
    usage.nic += (actor.share->nic * static_cast<std::int64_t>(actor.speed)) >> kSpeedBits;
  }
  options_.audit(usage);
}

/// Whom the rank waited for in the end: the last to post, or the other end of a flow that ended after that.
std::int32_t ContendedRun::last_peer(const Rank& rank, std::uint32_t tag) const {
  if (flows_ && delivery(tag, index(rank)).last > calls_[tag].latest) return delivery(tag, index(rank)).last_in;
  return calls_[tag].last_in;
}

void ContendedRun::record(const Rank& rank, const Actor& actor, std::size_t lane) {
  const LaneItem& it = programs_[rank.program].lanes[lane][actor.item];
  OpTimes t;
  t.start = actor.start;
  t.end = rank.now;
  t.issued = hosts_of(rank)[it.segment] + it.issued;
  t.ready = actor.ready;
  t.moved = it.kind == TapeStep::Kind::Collective ? actor.moved : rank.now;
  std::int64_t begin = actor.start;
  if (it.kind == TapeStep::Kind::Recv) {
    t.sent = actor.sent;
    t.arrived = actor.arrived;
    t.last = last_peer(rank, it.tag);
    begin = std::max(begin, actor.arrived);
  } else if (it.kind == TapeStep::Kind::Collective) {
    t.sent = begin = actor.sent;
    t.arrived = rank.now;
    t.last = last_peer(rank, it.tag);
  }
  if (t.start == 0) {
    t.bound = Bound::Start;
  } else if (t.start > t.ready) {
    t.bound = Bound::Sms;
  } else if (t.issued == t.start && t.start > actor.front) {
    t.bound = Bound::Host;
  } else {
    t.bound = actor.crossed ? Bound::Event : Bound::Lane;
  }
  // Whole nanoseconds by cause: rounded down, the rest to the largest.
  const Lost& lost = lost_[static_cast<std::size_t>(rank.record) * stride_ + lane];
  std::int64_t rest = t.moved - begin - own_time(rank, it.cost);
  std::size_t largest = 0;
  for (std::size_t c = 0; c < lost.size(); ++c) {
    t.lost[c] = lost[c] >> kSpeedBits;
    rest -= t.lost[c];
    if (lost[c] > lost[largest]) largest = c;
  }
  t.lost[largest] += rest;
  result_.times[static_cast<std::size_t>(rank.record)][it.op] = t;
}

}  // namespace dbo
