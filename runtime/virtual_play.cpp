#include <algorithm>
#include <map>
#include <optional>

#include "runtime/virtual_device.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/plan/plan_json.h"

namespace dbo::runtime {
namespace {

/// One lane of one rank while its queue is played.
struct Lane {
  std::size_t head = 0;
  SimTime free{};  ///< end of what was played, waits included
};

struct Rank {
  const VirtualDevice* device = nullptr;
  std::vector<Lane> lanes;
  std::map<std::uint32_t, SimTime> records;  ///< by record: when it was reached
};

class Player {
 public:
  Player(const std::vector<const VirtualDevice*>& devices, const VirtualTimes& times) : times_(times) {
    for (const VirtualDevice* device : devices) {
      DBO_CHECK(device != nullptr && !device->in_step(), "only finished steps can be played");
      ranks_.push_back({device, std::vector<Lane>(device->queues().size()), {}});
    }
  }

  Trace play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (std::size_t lane = 0; lane < ranks_[rank].lanes.size(); ++lane) {
          while (advance(rank, lane)) moved = true;
        }
      }
    }
    check_all_played();
    return std::move(trace_);
  }

 private:
  // Times of the sends and comm kernels of a call, by rank.
  using Times = std::vector<std::optional<SimTime>>;

  Ns drawn(std::size_t rank, std::uint32_t op, std::uint64_t what) const {
    const auto span = static_cast<std::uint64_t>((times_.longest - times_.shortest).count()) + 1;
    const std::uint64_t counter = (static_cast<std::uint64_t>(rank) << 34) + (std::uint64_t{op} << 2) + what;
    return times_.shortest + Ns{static_cast<std::int64_t>(mix_below(times_.seed, counter, span))};
  }

  Times& times_of(std::map<std::uint32_t, Times>& table, std::uint32_t call) {
    Times& times = table[call];
    times.resize(ranks_.size());
    return times;
  }

  static std::optional<SimTime> latest(const Times& times) {
    SimTime last{};
    for (const auto& time : times) {
      if (!time) return std::nullopt;
      last = std::max(last, *time);
    }
    return last;
  }

  bool advance(std::size_t r, std::size_t l) {
    Rank& rank = ranks_[r];
    Lane& lane = rank.lanes[l];
    const auto& queue = rank.device->queues()[l];
    if (lane.head == queue.size()) return false;
    const VirtualItem& item = queue[lane.head];
    switch (item.kind) {
      case QueueItem::Kind::Record:
        rank.records[item.index] = lane.free;
        break;
      case QueueItem::Kind::Wait: {
        if (item.bound == kNone) break;
        const auto record = rank.records.find(item.bound);
        if (record == rank.records.end()) return false;
        lane.free = std::max(lane.free, record->second);
        break;
      }
      case QueueItem::Kind::Op:
        if (!run_op(r, l, item.index)) return false;
        break;
    }
    ++lane.head;
    return true;
  }

  bool run_op(std::size_t r, std::size_t l, std::uint32_t plan_op) {
    Lane& lane = ranks_[r].lanes[l];
    const Plan& plan = ranks_[r].device->plan();
    const LinearOp& op = ranks_[r].device->linear().ops[plan_op];
    const OpKind kind = plan.op(op.op).kind;
    const SimTime start = lane.free;
    SimTime ready = start;
    if (is_collective(kind)) {
      Times& begun = times_of(begun_, op.call);
      begun[r] = start;
      const std::optional<SimTime> last = latest(begun);
      if (!last) return false;
      ready = *last;
    } else if (is_recv(kind)) {
      const std::optional<SimTime> last = latest(times_of(sent_, op.call));
      if (!last) return false;
      ready = std::max(start, *last + drawn(r, plan_op, 1));
    }
    lane.free = ready + drawn(r, plan_op, 0);
    if (const auto more = times_.longer.find(plan_op); more != times_.longer.end()) lane.free += more->second;
    if (is_send(kind)) times_of(sent_, op.call)[r] = lane.free;
    TraceOp traced;
    traced.rank = static_cast<std::int32_t>(r);
    traced.layer = op.layer;
    traced.ubatch = static_cast<std::int16_t>(op.ubatch);
    traced.kind = kind;
    traced.lane = static_cast<std::uint8_t>(l);
    traced.name = op.op;
    traced.plan_op = plan_op;
    traced.start = start;
    traced.end = lane.free;
    traced.waited = is_recv(kind) ? ready - start : Ns{};
    played_.push_back(traced);
    return true;
  }

  void check_all_played() {
    std::string stuck;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const Plan& plan = ranks_[r].device->plan();
      for (std::size_t l = 0; l < ranks_[r].lanes.size(); ++l) {
        const auto& queue = ranks_[r].device->queues()[l];
        const std::size_t head = ranks_[r].lanes[l].head;
        if (head == queue.size()) continue;
        stuck += "; rank " + std::to_string(r) + ", lane " + plan.lanes[l] + ": ";
        stuck += queue[head].kind == QueueItem::Kind::Op
                     ? describe(plan, ranks_[r].device->linear().ops[queue[head].index])
                     : "a wait for record " + std::to_string(queue[head].bound);
      }
    }
    if (!stuck.empty()) throw FindingError("the lanes wait for each other: " + stuck.substr(2));
    const Plan& plan = ranks_.front().device->plan();
    trace_.lanes = plan.lanes;
    for (const OpDef& op : plan.ops) trace_.names.push_back(op.name);
    std::sort(played_.begin(), played_.end(), [](const TraceOp& a, const TraceOp& b) {
      if (a.rank != b.rank) return a.rank < b.rank;
      if (a.lane != b.lane) return a.lane < b.lane;
      return a.start < b.start;
    });
    trace_.ops = std::move(played_);
    trace_.metadata.set("plan_hash", plan_hash(plan));
  }

  VirtualTimes times_;
  std::vector<Rank> ranks_;
  std::map<std::uint32_t, Times> begun_, sent_;  ///< by call
  std::vector<TraceOp> played_;
  Trace trace_;
};

}  // namespace

Trace play_virtual(const std::vector<const VirtualDevice*>& devices, const VirtualTimes& times) {
  DBO_CHECK(!devices.empty(), "no device to play");
  return Player(devices, times).play();
}

}  // namespace dbo::runtime
