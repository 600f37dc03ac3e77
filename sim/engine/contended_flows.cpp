// Pairwise flows in the contended executor: all ranks go from instant to instant together, as any of them may begin
// flows that slow down those of others at any time.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/contended_run.h"

namespace dbo {

void ContendedRun::set_up_flows(const CostTable& costs) {
  flows_ = true;
  DBO_CHECK(static_cast<int>(ranks_.size()) == costs.groups(),
            "with pairwise flows every cost group is simulated apart");
  rank_of_cost_.resize(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    rank_of_cost_[static_cast<std::size_t>(result_.folding.groups[r].cost_group)] = r;
  deliveries_.resize(calls_.size() * ranks_.size());
  exchange_of_tag_.assign(calls_.size(), 0);
  collective_.assign(calls_.size(), 0);
  for (std::size_t p = 0; p < tapes_.size(); ++p)
    for (const TapeStep& step : tapes_[p].steps) {
      if (step.kind != TapeStep::Kind::Send && step.kind != TapeStep::Kind::Collective) continue;
      const LinearOp& op = result_.linear.of_program(p).ops[step.op];
      const bool dispatch = is_dispatch(plan_.ops[op.op].kind);
      const int call = (costs.layer_class(op.layer) * costs.ubatches() + op.ubatch) * 2 + (dispatch ? 1 : 0);
      collective_[step.tag] = step.kind == TapeStep::Kind::Collective;
      exchange_of_tag_[step.tag] = costs.flows.of_call[static_cast<std::size_t>(call)];
    }
}

std::int64_t ContendedRun::next_instant() const {
  std::int64_t next = network_.next();
  if (!starts_.empty()) next = std::min(next, starts_.front().at);
  for (const Rank& rank : ranks_) next = std::min(next, next_time(rank, actors_of(rank)));
  return next;
}

/// False: the run ends here.
bool ContendedRun::run_flows() {
  for (;;) {
    if (network_.share(clock_)) take_memory();
    for (Rank& rank : ranks_) {
      if (!rank.changed) continue;
      rank.now = clock_;
      retime(rank, actors_of(rank));
    }
    const std::int64_t next = next_instant();
    if (next == kNever) break;
    if (next > clock_) report_interval(next);
    clock_ = std::max(clock_, next);
    end_flows();
    begin_flows();
    for (Rank& rank : ranks_) {
      if (next_time(rank, actors_of(rank)) > clock_) continue;
      rank.now = clock_;
      process(rank, actors_of(rank), clock_);
    }
    if (!fresh_.empty() && !know_calls()) return false;
  }
  for (const Rank& rank : ranks_)
    if (!rank.done) report_deadlock();
  return true;
}

/// What the open flows read and write of each rank's memory: at most half of it, so that ops get on.
void ContendedRun::take_memory() {
  if (machine_.hbm_bytes_per_s == 0) return;
  memory_.assign(ranks_.size(), 0);
  network_.for_each([&](const PairFlow& flow, std::int64_t rate) {
    for (const std::int32_t group : {flow.from, flow.to})
      memory_[rank_of_cost_[static_cast<std::size_t>(group)]] += (rate * flow.hbm) >> 32;
  });
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto taken = static_cast<std::int32_t>(std::min(memory_[r], kFullSpeed / 2));
    ranks_[r].changed = ranks_[r].changed || taken != ranks_[r].hbm_taken;
    ranks_[r].hbm_taken = taken;
  }
}

void ContendedRun::report_interval(std::int64_t to) {
  if (options_.audit)
    for (Rank& rank : ranks_) {
      rank.now = clock_;
      report_usage(rank, actors_of(rank), to);
    }
  if (options_.audit_ports) report_ports(clock_, to);
}

void ContendedRun::report_ports(std::int64_t from, std::int64_t to) const {
  const std::vector<std::int64_t>& ports = costs_.flows.ports;
  std::vector<std::int64_t> used(ports.size(), 0);
  for (const auto& [flow, rate] : network_.rates())
    for (const std::int32_t port : {flow.out, flow.in}) used[static_cast<std::size_t>(port)] += rate;
  for (std::size_t p = 0; p < ports.size(); ++p)
    if (used[p] > 0) options_.audit_ports({static_cast<std::int32_t>(p), from, to, used[p], ports[p]});
}

/// Counts what every rank waits for when the call's first rank comes to it.
void ContendedRun::join_call(std::uint32_t tag) {
  const auto at = std::lower_bound(under_way_.begin(), under_way_.end(), tag);
  if (at != under_way_.end() && *at == tag) return;
  under_way_.insert(at, tag);
  for (const PairFlow& flow : flows_of(tag)) {
    ++delivery(tag, rank_of_cost_[static_cast<std::size_t>(flow.to)]).open;
    if (collective_[tag] && flow.from != flow.to)
      ++delivery(tag, rank_of_cost_[static_cast<std::size_t>(flow.from)]).open;
  }
}

void ContendedRun::schedule_flows(const Rank& rank, std::uint32_t tag, std::int64_t at) {
  join_call(tag);
  const auto place = std::upper_bound(starts_.begin(), starts_.end(), at,
                                      [](std::int64_t time, const FlowStart& start) { return time < start.at; });
  starts_.insert(place, {at, tag, result_.folding.groups[index(rank)].cost_group});
}

void ContendedRun::begin_flows() {
  std::size_t due = 0;
  for (; due < starts_.size() && starts_[due].at <= clock_; ++due) {
    const FlowStart& start = starts_[due];
    const std::vector<PairFlow>& flows = flows_of(start.tag);
    auto flow = std::lower_bound(flows.begin(), flows.end(), start.group,
                                 [](const PairFlow& f, std::int32_t group) { return f.from < group; });
    for (; flow != flows.end() && flow->from == start.group; ++flow) {
      PairFlow begun = *flow;
      if (collective_[start.tag]) begun.hbm = 0;  // its kernels ask for what its data takes
      network_.begin(start.tag, begun, clock_);
    }
  }
  starts_.erase(starts_.begin(), starts_.begin() + static_cast<std::ptrdiff_t>(due));
}

void ContendedRun::end_flows() {
  ended_.clear();
  network_.advance(clock_, ended_);
  for (const FlowNetwork::Ended& flow : ended_) {
    const std::size_t from = rank_of_cost_[static_cast<std::size_t>(flow.from)],
                      to = rank_of_cost_[static_cast<std::size_t>(flow.to)];
    const auto end = [&](std::size_t rank, std::size_t other) {
      Delivery& d = delivery(flow.tag, rank);
      const auto peer = static_cast<std::int32_t>(other);
      if (clock_ > d.last || d.last_in < 0 || peer < d.last_in) d.last_in = peer;
      d.last = clock_;
      if (--d.open == 0 && delivered(ranks_[rank], flow.tag)) wake(ranks_[rank], flow.tag);
    };
    end(to, from);
    if (collective_[flow.tag] && from != to) end(from, to);
  }
}

/// A comm kernel starts: its data moves at once, or when all have started.
void ContendedRun::begin_collective(Rank& rank, Actor& actor, const LaneItem& it) {
  join_call(it.tag);
  const std::int64_t ready = rank.now + tapes_[rank.program].peers[it.cost + rank.place];
  post(rank, it.tag, ready);
  if (costs_.flows.meet) {
    if (calls_[it.tag].posted == ranks_.size()) meet(it.tag);
    return;
  }
  actor.sent = actor.next = ready;
  schedule_flows(rank, it.tag, ready + tapes_[rank.program].data_after[it.cost + rank.place]);
}

void ContendedRun::meet(std::uint32_t tag) {
  for (Rank& rank : ranks_) {
    Actor* actors = actors_of(rank);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      Actor& actor = actors[lane];
      if (actor.state != State::Peers || item(rank, actors, lane).tag != tag) continue;
      const LaneItem& it = item(rank, actors, lane);
      actor.sent = actor.next = calls_[tag].latest;
      schedule_flows(rank, tag, actor.sent + tapes_[rank.program].data_after[it.cost + rank.place]);
    }
  }
}

/// Whether every rank has posted the call and all of its flows that concern the rank have ended.
bool ContendedRun::delivered(const Rank& rank, std::uint32_t tag) const {
  return calls_[tag].posted == ranks_.size() && delivery(tag, index(rank)).open == 0;
}

/// When the data of a delivered call is there.
std::int64_t ContendedRun::data_there(const Rank& rank, const LaneItem& it) const {
  return std::max(calls_[it.tag].latest, delivery(it.tag, index(rank)).last) +
         tapes_[rank.program].data_floor[it.cost + rank.place];
}

/// Lets a receive or comm kernel that waits for the call go on.
void ContendedRun::wake(Rank& rank, std::uint32_t tag) {
  Actor* actors = actors_of(rank);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    Actor& actor = actors[lane];
    if (actor.state != State::Data && actor.state != State::Finish) continue;
    const LaneItem& it = item(rank, actors, lane);
    if (it.tag == tag) actor.next = std::max(clock_, data_there(rank, it));
  }
}

void ContendedRun::take_data(const Rank& rank, Actor& actor, const LaneItem& it) {
  actor.sent = calls_[it.tag].latest;
  actor.arrived = data_there(rank, it);
  consume(it.tag);
}

void ContendedRun::consume(std::uint32_t tag) {
  if (++calls_[tag].received < ranks_.size()) return;
  under_way_.erase(std::lower_bound(under_way_.begin(), under_way_.end(), tag));
}

/// Takes in the calls that every rank has posted by now. False: the run ends here.
bool ContendedRun::know_calls() {
  int mark = -1;
  const std::vector<std::uint32_t> fresh = std::move(fresh_);
  fresh_.clear();
  for (const std::uint32_t tag : fresh) {
    mark = std::max(mark, mark_of_tag_[tag]);
    calls_[tag].known = true;
    for (Rank& rank : ranks_)
      if (delivered(rank, tag)) wake(rank, tag);
  }
  if (host_waits_)
    for (Rank& rank : ranks_) {
      rank.now = clock_;
      move_host(rank, actors_of(rank));
    }
  return mark < 0 || !looking_ || look_for_repeat(mark);
}

}  // namespace dbo
