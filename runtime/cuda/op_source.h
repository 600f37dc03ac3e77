// Where a rank's launches come from: stand-ins of given durations, or the kernels of a MoE layer.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cuda/launch_table.h"
#include "runtime/cuda/peer_memory.h"
#include "runtime/measured_trace.h"

namespace dbo::runtime {

class OpSource {
 public:
  OpSource() = default;
  OpSource(const OpSource&) = delete;
  OpSource& operator=(const OpSource&) = delete;
  virtual ~OpSource() = default;

  virtual const LaunchTable& table() const = 0;
  /// Times that the ops of the last step stamped themselves, on the GPU's clock; empty when they do not. The step must
  /// be over.
  virtual std::vector<OpTime> times() const = 0;
  /// Whether comm kernels enqueued from here on note when their first block begins to run, where they can.
  virtual void watch_entries(bool /*on*/) {}
  /// By plan_op, what they noted in the last step, on the GPU's clock; 0 or absent: unknown. The step must be over.
  virtual std::vector<std::int64_t> entries() const { return {}; }
  /// What the other ranks' clocks are ahead of ours, for the launches enqueued on `stream` from here on, graphs that
  /// were made before included.
  virtual void set_clocks(const std::vector<ClockOffset>& clocks, cudaStream_t stream) = 0;
  /// The GPU's clock when the last step's first launch ran.
  virtual std::int64_t step_begin_ns() const = 0;
  /// NcclError naming the first op of the last step that gave up waiting for a rank; nothing when all came.
  virtual void check_arrivals() const = 0;
};

}  // namespace dbo::runtime
