// The engine without contention: a plan and its costs to times. Nothing is shared, so a step is one pass over the host
// order of each class, all rank groups of a class side by side; ranks meet where data of one needs data of all.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/base/units.h"
#include "sim/engine/tape.h"

namespace dbo {

/// What the start of an op waited for last.
enum class Bound : std::uint8_t {
  Start,  ///< nothing: the step began with it
  Host,   ///< the host issued it
  Lane,   ///< the op before it on its lane
  Event   ///< a wait on another lane
};

/// One op of one rank group, in ns from the start of the step.
struct OpTimes {
  std::int64_t start = 0, end = 0;
  std::int64_t issued = 0;  ///< when the host had launched it
  std::int64_t sent = 0;    ///< Recv, Collective: when the slowest rank had sent or started
  std::int64_t arrived =
      0;  ///< Recv: when its last byte was there; Collective: its end; Send: when its receive's data is
  Bound bound = Bound::Start;
};

struct EngineOptions {
  /// Fold groups whose op times are kept. Empty: none.
  std::vector<int> record;
  /// Called when every class has reached the mark of that number (MoE iterations only); return false to stop the run
  /// there. The state is that of all classes, in a fixed order: host clocks, lanes, live events, live arrivals, ports.
  std::function<bool(int mark, const std::vector<std::int64_t>& host, const std::vector<std::int64_t>& state)> on_mark;
};

struct EngineResult {
  Folding folding;
  std::vector<std::int64_t> step_ns;        ///< by fold group: end of its last op
  std::vector<std::vector<OpTimes>> times;  ///< by recorded group, then op of its class's linear order
  std::vector<Linear> linear;               ///< by class
  std::int64_t step() const;                ///< end of the last op of any rank
  int slowest() const;                      ///< the group that ends last; the first of equal ones
};

/// Throws FindingError when the plan cannot run to its end: a deadlock among its threads (with linearise's words) or
/// across ranks (who waits for whose dispatch or combine).
EngineResult run_engine(const Plan& plan, const CostTable& costs, const EngineOptions& options = {});

}  // namespace dbo
