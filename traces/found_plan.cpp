#include <algorithm>
#include <map>
#include <set>

#include "sim/base/error.h"
#include "traces/found_order.h"

namespace dbo {
namespace {

constexpr std::string_view kHostLane = "host";

/// Writes the found order as one thread's program. Kernels are launched in the order they began, which keeps every lane
/// in order and every edge pointing forward; an event is recorded right behind the kernel somebody waits for.
class PlanWriter {
 public:
  PlanWriter(const ClassifiedTrace& trace, const std::vector<std::uint32_t>& streams, FoundOrder& order)
      : trace_(trace), streams_(streams), order_(order), plan_(order.plan) {}

  void write() {
    plan_.execution = Execution::Graph;  // as replayed: order and gaps, no cost of the host but what is an op
    plan_.shape.name = "foreign trace";
    plan_.sm.control = SmControl::None;
    for (std::uint32_t d = 0; d < streams_.size(); ++d) {
      plan_.lanes.push_back(trace_.streams[streams_[d]].lane);
      lane_of_stream_[streams_[d]] = static_cast<LaneId>(d);
    }
    if (!order_.host_work.empty()) plan_.lanes.emplace_back(kHostLane);
    find_uses();
    for (std::uint32_t k = 0; k < order_.slices.size(); ++k) write_kernel(k);
    Instruction exit;
    exit.verb = Verb::Exit;
    program_.push_back(exit);
    plan_.threads.push_back({0, std::move(program_)});
    plan_.classes.push_back({{{0, 1}}, {0}, 0});
    Load load;
    load.ubatches.emplace_back();
    plan_.loads.push_back(load);
  }

 private:
  /// How many waits every kernel's event still has to come.
  void find_uses() {
    for (const FoundEdge& edge : order_.edges) ++uses_[edge.from];
    for (const FoundHostWork& work : order_.host_work)
      if (work.after != UINT32_MAX) ++uses_[work.after];
  }

  LaneId lane(std::uint32_t k) const { return lane_of_stream_.at(trace_.info[order_.slices[k]].stream); }
  LaneId host_lane() const { return static_cast<LaneId>(plan_.lanes.size() - 1); }

  OpId op(const std::string& name, LaneId lane, SmPool sms) {
    const auto [at, fresh] = ops_.emplace(std::pair(name, lane), static_cast<OpId>(plan_.ops.size()));
    if (!fresh) return at->second;
    if (plan_.ops.size() >= UINT16_MAX)
      throw InputError(trace_.raw.file, "", "more than 65535 different kernels: too many for one plan");
    OpDef def;
    def.name = name;
    // The same kernel on two lanes is two ops of a plan, and a name like that of a kind would be taken for one.
    if (!names_.insert(def.name).second || find_op_kind(def.name)) def.name += " on " + plan_.lanes[lane];
    names_.insert(def.name);
    def.kind = OpKind::Other;
    def.lane = lane;
    def.sms = sms;
    plan_.ops.push_back(def);
    return at->second;
  }

  void launch(OpId op, Ns length) {
    Instruction launch;
    launch.verb = Verb::Launch;
    launch.op.op = op;
    program_.push_back(launch);
    order_.launches.push_back(length);
  }

  void record(std::uint32_t k, LaneId lane) {
    if (free_.empty()) {
      DBO_CHECK(plan_.events.size() < UINT16_MAX, "more events alive at once than a plan can name");
      free_.push_back(static_cast<EventId>(plan_.events.size()));
      plan_.events.push_back("e" + std::to_string(plan_.events.size()));
    }
    event_[k] = free_.back();
    free_.pop_back();
    Instruction record;
    record.verb = Verb::Record;
    record.event = event_[k];
    record.lane = lane;
    program_.push_back(record);
  }

  void wait(std::uint32_t k, LaneId lane) {
    Instruction wait;
    wait.verb = Verb::Wait;
    wait.event = event_.at(k);
    wait.lane = lane;
    program_.push_back(wait);
    if (--uses_[k] == 0) free_.push_back(event_.at(k));
  }

  void write_kernel(std::uint32_t k) {
    for (; edge_ < order_.edges.size() && order_.edges[edge_].to == k; ++edge_) wait(order_.edges[edge_].from, lane(k));
    if (work_ < order_.host_work.size() && order_.host_work[work_].to == k) {
      const FoundHostWork& work = order_.host_work[work_++];
      if (work.after != UINT32_MAX) wait(work.after, host_lane());
      // The gap between nodes is added by whoever replays.
      launch(op("host work", host_lane(), SmPool::None), std::max(Ns{0}, work.length - order_.node_gap));
      const std::uint32_t key = UINT32_MAX - static_cast<std::uint32_t>(work_);
      uses_[key] = 1;
      record(key, host_lane());
      wait(key, lane(k));
    }
    const RawSlice& slice = trace_.raw.slices[order_.slices[k]];
    launch(op(short_kernel_name(trace_.raw.names[slice.name]), lane(k), SmPool::All), Ns{slice.dur_ns});
    if (uses_.count(k) > 0) record(k, lane(k));
  }

  const ClassifiedTrace& trace_;
  const std::vector<std::uint32_t>& streams_;
  FoundOrder& order_;
  Plan& plan_;
  Program program_;
  std::map<std::uint32_t, LaneId> lane_of_stream_;
  std::map<std::pair<std::string, LaneId>, OpId> ops_;
  std::set<std::string> names_;
  std::map<std::uint32_t, int> uses_;
  std::map<std::uint32_t, EventId> event_;
  std::vector<EventId> free_;
  std::size_t edge_ = 0, work_ = 0;
};

}  // namespace

void write_found_plan(const ClassifiedTrace& trace, const std::vector<std::uint32_t>& streams, FoundOrder& order) {
  PlanWriter(trace, streams, order).write();
}

}  // namespace dbo
