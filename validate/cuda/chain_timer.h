// Times launches on a GPU: captured into graphs, many of a kind behind each other, between two events, repeated until
// the spread is small.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <optional>
#include <vector>

#include "runtime/cuda/handles.h"
#include "runtime/host_group.h"
#include "runtime/measured_trace.h"
#include "validate/cuda/clock_meter.h"

namespace dbo::validate {

/// Something to enqueue on a stream.
using Enqueue = std::function<void(cudaStream_t)>;

/// Waits for the stream's work; throws CudaError with `what` when it does not end within `deadline`.
void await(cudaStream_t stream, Ns deadline, const std::string& what);

/// Device-side times of a graph's replays.
struct Timing {
  double median_us = 0;
  double spread_us = 0;  ///< between the quartiles
  int repeats = 0;
  double mhz = 0;  ///< SM clock while the replays ran, pauses inside them included

  Timing per(double count) const { return {median_us / count, spread_us / count, repeats, mhz}; }
};
Timing timing_of(std::vector<double> us, double mhz = 0);

/// How often a graph is replayed.
struct RepeatRule {
  int least = 5, most = 15;
  double spread = 0.01;  ///< enough when the quartiles are this close, relative to the median
  double most_ms = 150;  ///< of device time, after the least number
  double busy_us = 0;  ///< the same replays that run right before each timed one, at least: no pause lets the GPU rest
};

/// One rank's timer. Ranks that exchange data time together: every function is collective over the group, and all
/// ranks stop repeating together.
class ChainTimer {
 public:
  /// On the current GPU. `sides`: streams that the launches enqueue on besides (they fork and join).
  ChainTimer(runtime::HostGroup& group, std::vector<cudaStream_t> sides);

  cudaStream_t stream() const { return stream_.get(); }
  cudaStream_t other() const { return other_.get(); }

  /// Enqueues and awaits, without a graph.
  void run(const Enqueue& work);

  /// By how much `work` takes longer, in us, when its kernels are launched one by one instead of by a graph. `hold`
  /// keeps the GPU while the host launches. Nothing when the host was slower than that.
  std::optional<double> eager_extra(const Enqueue& work, const Enqueue& hold, const RepeatRule& rule);

  /// Kernels that a launch enqueues.
  int count_kernels(const Enqueue& work);

  /// Median time of one of `links`, `count` of which run behind each other in turn, after `lead` (not timed).
  Timing chain(const std::vector<Enqueue>& links, int count, const Enqueue& lead, const RepeatRule& rule);

  /// Of one pass through `links`, repeated `passes` times in a graph: the time from event to event around each link,
  /// medians over passes and replays. Events take time of their own.
  std::vector<Timing> links(const std::vector<Enqueue>& links, int passes, const Enqueue& lead, const RepeatRule& rule);

  /// Two lanes at once, forked together: `rounds` of all of `compute` beside `passes` of `comm`, one of which runs
  /// ahead. The clock is that of both together: where communication is alone before and behind, it is `alone_mhz`.
  struct Beside {
    std::vector<Timing> compute;  ///< of each, from event to event
    std::vector<Timing> comm;     ///< from event to event, of those that ran while computation did
    bool covered = false;         ///< whether communication lasted at least as long
  };
  Beside beside(const std::vector<Enqueue>& compute, int rounds, const std::vector<Enqueue>& comm, int passes,
                double alone_mhz, const RepeatRule& rule);

 private:
  runtime::Graph record(const std::function<void()>& enqueue);
  runtime::GraphExec capture(const std::function<void()>& enqueue);
  /// Replays until the rule is met; `read` takes the times of one replay and returns the one the rule looks at.
  int repeat(const runtime::GraphExec& graph, const RepeatRule& rule, const std::function<double()>& read);
  int most_of_ranks(double mine);
  const runtime::Event& event(std::size_t index);
  void mark(std::size_t index, cudaStream_t stream);
  double between(std::size_t from, std::size_t to);

  runtime::HostGroup& group_;
  std::vector<cudaStream_t> sides_;
  runtime::Stream stream_, other_;
  runtime::Event fork_, join_;
  std::vector<runtime::Event> side_joins_;
  ClockMeter clock_;
  double mhz_ = 0;  ///< of the last replays
  std::vector<runtime::Event> events_;
};

}  // namespace dbo::validate
