#include "sim/engine/flow_network.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "sim/base/units.h"

namespace dbo {

FlowNetwork::FlowNetwork(std::vector<std::int64_t> ports)
    : ports_(std::move(ports)), pairs_(ports_.size() * ports_.size(), 0) {}

void FlowNetwork::begin(std::uint32_t tag, const PairFlow& flow, std::int64_t now) {
  if (pair(flow) != 0) {
    queued_.push_back({flow, tag});
    return;
  }
  open(tag, flow, now, 0);
  stale_ = true;
}

/// `rate` 0: not yet known.
void FlowNetwork::open(std::uint32_t tag, const PairFlow& flow, std::int64_t now, std::int64_t rate) {
  Open open;
  open.flow = flow;
  open.tag = tag;
  open.left = flow.work;
  open.rate = rate;
  open.since = open.begun = now;
  open.end = flow.work == 0 ? now : rate == 0 ? INT64_MAX : now + ceil_div(flow.work, rate);
  first_end_ = std::min(first_end_, open.end);
  open_.push_back(open);
  pair(flow) = 1;
}

/// Opens what has waited for flows that have just ended, at their rates: the ports are the same, so no other changes.
void FlowNetwork::open_queued(std::int64_t now) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < queued_.size(); ++i) {
    const Queued queued = queued_[i];
    const std::int64_t before = pair(queued.flow);
    if (before > 0) {
      queued_[kept++] = queued;
    } else {
      open(queued.tag, queued.flow, now, -before);
    }
  }
  queued_.resize(kept);
  for (const PairFlow& flow : just_ended_)
    if (pair(flow) < 0) pair(flow) = 0;
  just_ended_.clear();
}

std::int64_t FlowNetwork::next() const {
  return std::min(first_end_, share_at_);
}

void FlowNetwork::advance(std::int64_t now, std::vector<Ended>& ended) {
  if (first_end_ <= now) {
    const std::int64_t oldest = open_.front().begun;
    first_end_ = INT64_MAX;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].end <= now) {
        ended.push_back({open_[i].tag, open_[i].flow.from, open_[i].flow.to});
        pair(open_[i].flow) = -std::max<std::int64_t>(open_[i].rate, 1);
        just_ended_.push_back(open_[i].flow);
        continue;
      }
      first_end_ = std::min(first_end_, open_[i].end);
      if (kept != i) open_[kept] = open_[i];
      ++kept;
    }
    open_.resize(kept);
    constexpr std::int64_t kSteps = 64;
    const std::int64_t hold = open_.size() > kExactFlows ? (now - oldest) / kSteps : 0;
    share_at_ = std::min(share_at_, now + hold);
    open_queued(now);
  }
  if (share_at_ <= now) stale_ = true;
}

bool FlowNetwork::share(std::int64_t now) {
  if (!stale_) return false;
  stale_ = false;
  share_at_ = INT64_MAX;
  for (Open& open : open_) {
    open.left -= (now - open.since) * open.rate;
    open.since = now;
  }
  set_rates();
  first_end_ = INT64_MAX;
  for (Open& open : open_) {
    open.end = now + ceil_div(open.left, open.rate);
    first_end_ = std::min(first_end_, open.end);
  }
  return true;
}

/// The port that can give each of its flows least is full; what those do not use elsewhere is free for others. A port's
/// fair share only grows while flows with smaller ones leave it, so an entry of the queue is at worst too small.
void FlowNetwork::set_rates() {
  const std::size_t ports = ports_.size();
  begin_.assign(ports + 1, 0);
  for (const Open& open : open_)
    for (const std::int32_t port : {open.flow.out, open.flow.in}) ++begin_[static_cast<std::size_t>(port) + 1];
  waiting_.assign(begin_.begin() + 1, begin_.end());
  for (std::size_t p = 0; p < ports; ++p) begin_[p + 1] += begin_[p];
  flow_.resize(open_.size() * 2);
  std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
  for (std::uint32_t i = 0; i < open_.size(); ++i)
    for (const std::int32_t port : {open_[i].flow.out, open_[i].flow.in})
      flow_[next[static_cast<std::size_t>(port)]++] = i;
  free_ = ports_;
  fixed_.assign(open_.size(), 0);
  using Entry = std::pair<std::int64_t, std::size_t>;  // fair share, port
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto fair = [&](std::size_t p) { return free_[p] / waiting_[p]; };
  for (std::size_t p = 0; p < ports; ++p)
    if (waiting_[p] > 0) queue.push({fair(p), p});
  while (!queue.empty()) {
    const auto [share, port] = queue.top();
    queue.pop();
    if (waiting_[port] == 0) continue;
    if (fair(port) > share) {
      queue.push({fair(port), port});
      continue;
    }
    const std::int64_t rate = std::max<std::int64_t>(share, 1);
    for (std::uint32_t i = begin_[port]; i < begin_[port + 1]; ++i) {
      const std::uint32_t flow = flow_[i];
      if (fixed_[flow]) continue;
      fixed_[flow] = 1;
      open_[flow].rate = rate;
      for (const std::int32_t end : {open_[flow].flow.out, open_[flow].flow.in}) {
        free_[static_cast<std::size_t>(end)] -= rate;
        --waiting_[static_cast<std::size_t>(end)];
      }
    }
  }
}

std::vector<std::pair<PairFlow, std::int64_t>> FlowNetwork::rates() const {
  std::vector<std::pair<PairFlow, std::int64_t>> out;
  for (const Open& open : open_) out.emplace_back(open.flow, open.rate);
  return out;
}

void FlowNetwork::append_state(std::int64_t first_tag, std::vector<std::int64_t>& values,
                               std::vector<std::int64_t>& times) const {
  values.push_back(static_cast<std::int64_t>(open_.size()));
  for (const Open& open : open_) {
    values.insert(values.end(), {static_cast<std::int64_t>(open.tag) - first_tag, open.flow.from, open.flow.to,
                                 open.flow.out, open.left, open.rate});
    times.insert(times.end(), {open.since, open.begun});
  }
  values.push_back(static_cast<std::int64_t>(queued_.size()));
  for (const Queued& queued : queued_)
    values.insert(values.end(), {static_cast<std::int64_t>(queued.tag) - first_tag, queued.flow.from, queued.flow.to,
                                 queued.flow.out, queued.flow.work});
  values.insert(values.end(), {share_at_ == INT64_MAX, stale_});
  if (share_at_ != INT64_MAX) times.push_back(share_at_);
}

void FlowNetwork::shift(std::int64_t ns, std::uint32_t tags) {
  for (Open& open : open_) {
    open.tag += tags;
    for (std::int64_t* time : {&open.since, &open.begun, &open.end}) *time += ns;
  }
  for (Queued& queued : queued_) queued.tag += tags;
  if (first_end_ != INT64_MAX) first_end_ += ns;
  if (share_at_ != INT64_MAX) share_at_ += ns;
}

}  // namespace dbo
