// A plan's table from a profile, priced once and set to any SM clock: what the clock changes of an op is kept beside
// it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/cost/cost_table.h"

namespace dbo {

/// A time, and the SM clock it was measured at; 0: not known.
struct ClockedTime {
  double ns = 0, mhz = 0;
};

/// Time over the clock, from measurements at two: what waits for memory stays, the rest goes with the clock's period.
struct ClockCurve {
  ClockedTime dense, relaxed;  ///< without and with pauses

  /// Whether the clocks lie far enough apart to say anything.
  bool known() const { return dense.mhz > 0 && relaxed.mhz > dense.mhz * 1.02; }
  double at(double mhz) const {
    const double slope = (dense.ns - relaxed.ns) / (1 / dense.mhz - 1 / relaxed.mhz);
    return relaxed.ns + std::clamp(slope, 0.0, relaxed.ns * relaxed.mhz) * (1 / mhz - 1 / relaxed.mhz);
  }
};

/// What decides the clock of a GPU at its power limit.
struct PowerState {
  double duty = 1;    ///< share of the time for which it computes; of the batch's own clocks, the one at that share
  double sm_mhz = 0;  ///< the clock itself, where something else than the plan decides it; 0: as `duty` says
};

/// One computation over the clock. Cells that cost the same share one.
struct ClockedCost {
  ClockCurve curve;                       ///< alone
  double dense_mhz = 0, relaxed_mhz = 0;  ///< clocks its batch leaves the GPU, without and with pauses; 0: not known
  bool in_company = false;                ///< measured beside the other sort, too:
  ClockedTime company;
  Ns time{}, beside{};  ///< analytical: what was not measured beside anything keeps their proportion
  Ns gaps{};            ///< between its kernels, whatever the clock
  double pace = 1;      ///< of its rank

  /// The clock at `power`; 0: not known. `relaxed_duty`: share of the time that the points with pauses computed.
  double mhz(const PowerState& power, double relaxed_duty) const;
  /// OpCost's, at a clock (0: the one without pauses).
  Ns time_at(double mhz) const;
  Ns beside_at(double mhz, Ns time_then) const;
};

class ClockedCosts {
 public:
  /// No clock changes it.
  explicit ClockedCosts(CostTable table) : table_(std::move(table)) {}
  /// `table`: cells whose `curve` is not -1 follow `costs[curve]`. `relaxed_duty` in percent; 100: there are no points
  /// with pauses. `loss_share`: of what computation loses beside comm kernels, the part it does lose; `computes` [ops].
  ClockedCosts(CostTable table, std::vector<ClockedCost> costs, int relaxed_duty, double loss_share,
               std::vector<bool> computes);

  /// Prices computation at the clock that `power` comes to.
  void set(const PowerState& power);

  const CostTable& table() const { return table_; }
  CostTable take() && { return std::move(table_); }
  /// Whether another power makes another table.
  bool has_clocks() const { return relaxed_duty_ < 100; }

 private:
  template <typename Change>
  void each_computation(const Change& change);
  Ns with_loss(Ns time, Ns beside) const;

  CostTable table_;
  std::vector<ClockedCost> costs_;
  int relaxed_duty_ = 100;
  double loss_share_ = 1;
  std::vector<bool> computes_;
};

}  // namespace dbo
