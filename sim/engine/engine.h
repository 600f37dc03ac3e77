// The engine: a plan and its costs to times. Where nothing is shared, a step is one pass over the host order of each
// program; where SMs, memory or ports are shared, the ops of a rank run as discrete events. Ranks meet where data of
// one needs data of all. Order is an input: neither executor picks what runs next on a lane.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/base/units.h"
#include "sim/engine/fold.h"

namespace dbo {

/// What the start of an op waited for last.
enum class Bound : std::uint8_t {
  Start,  ///< nothing: the step began with it
  Host,   ///< the host issued it
  Lane,   ///< the op before it on its lane
  Event,  ///< a wait on another lane
  Sms     ///< other kernels' SMs
};

/// What made an op slower than alone.
enum class SlowCause : std::uint8_t {
  Sms,     ///< it ran on fewer SMs than its own
  Hbm,     ///< memory bandwidth was shared
  Link,    ///< the scale-up port was
  Nic,     ///< the NIC was
  Beside,  ///< what overlap costs beyond shared rates (OpDemand::beside)
};
inline constexpr int kSlowCauses = 5;

/// One op of one rank group, in ns from the start of the step.
struct OpTimes {
  std::int64_t start = 0, end = 0;
  std::int64_t issued = 0;  ///< when the host had launched it
  std::int64_t ready = 0;   ///< at the head of its lane, issued, waits met; until `start` it waited for SMs
  std::int64_t sent = 0;    ///< Recv, Collective: when the slowest rank had sent or started
  std::int64_t arrived =
      0;  ///< Recv: when its last byte was there; Collective: its end; Send: when its receive's data is
  std::int64_t moved = 0;  ///< when its own work was done: its end, or earlier where a kernel waits for slower peers
  std::int32_t last = -1;  ///< Recv, Collective: the group that sent or started last, of several the first
  Bound bound = Bound::Start;
  std::array<std::int64_t, kSlowCauses> lost{};  ///< ns its own work took longer than alone, by SlowCause

  friend bool operator==(const OpTimes&, const OpTimes&) = default;
};

/// The running ops of one rank group between two instants, for audits: what they took of each resource.
struct Usage {
  int group = 0;
  std::int64_t from = 0, to = 0;
  std::int32_t sms = 0;                     ///< held, waiting kernels' included
  std::int64_t hbm = 0, link = 0, nic = 0;  ///< of what there is, in 2^-20
};

/// What the open flows of all ranks take of one port between two instants, of what it carries; for audits.
struct PortUsage {
  std::int32_t port = 0;
  std::int64_t from = 0, to = 0;
  std::int64_t used = 0, rate = 0;  ///< work a nanosecond
};

enum class Executor : std::uint8_t { Auto, Plain, Contended };

struct EngineOptions {
  /// Fold groups whose op times are kept. Empty: none.
  std::vector<int> record;
  /// Auto: contended where the costs' machine shares anything that ops ask for. Pairwise flows always are.
  Executor executor = Executor::Auto;
  /// Steps over whole cycles of MoE layers once the state repeats exactly. The results are the same without.
  bool extrapolate = true;
  /// Stop where the state first repeats; `repeat` says how. Times are then those of a part of the step.
  bool stop_at_repeat = false;
  /// Contended executor only: called for every interval in which a group's running ops did not change. Turns
  /// extrapolation off.
  std::function<void(const Usage&)> audit;
  /// The same for the ports of pairwise flows.
  std::function<void(const PortUsage&)> audit_ports;
};

/// Exact repetition: what happened in the cycle before mark `mark` happens again, later by `cycle_ns`.
struct Repeat {
  int mark = 0;        ///< MoE iteration at whose beginning it was seen
  int iterations = 0;  ///< of a cycle
  std::int64_t cycle_ns = 0;
  int skipped = 0;  ///< iterations that were not simulated
};

struct EngineResult {
  Folding folding;
  std::vector<std::int64_t> step_ns;        ///< by fold group: end of its last op
  std::vector<std::vector<OpTimes>> times;  ///< by recorded group, then op of its class's linear order
  Linears linear;                           ///< by class
  std::optional<Repeat> repeat;
  /// The latest time of the state at each MoE iteration that was simulated; pairwise flows: when its last rank came.
  std::vector<std::int64_t> mark_ns;
  bool contended = false;

  std::int64_t step() const;  ///< end of the last op of any rank
  int slowest() const;        ///< the group that ends last; the first of equal ones
};

/// Throws FindingError when the plan cannot run to its end: a deadlock among its threads (with linearise's words) or
/// across ranks (who waits for whose dispatch or combine).
EngineResult run_engine(const Plan& plan, const CostTable& costs, const EngineOptions& options = {});

/// Whether ops of the plan can slow each other down: the machine shares something, and some op asks for it.
bool is_contended(const Plan& plan, const CostTable& costs);

}  // namespace dbo
