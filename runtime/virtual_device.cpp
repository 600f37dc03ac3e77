#include "runtime/virtual_device.h"

#include "runtime/ring.h"
#include "sim/base/error.h"

namespace dbo::runtime {

void VirtualWorld::launched(std::uint32_t call) {
  {
    const std::lock_guard lock(mutex_);
    if (launches_.size() <= call) launches_.resize(call + 1, 0);
    ++launches_[call];
  }
  changed_.notify_all();
}

bool VirtualWorld::all_launched(std::uint32_t calls) const {
  if (launches_.size() < calls) return false;
  for (std::uint32_t call = 0; call < calls; ++call) {
    if (launches_[call] < ranks_) return false;
  }
  return true;
}

bool VirtualWorld::wait_launched(std::uint32_t calls, const std::atomic<bool>& stopped) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return all_launched(calls) || stopped.load(); });
  return all_launched(calls);
}

void VirtualWorld::wake() {
  // Under the lock, or a waiter that has just tested its predicate would miss it.
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void VirtualWorld::reset() {
  const std::lock_guard lock(mutex_);
  launches_.clear();
}

/// Finds two threads that use the device at once: the ring must never let that happen.
class VirtualDevice::Guard {
 public:
  explicit Guard(VirtualDevice& device) : device_(device) {
    DBO_CHECK(device_.in_step_, "the device is used outside of a step");
    DBO_CHECK(device_.users_.fetch_add(1) == 0, "two threads use the device at once");
  }
  ~Guard() { device_.users_.fetch_sub(1); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  VirtualDevice& device_;
};

VirtualDevice::VirtualDevice(const Plan& plan, const Linear& linear, VirtualWorld* world)
    : plan_(plan), linear_(linear), world_(world), queues_(plan.lanes.size()) {}

void VirtualDevice::begin_step() {
  DBO_CHECK(!in_step_, "a step begins inside another");
  for (auto& queue : queues_) queue.clear();
  last_record_.clear();
  records_ = waits_ = calls_ = 0;
  in_step_ = true;
}

void VirtualDevice::launch(std::uint32_t plan_op) {
  const Guard guard(*this);
  DBO_CHECK(plan_op < linear_.ops.size(), "an op that the plan's order does not have");
  const LinearOp& op = linear_.ops[plan_op];
  if (on_launch_) on_launch_(plan_op);
  queues_[op.lane].push_back({QueueItem::Kind::Op, plan_op, 0, 0, kNone});
  const OpKind kind = plan_.op(op.op).kind;
  if (op.call != kNone && !is_recv(kind)) {
    ++calls_;
    if (world_ != nullptr) world_->launched(op.call);
  }
}

void VirtualDevice::record(int thread, EventId event, LaneId lane) {
  const Guard guard(*this);
  const auto t = static_cast<std::size_t>(thread);
  if (last_record_.size() <= t) last_record_.resize(t + 1);
  if (last_record_[t].size() <= event) last_record_[t].resize(event + 1u, kNone);
  last_record_[t][event] = records_;
  queues_[lane].push_back({QueueItem::Kind::Record, records_, thread, event, kNone});
  ++records_;
}

void VirtualDevice::wait(int thread, EventId event, LaneId lane) {
  const Guard guard(*this);
  const auto t = static_cast<std::size_t>(thread);
  const bool known = t < last_record_.size() && event < last_record_[t].size();
  queues_[lane].push_back({QueueItem::Kind::Wait, waits_, thread, event, known ? last_record_[t][event] : kNone});
  ++waits_;
}

void VirtualDevice::host_wait(std::uint32_t plan_op, bool) {
  const Guard guard(*this);
  DBO_CHECK(plan_op < linear_.ops.size(), "an op that the plan's order does not have");
  // Nothing runs here before the step is enqueued; what can keep a real op from ending is a peer that has not launched
  // its part, so the host waits for that.
  if (world_ != nullptr && !world_->wait_launched(calls_, stopped_)) throw Stopped{};
  if (stopped_) throw Stopped{};
}

void VirtualDevice::end_step() {
  DBO_CHECK(in_step_, "a step ends that has not begun");
  in_step_ = false;
}

void VirtualDevice::abandon_step() noexcept {
  in_step_ = false;
}

void VirtualDevice::stop() noexcept {
  stopped_ = true;
  if (world_ != nullptr) world_->wake();
}

namespace {

std::string item_text(const Plan& plan, const Linear& linear, const VirtualItem& item) {
  switch (item.kind) {
    case QueueItem::Kind::Op:
      return describe(plan, linear.ops[item.index]);
    case QueueItem::Kind::Record:
      return "record " + std::to_string(item.index) + " of event " + std::to_string(item.event) + " of thread " +
             std::to_string(item.thread);
    case QueueItem::Kind::Wait:
      return "wait for event " + std::to_string(item.event) + " of thread " + std::to_string(item.thread) +
             (item.bound == kNone ? " (never recorded)" : " (record " + std::to_string(item.bound) + ")");
  }
  return {};
}

VirtualItem planned_item(const Linear& linear, const QueueItem& item) {
  switch (item.kind) {
    case QueueItem::Kind::Op:
      return {item.kind, item.index, 0, 0, kNone};
    case QueueItem::Kind::Record: {
      const LinearRecord& record = linear.records[item.index];
      return {item.kind, item.index, record.thread, record.event, kNone};
    }
    case QueueItem::Kind::Wait: {
      const LinearWait& wait = linear.waits[item.index];
      return {item.kind, item.index, wait.thread, wait.event, wait.record};
    }
  }
  return {};
}

bool same(const VirtualItem& a, const VirtualItem& b) {
  return a.kind == b.kind && a.index == b.index && a.thread == b.thread && a.event == b.event && a.bound == b.bound;
}

}  // namespace

std::string compare_queues(const VirtualDevice& device) {
  const Plan& plan = device.plan();
  const Linear& linear = device.linear();
  for (std::size_t lane = 0; lane < linear.queues.size(); ++lane) {
    const auto& planned = linear.queues[lane];
    const auto& given = device.queues()[lane];
    for (std::size_t i = 0; i < std::max(planned.size(), given.size()); ++i) {
      const std::string place = "lane " + plan.lanes[lane] + ", item " + std::to_string(i) + ": ";
      if (i >= given.size())
        return place + "nothing, planned " + item_text(plan, linear, planned_item(linear, planned[i]));
      if (i >= planned.size()) return place + item_text(plan, linear, given[i]) + ", planned nothing";
      const VirtualItem expected = planned_item(linear, planned[i]);
      if (!same(given[i], expected)) {
        return place + item_text(plan, linear, given[i]) + ", planned " + item_text(plan, linear, expected);
      }
    }
  }
  return {};
}

}  // namespace dbo::runtime
