// What every op of a plan costs, by rank group, layer class, ubatch and op: the only input the engine takes besides the
// plan. Made by fixed.h, analytical.h or profile.h; times are rounded to Ns there and nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/plan/plan.h"

namespace dbo {

/// What the running ops of one rank share; 0: of that there is enough for everybody.
struct MachineRates {
  std::int32_t sms = 0;
  std::int64_t hbm_bytes_per_s = 0;   ///< that streaming kernels reach together, reads and writes
  std::int64_t sm_bytes_per_s = 0;    ///< most that one SM moves to or from memory
  std::int64_t link_bytes_per_s = 0;  ///< scale-up port, one direction, as transports reach it
  std::int64_t nic_bytes_per_s = 0;   ///< NIC, one direction

  bool any() const {
    return sms > 0 || hbm_bytes_per_s > 0 || sm_bytes_per_s > 0 || link_bytes_per_s > 0 || nic_bytes_per_s > 0;
  }
};

/// What limits an op's speed once it shares the GPU. An op with none of it runs as if alone.
struct OpDemand {
  std::int64_t flops = 0;
  std::int64_t hbm_bytes = 0;     ///< read and written, weights included
  std::int64_t weight_bytes = 0;  ///< of these: weights, which every ubatch reads again
  std::int64_t port_bytes = 0;    ///< over this rank's NVLink or NIC port, larger direction: what traces show
  std::int64_t link_bytes = 0;    ///< over the scale-up port and over the NIC, larger direction: what is shared
  std::int64_t nic_bytes = 0;
  std::int32_t sms = 0;    ///< SMs its kernels hold while they run; 0: copy engine, NIC or unknown
  std::int32_t tiles = 0;  ///< thread blocks of its longest kernel, for waves; 0: not quantised
  /// Share of its time that takes longer on fewer SMs, in 1/1024 (0: a kernel that only waits for memory).
  std::int32_t sm_share = 1024;
  Ns block{};                ///< longest time one of its thread blocks keeps an SM; 0: too short to wait for
  bool cooperative = false;  ///< needs all its SMs at once to start
  /// Comm kernels: thread blocks that fit on one SM together. `sms` is one block an SM, as on a GPU with enough of them
  /// idle; blocks that wait for another kernel's to drain go to the first SMs that fall free, as many as fit.
  std::int32_t blocks_per_sm = 1;
  /// Comm kernels that store straight into place: how much longer they take beside memory traffic that fills the
  /// machine, in 1/1024 of their time. They cost compute beside them bandwidth and no more. 0: OpCost::beside holds
  /// the loss of both.
  std::int32_t loaded = 0;
};

/// What a rank's ports and memory carry while data is on its way to it.
struct WireTraffic {
  std::int64_t hbm_bytes = 0, link_bytes = 0, nic_bytes = 0;
};

/// One op on one rank, alone on the SMs it may use.
struct OpCost {
  /// The kernel's own time: compute op, send, receive (after its data is there), copy; for a comm kernel the whole time
  /// from the moment every rank has started it.
  Ns time{};
  /// Receives only: from the end of the slowest send to the arrival of the last byte at this rank, ports free.
  Ns wire{};
  /// The same as `time` beside the other sort all along: compute beside a comm kernel that moves data with SMs, and the
  /// reverse; at most `time`: not slowed. Contention only, shared memory bandwidth included.
  Ns beside{};
  /// Comm kernels: how much later than a rank of this group the last of all ranks starts, for reasons that its load
  /// does not show (their hosts and clocks differ). The kernel holds its SMs and its lane meanwhile.
  Ns peers{};
  /// Of `wire`, or of a comm kernel's time: its last part, which would not be if the ports of all other ranks kept the
  /// machine's pace. `slowest`: the rank whose port is last, or -1.
  Ns for_peers{};
  std::int32_t slowest = -1;
  std::int32_t curve = -1;  ///< while a table is made: which of ClockedCosts' its times follow, or -1
  /// Pairwise flows: sends and comm kernels: from the start of the op to that of its flows. Receives and comm kernels:
  /// from the end of the last flow to the rank to the moment its data is there.
  Ns data_after{}, data_floor{};
  /// Comm kernels that block the host: from the moment every rank has started it until the host knows the counts.
  Ns notify{};
  OpDemand demand;
  WireTraffic wire_traffic;  ///< receives only: while `wire` lasts

  /// What an exchange that nobody joins late takes of its lane.
  Ns occupied() const { return peers + time; }

  friend bool operator==(const OpCost& a, const OpCost& b) {
    return a.time == b.time && a.wire == b.wire && a.beside == b.beside && a.peers == b.peers &&
           a.for_peers == b.for_peers && a.slowest == b.slowest && a.notify == b.notify;
  }
};

/// Part of an exchange's data, from the port of one group to that of another. `work` is in units of 2^-20 bytes at a
/// port's full rate (more where the transport does not reach it), or of 2^-20 ns for stated durations.
struct PairFlow {
  std::int32_t from = 0, to = 0;  ///< groups
  std::int32_t out = 0, in = 0;   ///< ports
  std::int64_t work = 0;
  /// Memory traffic at each end, while no kernel of the call asks for it: of MachineRates::hbm_bytes_per_s, in 2^-52
  /// for each unit of work a nanosecond.
  std::int32_t hbm = 0;

  friend bool operator==(const PairFlow&, const PairFlow&) = default;
};

/// Pairwise flows: every group is one rank, or all ranks are one group whose flows are its whole load.
struct FlowCosts {
  std::vector<std::int64_t> ports;               ///< work a nanosecond; empty: data moves by port loads
  std::vector<std::vector<PairFlow>> exchanges;  ///< each with its flows by sender
  std::vector<int> of_call;                      ///< [layer class][ubatch][combine, dispatch]: index into `exchanges`
  bool meet = false;  ///< comm kernels move data once every rank has started them, not from each sender's start on

  bool on() const { return !ports.empty(); }
};

/// Host costs of each instruction, and the gaps between ops that follow each other on the GPU without a host between.
struct HostCosts {
  Ns launch{}, record{}, wait{}, yield{};  ///< eager: host time of each instruction
  Ns graph_launch{};                       ///< graph: host time of the one launch
  Ns node_gap{};                           ///< graph: from the end of an op to the start of the next on its lane
  Ns lane_gap{};                           ///< graph: added when the op before it is on another lane
  Ns eager_node_gap{}, eager_lane_gap{};   ///< the same of launches that were issued in time

  Ns node_gap_in(Execution execution) const { return execution == Execution::Graph ? node_gap : eager_node_gap; }
  Ns lane_gap_in(Execution execution) const { return execution == Execution::Graph ? lane_gap : eager_lane_gap; }
};

/// How many ubatches the launches and loads of a plan speak of; at least 1.
int plan_ubatches(const Plan& plan);

class CostTable {
 public:
  /// `group_of_rank` [world.ranks]: ranks with equal costs share a group. `class_of_layer` [layers]: layers whose ops
  /// cost the same share a class (class 0 also serves ops outside the layers).
  CostTable(const Plan& plan, std::vector<int> group_of_rank, std::vector<int> class_of_layer);

  int groups() const { return groups_; }
  int layer_classes() const { return layer_classes_; }
  int ubatches() const { return ubatches_; }
  const std::vector<int>& group_of_rank() const { return group_of_rank_; }
  /// Layers past the model's own stand for more of its repeated ones, in their pattern.
  int layer_class(std::int32_t layer) const {
    if (layer < 0) return 0;
    if (layer >= leading_ + repeat_layers_) layer = leading_ + (layer - leading_) % repeat_layers_;
    return class_of_layer_[static_cast<std::size_t>(layer)];
  }
  /// After how many layers the classes of the layers past the leading dense ones repeat; at least 1.
  int repeat_layers() const { return repeat_layers_; }

  OpCost& at(int group, int layer_class, int ubatch, OpId op) { return costs_[index(group, layer_class, ubatch, op)]; }
  const OpCost& at(int group, int layer_class, int ubatch, OpId op) const {
    return costs_[index(group, layer_class, ubatch, op)];
  }

  HostCosts host;
  FlowCosts flows;       ///< with them `wire` and a comm kernel's `time` are what its own ports take
  MachineRates machine;  ///< none: nothing is shared, and every op takes its own time
  int sm_mhz = 0;        ///< SM clock that computation is priced at; 0: not known
  /// Copy engines slow computation that runs beside their transfers, by OpCost::beside: where that was measured.
  bool copies_slow = false;
  bool host_blocks = true;               ///< false: a HostWait takes no time (fixed costs)
  std::vector<std::string> assumptions;  ///< what was assumed or left out, for summary.json

  /// The flows of one call.
  const std::vector<PairFlow>& call_flows(int layer_class, int ubatch, bool dispatch) const {
    const int call = (layer_class * ubatches_ + ubatch) * 2 + (dispatch ? 1 : 0);
    return flows.exchanges[static_cast<std::size_t>(flows.of_call[static_cast<std::size_t>(call)])];
  }

  /// Durations of single launches by `plan_op` (replayed foreign traces), -1 where the op's own cost holds; launches
  /// past the end have their op's cost too. Empty: none.
  std::vector<Ns> by_plan_op;

 private:
  std::size_t index(int group, int layer_class, int ubatch, OpId op) const {
    return ((static_cast<std::size_t>(group) * static_cast<std::size_t>(layer_classes_) +
             static_cast<std::size_t>(layer_class)) *
                static_cast<std::size_t>(ubatches_) +
            static_cast<std::size_t>(ubatch)) *
               ops_ +
           op;
  }

  std::vector<int> group_of_rank_, class_of_layer_;
  int groups_ = 1, layer_classes_ = 1, ubatches_ = 1;
  std::int32_t leading_ = 0, repeat_layers_ = 1;
  std::size_t ops_ = 0;
  std::vector<OpCost> costs_;
};

/// Throws InputError when there are more ranks than flows are kept for, each its own pair of every other.
void check_flow_ranks(const Plan& plan);

/// A table of one group and one layer class, all costs 0.
CostTable uniform_table(const Plan& plan);

}  // namespace dbo
