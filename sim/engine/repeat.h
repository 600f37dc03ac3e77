// Finding where a run repeats itself: states at successive layer boundaries that differ by a shift in time alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "sim/engine/engine.h"

namespace dbo {

/// Everything the rest of a run depends on besides the instructions ahead, at one mark.
struct RunState {
  std::vector<std::int64_t> times;   ///< shift together when the run repeats
  std::vector<std::int64_t> values;  ///< remaining work, rates, positions counted from the mark: stay as they are
  std::vector<std::int64_t> hosts;   ///< the hosts' clocks
  std::int64_t host_bound = 0;       ///< starts so far that waited for the host alone
  bool host_waits = false;           ///< hosts wait for the GPU, so that their clocks must shift with it
  int mark = 0;
  std::int64_t newest = 0;  ///< of `times`

  /// To be called when `times` is complete.
  void set_newest();
  std::int64_t latest() const;
};

/// The shift in time after which `later` goes on as `earlier` did, given equal instructions. A time that no longer
/// moves must lie behind all that do, so that no later maximum can pick it; a host that falls behind must not have held
/// up any start in between, and then never will.
std::optional<std::int64_t> repeat_shift(const RunState& earlier, const RunState& later);

class RepeatFinder {
 public:
  /// Compares with the states before, the nearest first; keeps it. `acceptable` says whether the instructions repeat
  /// with that cycle too.
  std::optional<Repeat> add(RunState state, const std::function<bool(const Repeat&)>& acceptable);
  /// The state at the beginning of the cycle that `add` found.
  const RunState& cycle_begin(const Repeat& repeat) const;

 private:
  std::deque<RunState> seen_;
};

/// Writes the times of the ops that were stepped over. `order` lists the ops of a lane (or of the whole program): the
/// one at place i in [first, end) is the one `cycle` places before it, `repeat.cycle_ns` later, its issue `host_shift`
/// later.
struct SkippedOps {
  const std::vector<std::uint32_t>& order;
  std::size_t first = 0, end = 0, cycle = 0;
};
void fill_skipped(std::vector<OpTimes>& times, const Plan& plan, const Linear& linear, const SkippedOps& ops,
                  std::int64_t shift, std::int64_t host_shift);

/// Gives every send the arrival of its receive.
void fill_arrivals(std::vector<OpTimes>& times, const Plan& plan, const Linear& linear);

}  // namespace dbo
