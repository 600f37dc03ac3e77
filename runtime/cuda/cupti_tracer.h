// The full measured trace: every kernel and copy of every op from CUPTI's activity records, inside graphs too.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/op_observer.h"
#include "runtime/measured_trace.h"

namespace dbo::runtime {

/// One kernel, copy or fill as CUPTI saw it. Times on CUPTI's clock, ns.
struct Activity {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::uint64_t graph_node = 0;  ///< id of the executable graph's node; 0: launched eagerly
  std::uint32_t correlation = 0;
  std::uint32_t gpu = 0;
  int blocks = 0;  ///< of the grid; 0 for copies
  /// For people: the kernel's (mangled) name, or "copy", "copy to host", "fill". Kept only of what no op claims.
  const char* name = "";
};

/// CUPTI for this process. One session: start it once, after the GPUs, before graphs are captured and instantiated that
/// are to be traced; then trace as many steps as wanted.
class CuptiTracer {
 public:
  CuptiTracer();
  ~CuptiTracer();
  CuptiTracer(const CuptiTracer&) = delete;
  CuptiTracer& operator=(const CuptiTracer&) = delete;

  /// What tells one rank's launches to the tracer (`ops`: the plan's and one for the step's own first launches): give
  /// it to the rank's device. Lives as long as the tracer, or until the rank asks for one with another number of ops.
  OpObserver& observer(int rank, std::size_t ops);

  /// Forgets what was recorded so far. No step of the calling thread's GPU may run.
  void clear();
  /// The ops of `rank` since `clear`: an op begins with its first kernel and ends with its last; `sms` is the largest
  /// grid. The steps of all ranks of the process must be over: what still runs would be lost.
  std::vector<OpTime> times(int rank);
  /// What belonged to no op at the last call of `times`, by name: reading stamps back is a "copy to host".
  const std::map<std::string, int>& unclaimed() const { return unclaimed_; }

  /// For CUPTI's callbacks.
  void add(const Activity& activity);
  void add_external(std::uint64_t key, std::uint32_t correlation);
  void node_cloned(std::uint64_t original, std::uint64_t clone);

 private:
  class Observer;

  void flush();

  std::mutex mutex_;
  void* subscriber_ = nullptr;
  std::map<int, std::unique_ptr<Observer>> observers_;
  std::vector<Activity> activities_;
  // Keys name an op of a rank. Eager launches by correlation id, graph nodes by node id.
  std::map<std::uint32_t, std::uint64_t> key_of_correlation_;
  std::map<std::uint64_t, std::uint64_t> key_of_node_;
  std::map<std::string, int> unclaimed_;
};

}  // namespace dbo::runtime
