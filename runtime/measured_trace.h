// From times taken on GPUs to a trace that joins with the predicted one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"
#include "traces/trace.h"

namespace dbo::runtime {

/// One op as measured, on its GPU's own clock in ns.
struct OpTime {
  bool ran = false;
  std::int64_t begin_ns = 0;    ///< its first kernel began
  std::int64_t ready_ns = 0;    ///< receives and comm kernels that tell: what they waited for was there; else 0
  std::int64_t end_ns = 0;      ///< its last kernel ended
  int sms = 0;                  ///< SMs its kernels were seen on, or blocks of its largest; 0: unknown
  int lane = -1;                ///< it was launched on; -1: nobody looked, so the planned one
  std::int64_t entered_ns = 0;  ///< its first block began to run, by kernels that tell; 0: unknown
};

/// One rank's step.
struct RankTimes {
  int rank = 0;
  std::vector<OpTime> ops;       ///< by plan_op
  std::int64_t clock_ns = 0;     ///< this rank's clock minus rank 0's
  std::int64_t residual_ns = 0;  ///< how wrong that may be
};

/// The trace of a step. Time 0 is the begin of the first op of the first rank given. An op that has not run has no
/// slice. The metadata gets the plan's hash and, with several ranks, the clock residual.
Trace measured_trace(const Plan& plan, const std::vector<const Linear*>& linear, const std::vector<RankTimes>& ranks);

/// One line of text and back: how ranks of other processes hand their times over. `decode` throws InternalError on text
/// that `encode` did not make.
std::string encode_times(const RankTimes& times);
RankTimes decode_times(const std::string& text);

/// First begin to last end of one rank's ops; zero when none ran.
Ns step_time(const RankTimes& times);

/// A median of measurements with its spread.
struct Spread {
  Ns median{}, p10{}, p90{};
  int count = 0;
};
Spread spread_of(std::vector<Ns> values);

/// Gaps between an op and the one before it on its lane, over a step: `same_lane` where nothing but that op had to end
/// first, `cross_lane` where the wait of another lane's op ended last. Receives and comm kernels, which wait for peers,
/// are left out.
struct LaneGaps {
  std::vector<Ns> same_lane, cross_lane;
};
LaneGaps lane_gaps(const Plan& plan, const Linear& linear, const RankTimes& times);

}  // namespace dbo::runtime
