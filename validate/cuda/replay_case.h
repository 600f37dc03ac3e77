// Replays both plans of a case on this machine's GPUs: numerics first, then interleaved steps, then traced ones.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/hang_guard.h"
#include "runtime/cuda/rank_replay.h"
#include "validate/case.h"
#include "validate/cuda/anchor.h"
#include "validate/cuda/clock_meter.h"
#include "validate/measured.h"
#include "validate/outcome.h"

namespace dbo::validate {

struct ReplayRules {
  int iterations = 20;  ///< of each plan and way, interleaved
  int warmup = 3;
  int traced = 7;
  bool windows = false;         ///< exchange through NCCL windows instead of peer-mapped memory
  std::string inject;           ///< code of a fault to plant into the split step (validate/fault.h); empty: none
  Ns deadline{20'000'000'000};  ///< for a peer to come
  bool announce = false;        ///< says on stderr when the timed steps begin
  bool processes = false;       ///< ranks are processes: when one is lost nobody stops the others
};

/// Ranks whose replay can be stopped from outside, when another one fails.
class LiveReplays {
 public:
  /// In the list as long as the handle lives, which must not outlive the replay.
  [[nodiscard]] std::shared_ptr<void> add(int rank, runtime::RankReplay* replay);
  void stop(int rank);

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, runtime::RankReplay*>> live_;
};

/// What was measured; device, versions and the highest clock are the caller's to add. Whole on the group's first rank.
/// One rank's part; collective over the group, one rank a GPU.
MeasuredCase replay_case(runtime::HostGroup& group, int gpu, const ValidationCase& validated, runtime::HangGuard& guard,
                         LiveReplays& live, const ReplayRules& rules);

}  // namespace dbo::validate
