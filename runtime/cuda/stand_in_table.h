// A launch table of stand-in kernels: every op lasts what it is told, arrivals and wires are kept.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/op_source.h"
#include "runtime/cuda/peer_memory.h"
#include "runtime/host_group.h"
#include "runtime/measured_trace.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::runtime {

/// What one launch stands for.
struct StandInWork {
  Ns time{};    ///< compute op, send, receive after its data is there, copy; comm kernel from the last rank's begin
  Ns wire{};    ///< receive: from the end of the slowest send
  Ns notify{};  ///< comm kernel: until the counts are known
  int blocks = 1;
  bool whole_sm = true;         ///< its blocks share no SM with other ops'
  std::int64_t copy_bytes = 0;  ///< moved by its SMs meanwhile: sends, comm kernels to the next rank; not receives
};

struct StandInOptions {
  Ns deadline{5'000'000'000};  ///< how long a launch waits for its peers
};

/// What the timers of the current GPU are like; some milliseconds.
kernels::TimerProbe probe_timer();

/// One rank's stand-ins: mailbox, stamps and copy buffers, all allocated before the first step.
class StandInTable final : public OpSource {
 public:
  /// Collective. `work` by plan_op; `progress` a word per lane. The arguments must outlive the table.
  StandInTable(HostGroup& group, const Placement& placement, const Plan& plan, const Linear& linear,
               const std::vector<StandInWork>& work, const HostWords& progress, const kernels::TimerProbe& timer,
               StandInOptions options = {});

  const LaunchTable& table() const override { return table_; }
  std::vector<OpTime> times() const override;
  std::int64_t step_begin_ns() const override;
  void set_clocks(const std::vector<ClockOffset>& clocks, cudaStream_t stream) override;
  void check_arrivals() const override;

  /// By plan_op: bit s is set when a block ran on SM s.
  std::vector<std::vector<bool>> sms_used() const;

 private:
  kernels::StandInArgs args_of(std::uint32_t plan_op, const StandInWork& work, const HostWords& progress) const;
  std::vector<kernels::OpStamp> read_stamps() const;

  const Plan& plan_;
  const Linear& linear_;
  StandInOptions options_;
  int rank_, ranks_, calls_ = 0;
  kernels::TimerProbe timer_{};
  DeviceBuffer mailbox_, stamps_, source_, target_, clocks_;
  PeerMemory mailboxes_, targets_;
  HostWords notify_;
  std::vector<std::uint32_t> ordinal_;
  LaunchTable table_;
};

}  // namespace dbo::runtime
