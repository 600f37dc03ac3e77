#include "runtime/ordering.h"

#include <algorithm>

namespace dbo::runtime {
namespace {

using Clock = std::vector<std::uint32_t>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t lane = 0; lane < clock.size(); ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

}  // namespace

Ordering::Ordering(const Plan& plan, const Linear& linear) : lanes_(plan.lanes.size()) {
  position_.reserve(linear.ops.size());
  lane_.reserve(linear.ops.size());
  for (const LinearOp& op : linear.ops) {
    position_.push_back(op.position);
    lane_.push_back(op.lane);
  }
  clocks_.resize(linear.ops.size() * lanes_);
  // What is over once everything queued on a lane so far is over; at a record; and what the host has seen end.
  std::vector<Clock> lane_clock(lanes_, Clock(lanes_, 0));
  std::vector<Clock> record_clock(linear.records.size());
  std::vector<Clock> end_clock(linear.ops.size());
  Clock host_clock(lanes_, 0);
  for (const HostStep& step : linear.host) {
    switch (step.verb) {
      case Verb::Launch: {
        const LinearOp& op = linear.ops[step.index];
        Clock& clock = lane_clock[op.lane];
        join(clock, host_clock);
        std::copy(clock.begin(), clock.end(), clocks_.begin() + static_cast<std::ptrdiff_t>(step.index * lanes_));
        clock[op.lane] = op.position + 1;
        end_clock[step.index] = clock;
        break;
      }
      case Verb::Record: {
        const LinearRecord& record = linear.records[step.index];
        join(lane_clock[record.lane], host_clock);
        record_clock[step.index] = lane_clock[record.lane];
        break;
      }
      case Verb::Wait: {
        const LinearWait& wait = linear.waits[step.index];
        if (wait.record != kNone) join(lane_clock[wait.lane], record_clock[wait.record]);
        break;
      }
      case Verb::HostWait:
        // Knowing the counts is not the end of the op: only `end` orders what follows.
        if (!step.notify) join(host_clock, end_clock[step.index]);
        break;
      case Verb::Yield:
      case Verb::Hook:
      case Verb::RunHook:
      case Verb::Exit:
      case Verb::Repeat:
      case Verb::Block:
        break;
    }
  }
}

bool Ordering::before(std::uint32_t a, std::uint32_t b) const {
  return clocks_[b * lanes_ + lane_[a]] > position_[a];
}

}  // namespace dbo::runtime
