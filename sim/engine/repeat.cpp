#include "sim/engine/repeat.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {

void RunState::set_newest() {
  newest = 0;
  for (const std::int64_t t : times) newest = std::max(newest, t);
}

std::int64_t RunState::latest() const {
  std::int64_t latest = newest;
  // The host may lead.
  for (const std::int64_t t : hosts) latest = std::max(latest, t);
  return latest;
}

std::optional<std::int64_t> repeat_shift(const RunState& earlier, const RunState& later) {
  if (earlier.times.size() != later.times.size() || earlier.hosts.size() != later.hosts.size()) return std::nullopt;
  if (earlier.values != later.values) return std::nullopt;
  // The newest time moves if any does.
  const std::int64_t shift = later.newest - earlier.newest;
  std::int64_t oldest_moving = INT64_MAX, newest_fixed = -1;
  for (std::size_t i = 0; i < earlier.times.size(); ++i) {
    const std::int64_t moved = later.times[i] - earlier.times[i];
    if (moved == shift) {
      oldest_moving = std::min(oldest_moving, earlier.times[i]);
    } else if (moved == 0) {
      newest_fixed = std::max(newest_fixed, earlier.times[i]);
    } else {
      return std::nullopt;
    }
  }
  if (newest_fixed >= oldest_moving) return std::nullopt;
  const bool host_free = !later.host_waits && later.host_bound == earlier.host_bound;
  for (std::size_t g = 0; g < earlier.hosts.size(); ++g) {
    const std::int64_t moved = later.hosts[g] - earlier.hosts[g];
    if (moved != shift && !(host_free && moved < shift)) return std::nullopt;
  }
  return shift;
}

std::optional<Repeat> RepeatFinder::add(RunState state, const std::function<bool(const Repeat&)>& acceptable) {
  // Enough for any cycle of a real model, and bounded in memory for thousands of ranks.
  constexpr std::size_t kKept = 256;
  constexpr std::size_t kKeptNumbers = 8'000'000;
  std::optional<Repeat> found;
  for (auto before = seen_.rbegin(); before != seen_.rend() && !found; ++before) {
    const auto shift = repeat_shift(*before, state);
    if (!shift) continue;
    const Repeat repeat{state.mark, state.mark - before->mark, *shift, 0};
    if (acceptable(repeat)) found = repeat;
  }
  const std::size_t numbers = state.times.size() + state.values.size() + state.hosts.size();
  seen_.push_back(std::move(state));
  while (seen_.size() > 2 && (seen_.size() > kKept || seen_.size() * numbers > kKeptNumbers)) seen_.pop_front();
  return found;
}

const RunState& RepeatFinder::cycle_begin(const Repeat& repeat) const {
  for (const RunState& state : seen_)
    if (state.mark == repeat.mark - repeat.iterations) return state;
  throw InternalError("a repeat without its beginning");
}

void fill_skipped(std::vector<OpTimes>& times, const Plan& plan, const Linear& linear, const SkippedOps& ops,
                  std::int64_t shift, std::int64_t host_shift) {
  for (std::size_t i = ops.first; i < ops.end; ++i) {
    OpTimes t = times[ops.order[i - ops.cycle]];
    for (std::int64_t OpTimes::*field : {&OpTimes::start, &OpTimes::end, &OpTimes::ready, &OpTimes::moved})
      t.*field += shift;
    t.issued += host_shift;
    const OpKind kind = plan.ops[linear.ops[ops.order[i]].op].kind;
    if (is_recv(kind) || is_collective(kind)) {
      t.sent += shift;
      t.arrived += shift;
    }
    times[ops.order[i]] = t;
  }
}

void fill_arrivals(std::vector<OpTimes>& times, const Plan& plan, const Linear& linear) {
  for (std::size_t i = 0; i < times.size(); ++i)
    if (is_recv(plan.ops[linear.ops[i].op].kind)) times[linear.ops[i].pair].arrived = times[i].arrived;
}

}  // namespace dbo
