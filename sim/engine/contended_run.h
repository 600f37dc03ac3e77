// One run of the contended executor: the state of ranks, lanes and calls. Internal to sim/engine.
//
// A rank's clock moves from event to event: ends of ops and wires, blocks that leave their SMs, starts. It may not pass
// the instant at which it posted something whose outcome the other ranks decide: that it has sent (when does the wire
// start?), that it has started a comm kernel (when have all?), that it has moved its part (who is the slowest?). Calls
// are resolved between rounds, in which every rank runs as far as it can, so that no rank sees more than another. Where
// data moves in pairwise flows, which any rank may begin at any time, all ranks go from instant to instant together.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/engine/engine.h"
#include "sim/engine/flow_network.h"
#include "sim/engine/lane_program.h"
#include "sim/engine/repeat.h"
#include "sim/engine/sharing.h"

namespace dbo {

inline constexpr std::int64_t kNever = INT64_MAX;

class ContendedRun {
 public:
  ContendedRun(const Plan& plan, const CostTable& costs, const EngineOptions& options);
  EngineResult run();

 private:
  enum class State : std::uint8_t {
    Event,    ///< waits for an event
    Host,     ///< waits for the host to get to it
    Pending,  ///< starts at `next`
    Sms,      ///< waits for SMs
    Peers,    ///< comm kernel: waits until every rank has started it
    Data,     ///< receive: waits for its last byte
    Running,
    Finish,  ///< comm kernel: waits for slower peers
    Done
  };

  /// A lane, or the wire into the rank.
  struct Actor {
    std::int64_t next = 0;  ///< its next event
    std::int64_t left = 0;  ///< of its own time, in 2^-20 ns, as of `since`
    std::int64_t since = 0;
    std::int64_t front = 0;  ///< when its lane is free
    const Share* share = nullptr;
    std::uint32_t item = 0;
    std::int32_t speed = 0;                 ///< -1: not yet set
    std::int32_t on_sms = 0, unshared = 0;  ///< Runner's sm_speed and unshared since `since`
    std::int32_t sm_speed = kFullSpeed;
    std::int32_t held = 0;  ///< SMs
    State state = State::Event;
    Limit limit = Limit::None;
    bool crossed = false;  ///< an event held the lane up last
    std::int64_t ready = 0, start = 0, moved = 0;
    std::int64_t release = kNever;  ///< when blocks leave SMs for a comm kernel that is short of them
    std::int64_t sent = 0, arrived = 0;
  };

  /// A call this rank has sent, from the send to its receive.
  struct Flight {
    std::uint32_t tag = 0, wire = 0;
    bool known = false;  ///< its slowest sender is
    std::int64_t arrival = -1;
  };

  struct Rank {
    std::int64_t now = 0, horizon = 0;
    std::int64_t port_free = 0;
    std::uint32_t program = 0, place = 0;  ///< place: group within the program
    std::uint32_t segment = 0;             ///< host waits passed
    std::int32_t unknown = 0;              ///< posts whose outcome is not known
    std::int32_t free_sms = 0, short_sms = 0;
    std::int32_t hbm_taken = 0;  ///< by pairwise flows, in 2^-20 of the memory's rate
    std::uint32_t head = 0;      ///< flights that have arrived
    int record = -1;
    bool changed = false, done = false;
    bool hungry = false;  ///< some op has fewer SMs than it can use
    std::vector<Flight> flights;
  };

  struct Call {
    std::uint32_t posted = 0, finished = 0;
    bool known = false, all_finished = false;
    std::int64_t latest = 0;     ///< end of the slowest send, or start of the last kernel
    std::int64_t last = 0;       ///< end of the slowest kernel's own work
    std::int64_t slow = 0;       ///< most that contention added to one
    std::int32_t last_in = -1;   ///< group that posted at `latest`, the first of several
    std::uint32_t received = 0;  ///< pairwise flows: ranks that have their data and need no more of the call
  };

  /// Pairwise flows: what a rank still waits for of one call.
  struct Delivery {
    std::uint32_t open = 0;     ///< flows that have not ended, begun or not
    std::int64_t last = 0;      ///< latest end of one
    std::int32_t last_in = -1;  ///< its other end
  };
  struct FlowStart {
    std::int64_t at = 0;
    std::uint32_t tag = 0;
    std::int32_t group = 0;
  };

  /// How many iterations the lanes were ahead of a mark and behind it when its state was taken.
  struct Reach {
    int mark = 0, ahead = 0, behind = 0;
  };

  using Lost = std::array<std::int64_t, kSlowCauses>;

  // contended_run.cpp: rounds, a rank's clock, lanes and calls.
  bool advance(Rank& rank, Actor* actors);
  void resolve(Rank& rank, Actor* actors);
  std::int64_t next_time(const Rank& rank, const Actor* actors) const;
  void process(Rank& rank, Actor* actors, std::int64_t now);
  bool release_due(Rank& rank, Actor* actors);
  bool start_due(Rank& rank, Actor* actors, bool comm);
  void feed(Rank& rank, Actor* actors, std::size_t lane);
  void set_value(Rank& rank, Actor* actors, std::uint32_t value, std::int64_t time);
  void move_host(Rank& rank, Actor* actors);
  void start(Rank& rank, Actor* actors, std::size_t lane);
  void begin(Rank& rank, Actor* actors, std::size_t lane);
  void begin_work(Rank& rank, Actor& actor, std::int64_t time);
  void end_event(Rank& rank, Actor* actors, std::size_t lane);
  void complete(Rank& rank, Actor* actors, std::size_t lane);
  void wire_event(Rank& rank, Actor* actors);
  void queue_wire(Rank& rank, Actor& wire);
  void take_flight(Rank& rank, std::size_t flight);
  void post_unknown(Rank& rank);
  void post(Rank& rank, std::uint32_t tag, std::int64_t time);
  bool resolve_calls();
  bool lift_horizons();
  [[noreturn]] void report_deadlock() const;

  // contended_flows.cpp: pairwise flows, on one clock for all ranks.
  void set_up_flows(const CostTable& costs);
  bool run_flows();
  void take_memory();
  void report_interval(std::int64_t to);
  void report_ports(std::int64_t from, std::int64_t to) const;
  std::int64_t next_instant() const;
  void join_call(std::uint32_t tag);
  void schedule_flows(const Rank& rank, std::uint32_t tag, std::int64_t at);
  void begin_flows();
  void end_flows();
  void begin_collective(Rank& rank, Actor& actor, const LaneItem& it);
  void meet(std::uint32_t tag);
  bool delivered(const Rank& rank, std::uint32_t tag) const;
  std::int64_t data_there(const Rank& rank, const LaneItem& it) const;
  void wake(Rank& rank, std::uint32_t tag);
  void take_data(const Rank& rank, Actor& actor, const LaneItem& it);
  void consume(std::uint32_t tag);
  bool know_calls();
  const std::vector<PairFlow>& flows_of(std::uint32_t tag) const {
    return costs_.flows.exchanges[static_cast<std::size_t>(exchange_of_tag_[tag])];
  }
  Delivery& delivery(std::uint32_t tag, std::size_t rank) { return deliveries_[tag * ranks_.size() + rank]; }
  const Delivery& delivery(std::uint32_t tag, std::size_t rank) const {
    return deliveries_[tag * ranks_.size() + rank];
  }
  std::size_t index(const Rank& rank) const { return static_cast<std::size_t>(&rank - ranks_.data()); }

  // contended_share.cpp: SMs and rates.
  void retime(Rank& rank, Actor* actors);
  void settle(Rank& rank, Actor* actors, std::size_t actor, std::int64_t now);
  void set_release(const Rank& rank, const Actor* actors, Actor& actor) const;
  void release(Rank& rank, Actor* actors, std::size_t lane);
  void give_back(Rank& rank, Actor* actors, std::size_t lane);
  void grant(Rank& rank, Actor* actors);
  static std::int32_t wanted_sms(const Rank& rank, const Actor& actor);
  bool take_sms(Rank& rank, Actor& actor, bool cooperative);
  void report_usage(const Rank& rank, const Actor* actors, std::int64_t to) const;
  void record(const Rank& rank, const Actor& actor, std::size_t lane);
  std::int32_t last_peer(const Rank& rank, std::uint32_t tag) const;

  // contended_repeat.cpp: stepping over cycles of layers.
  void append_flows(int mark, RunState& state, std::vector<std::uint32_t>& tags) const;
  void skip_flows(std::int64_t shift, std::uint32_t tags);
  RunState state_at(int mark, Reach& reach, std::vector<std::uint32_t>& tags);
  void append_rank(const Rank& rank, const Actor* actors, int mark, RunState& state, std::vector<std::uint32_t>& tags,
                   Reach& reach) const;
  int whole_cycles(const Repeat& repeat) const;
  bool look_for_repeat(int mark);
  void skip(const Repeat& repeat, int cycles, std::vector<std::uint32_t> tags);
  void skip_rank(Rank& rank, Actor* actors, int from, int to, std::int64_t shift);
  void fill_recorded(const Rank& rank, const Repeat& repeat, int cycles);

  const LaneItem& item(const Rank& rank, const Actor* actors, std::size_t lane) const {
    return programs_[rank.program].lanes[lane][actors[lane].item];
  }
  Actor* actors_of(const Rank& rank) { return &actors_[static_cast<std::size_t>(&rank - ranks_.data()) * stride_]; }
  const Actor* actors_of(const Rank& rank) const {
    return &actors_[static_cast<std::size_t>(&rank - ranks_.data()) * stride_];
  }
  std::int64_t* values_of(const Rank& rank) {
    return &values_[static_cast<std::size_t>(&rank - ranks_.data()) * most_values_];
  }
  const std::int64_t* values_of(const Rank& rank) const {
    return &values_[static_cast<std::size_t>(&rank - ranks_.data()) * most_values_];
  }
  std::int64_t* hosts_of(const Rank& rank) {
    return &hosts_[static_cast<std::size_t>(&rank - ranks_.data()) * most_points_];
  }
  const std::int64_t* hosts_of(const Rank& rank) const {
    return &hosts_[static_cast<std::size_t>(&rank - ranks_.data()) * most_points_];
  }
  std::int64_t own_time(const Rank& rank, std::uint32_t cost) const {
    return tapes_[rank.program].times[cost + rank.place];
  }

  const Plan& plan_;
  const CostTable& costs_;
  const EngineOptions& options_;
  MachineRates machine_;
  EngineResult result_;
  std::vector<Tape> tapes_;
  std::vector<LaneProgram> programs_;
  std::uint32_t tags_per_layer_ = 0;
  std::size_t lanes_ = 0, stride_ = 0;  ///< actors of a rank: its lanes and the wire
  std::int64_t node_gap_ = 0, graph_launch_ = 0;
  bool host_waits_ = false, looking_ = false;
  std::int64_t host_bound_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Actor> actors_;         ///< rank by rank
  std::vector<std::int64_t> values_;  ///< rank by rank: events and op ends, below 0: not yet
  std::vector<std::int64_t> hosts_;   ///< rank by rank: the host's clock at the end of each wait
  std::size_t most_values_ = 0, most_points_ = 0;
  std::vector<Call> calls_;           ///< by tag
  std::vector<int> mark_of_tag_;      ///< the mark whose iteration the call is the first of, or -1
  std::vector<std::uint32_t> fresh_;  ///< calls that everybody has posted or finished in this round
  std::vector<Lost> lost_;            ///< by recorded group, then lane
  std::vector<Runner> runners_;
  std::vector<std::size_t> running_;  ///< actor of each runner
  FlowNetwork network_;               ///< pairwise flows only, like all that follows
  bool flows_ = false;
  std::int64_t clock_ = 0;                 ///< of all ranks
  std::vector<int> exchange_of_tag_;       ///< index into the costs' exchanges
  std::vector<char> collective_;           ///< by tag: a comm kernel's, which also waits for what it sends
  std::vector<std::size_t> rank_of_cost_;  ///< by cost group
  std::vector<Delivery> deliveries_;       ///< by tag, then rank
  std::vector<std::uint32_t> under_way_;   ///< calls begun that some rank has yet to take the data of, ascending
  std::vector<FlowStart> starts_;          ///< in the order of their instants, then as scheduled
  std::vector<FlowNetwork::Ended> ended_;
  std::vector<std::int64_t> memory_;  ///< scratch of take_memory, by rank
  RepeatFinder finder_;
  std::vector<Reach> reaches_;
  std::pair<std::size_t, std::size_t> state_size_;  ///< numbers of the last state
};

}  // namespace dbo
