// The one-warp kernels of copy-engine: epochs as arrival, and emulated wires.
#pragma once

#include "kernels/a2a/signal.cuh"

namespace dbo::kernels::device {

inline constexpr int kArrivalThreads = 32;

/// Tells all ranks that what this rank sends was ready now, for an emulated wire.
DBO_DEVICE void stamp_peers(const A2aCall& c, std::size_t stamp) {
  const std::uint64_t now = stamp_now(c);
  for (int rank = thread_index(); rank < c.layout.dims.ranks && now > 0; rank += block_threads()) {
    store_release(control<std::uint64_t>(c, c.peers[rank], stamp) + source_at(c, rank), now);
  }
}

DBO_TINY_KERNEL copy_advance_kernel(DBO_PARAM A2aCall c) {
  stamp_peers(c, c.layout.dispatch_stamp);
  if (thread_index() == 0) state(c).epoch += 1;
}

DBO_TINY_KERNEL copy_combine_stamp_kernel(DBO_PARAM A2aCall c) {
  stamp_peers(c, c.layout.combine_stamp);
}

/// Waits until every other rank's epoch has been copied here.
DBO_TINY_KERNEL copy_arrival_kernel(DBO_PARAM A2aCall c) {
  const std::uint32_t epoch = state(c).epoch;
  if (thread_index() == 0) report(c, epoch, ProgressStage::Waiting);
  wait_for_sources(c, WaitOp::CopyDispatch, c.layout.dispatch_flag, 1, epoch);
  hold_for_sources(c, WaitOp::CopyDispatch, c.layout.dispatch_stamp);
  if (thread_index() == 0) report(c, epoch, ProgressStage::Done);
}

/// Behind an arrival that the stream has waited for: holds until the emulated wire has delivered.
DBO_TINY_KERNEL copy_hold_kernel(DBO_PARAM A2aCall c, DBO_PARAM WaitOp op, DBO_PARAM std::size_t stamp) {
  hold_for_sources(c, op, stamp);
}

}  // namespace dbo::kernels::device
