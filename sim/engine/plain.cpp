#include "sim/engine/plain.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/last_post.h"
#include "sim/engine/plain_run.h"

namespace dbo {

PlainRun::PlainRun(const Plan& plan, const CostTable& costs, const EngineOptions& options)
    : plan_(plan), options_(options) {
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

EngineResult PlainRun::run() {
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

/// Runs program p until it ends, reaches a mark or waits for another program. Returns whether it moved.
bool PlainRun::advance(std::size_t p) {
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
bool PlainRun::execute(std::size_t p, const TapeStep& step) {
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

void PlainRun::charge_host(std::size_t p, const TapeStep& step) {
  const std::int64_t cost = step.host.count();
  if (cost == 0) return;
  std::int64_t* host = &host_[begin(p)];
  for (std::size_t g = 0; g < width(p); ++g) host[g] += cost;
}

void PlainRun::wait(std::size_t p, const TapeStep& step) {
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
void PlainRun::starts(std::size_t p, const TapeStep& step) {
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
void PlainRun::finish(std::size_t p, const TapeStep& step) {
  std::copy(end_.begin(), end_.end(), &lanes_[step.lane][begin(p)]);
  if (step.last) {
    std::int64_t* last = &result_.step_ns[begin(p)];
    for (std::size_t g = 0; g < width(p); ++g) last[g] = std::max(last[g], end_[g]);
  }
  if (step.slot != kNone) std::copy(end_.begin(), end_.end(), &slots_[p][step.slot * width(p)]);
}

void PlainRun::launch(std::size_t p, const TapeStep& step) {
  starts(p, step);
  const std::int64_t* time = &tapes_[p].times[step.cost];
  end_.resize(width(p));
  for (std::size_t g = 0; g < width(p); ++g) end_[g] = start_[g] + time[g];
  if (step.kind == TapeStep::Kind::Send) send(p, step);
  record(p, step, nullptr);
  finish(p, step);
}

void PlainRun::send(std::size_t p, const TapeStep& step) {
  Call& call = calls_[step.tag];
  post(p, call, end_);
  in_flight_[p].push_back({step.tag, step.wire});
}

/// The groups of the program have sent, or started a comm kernel, at `times`.
void PlainRun::post(std::size_t p, Call& call, const Times& times) const {
  ++call.programs_in;
  // Who was last is only told of recorded runs.
  for (std::size_t g = 0; g < width(p) && !options_.record.empty(); ++g)
    note_post(static_cast<std::int32_t>(begin(p) + g), times[g], call.latest, call.last);
  for (std::size_t g = 0; g < width(p); ++g) call.latest = std::max(call.latest, times[g]);
}

/// Lets the data of the program's calls arrive in the order they were sent, up to `tag`: the slowest send, then the
/// wire into each rank when its port is free. False when a call is not yet sent by every program.
bool PlainRun::deliver(std::size_t p, std::uint32_t tag) {
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

bool PlainRun::receive(std::size_t p, const TapeStep& step) {
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

bool PlainRun::collective(std::size_t p, const TapeStep& step) {
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

void PlainRun::host_wait(std::size_t p, const TapeStep& step) {
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
void PlainRun::record(std::size_t p, const TapeStep& step, const Call* call) {
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

Bound PlainRun::bound(const TapeStep& step, std::size_t group, std::int64_t start) const {
  const std::int64_t lane = lanes_[step.lane][group];
  if (start == 0) return Bound::Start;
  if (host_[group] == start && start > lane) return Bound::Host;
  return crossed_[step.lane][group] == lane ? Bound::Event : Bound::Lane;
}

void PlainRun::report_deadlock() const {
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

EngineResult run_plain(const Plan& plan, const CostTable& costs, const EngineOptions& options) {
  return PlainRun(plan, costs, options).run();
}

}  // namespace dbo
