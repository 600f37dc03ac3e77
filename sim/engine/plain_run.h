// One run of the plain executor: clocks of hosts, lanes and ports by rank group, and the calls under way. Internal to
// sim/engine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/engine/engine.h"
#include "sim/engine/repeat.h"
#include "sim/engine/tape.h"

namespace dbo {

class PlainRun {
 public:
  PlainRun(const Plan& plan, const CostTable& costs, const EngineOptions& options);
  EngineResult run();

 private:
  using Times = std::vector<std::int64_t>;

  /// A dispatch or combine call across all ranks.
  struct Call {
    int programs_in = 0;      ///< programs whose ranks have all sent or started
    std::int64_t latest = 0;  ///< end of the slowest send, or start of the last kernel
    std::int32_t last = -1;   ///< its group, the first of several; found for recorded runs only
    Times arrival;            ///< by group: last byte there (send and receive), end (kernel); below 0: not yet
    Times start;              ///< by group: own start of a kernel
  };

  static constexpr std::int64_t kUnknown = -1, kStarted = -2;

  std::size_t begin(std::size_t p) const { return static_cast<std::size_t>(result_.folding.of_program[p].first); }
  std::size_t width(std::size_t p) const {
    return static_cast<std::size_t>(result_.folding.of_program[p].second) - begin(p);
  }
  std::size_t program_of(std::size_t group) const {
    const auto c = static_cast<std::size_t>(result_.folding.groups[group].class_index);
    return static_cast<std::size_t>(result_.folding.program_of_class[c]);
  }
  const Linear& linear_of(std::size_t group) const { return result_.linear.of_program(program_of(group)); }
  bool all_in(const Call& call) const { return call.programs_in == static_cast<int>(tapes_.size()); }

  // plain.cpp: steps of a program's host order, for all its groups.
  bool advance(std::size_t p);
  bool execute(std::size_t p, const TapeStep& step);
  void charge_host(std::size_t p, const TapeStep& step);
  void wait(std::size_t p, const TapeStep& step);
  void starts(std::size_t p, const TapeStep& step);
  void finish(std::size_t p, const TapeStep& step);
  void launch(std::size_t p, const TapeStep& step);
  void send(std::size_t p, const TapeStep& step);
  void post(std::size_t p, Call& call, const Times& times) const;
  bool deliver(std::size_t p, std::uint32_t tag);
  bool receive(std::size_t p, const TapeStep& step);
  bool collective(std::size_t p, const TapeStep& step);
  void host_wait(std::size_t p, const TapeStep& step);
  void record(std::size_t p, const TapeStep& step, const Call* call);
  Bound bound(const TapeStep& step, std::size_t group, std::int64_t start) const;
  [[noreturn]] void report_deadlock() const;

  // plain_repeat.cpp: stepping over cycles of layers.
  bool at_mark() const;
  RunState state() const;
  bool look_for_repeat();
  int whole_cycles(const Repeat& repeat) const;
  void skip(const Repeat& repeat, int cycles);
  void move_calls(std::size_t target, std::int64_t shift);
  void move_values(std::size_t p, std::size_t target, std::int64_t shift);
  void fill_recorded(std::size_t p, const Repeat& repeat, std::size_t target, const Times& host_cycle);

  const Plan& plan_;
  const EngineOptions& options_;
  EngineResult result_;
  std::size_t groups_ = 0;
  std::uint32_t tags_per_layer_ = 0;
  std::vector<Tape> tapes_;
  std::vector<Call> calls_;  ///< by tag
  std::int64_t node_gap_ = 0, lane_gap_ = 0, host_bound_ = 0;
  bool host_waits_ = false, looking_ = false;
  // By group: the host's clock, when each lane is free, the last event that held the lane up, when the port is free.
  Times host_, port_;
  std::vector<Times> lanes_, crossed_;
  std::vector<std::vector<char>> used_;  ///< by lane, then program: an op has run there
  std::vector<Times> slots_;             ///< by program: slot, then group
  /// By program: calls sent but not yet delivered, with the offset of their wires.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> in_flight_;
  std::vector<std::uint32_t> position_;
  std::vector<std::size_t> next_mark_;
  std::vector<std::vector<std::size_t>> recorded_;  ///< by program: indices into options_.record
  RepeatFinder finder_;
  Times start_, end_;
};

}  // namespace dbo
