// Launchers of the all-to-all kernels. All are asynchronous, allocate nothing, can be captured, and return
// cudaErrorInvalidValue for what they do not support. A call's buffers, order and spinning rules: call.h.
//
// Which launches make a call (views: layout.h; MLP = whatever fills expert_outputs):
//   lsa-ht       ht_dispatch | MLP | ht_combine
//   lsa-ll       ll_dispatch_send, ll_dispatch_receive | MLP | ll_combine_send, ll_combine_receive
//   copy-engine  copy_pack, copy_dispatch, copy_dispatch_receive | MLP | copy_combine_stamp, copy_combine,
//                copy_combine_receive; copies may go on a stream of their own, which waits for the pack (stamp)
//   nccl         nccl_pack, nccl_dispatch (nccl_exchange.h), nccl_unpack | MLP | nccl_combine (nccl_exchange.h),
//   nccl_reduce
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/a2a/call.h"

namespace dbo::kernels {

/// Loads all kernels of this header on the current device. Once per device before the first call: the runtime loads
/// kernels when they are first launched, and loading may wait for the device, on which another rank's kernel spins.
[[nodiscard]] cudaError_t preload_a2a();

/// Rows go straight into the peers' views, then arrivals are exchanged; ends when every source's rows are here.
[[nodiscard]] cudaError_t launch_ht_dispatch(const DispatchArgs& args, cudaStream_t stream);
/// Waits until all ranks have come here, pulls the outputs and adds them.
[[nodiscard]] cudaError_t launch_ht_combine(const CombineArgs& args, cudaStream_t stream);

[[nodiscard]] cudaError_t launch_ll_dispatch_send(const DispatchArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_ll_dispatch_receive(const A2aCall& call, cudaStream_t stream);  ///< one block
[[nodiscard]] cudaError_t launch_ll_combine_send(const A2aCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_ll_combine_receive(const CombineArgs& args, cudaStream_t stream);

/// cuStreamBatchMemOp, looked up in the driver.
struct StreamMemoryOps {
  void* batch = nullptr;
  bool found() const { return batch != nullptr; }
};
/// cudaErrorNotSupported where the driver has none; then `ops` stays empty, which is an arrival by epochs.
[[nodiscard]] cudaError_t find_stream_memory_ops(StreamMemoryOps* ops);

/// Copies of the copy-engine transport. `peers` and the row counts are read on the host, at the launch or the capture.
///
/// Arrival is by stream memory operations where there are such: the sender's stream writes a word behind the rows, the
/// receiver's stream waits for it and clears it. Nothing waits for an SM, so that a GEMM beside it holds nothing up.
/// A stream that waits has no deadline: whoever waits for the stream must have one (runtime/cuda/hang_guard.h).
/// Otherwise the sender copies its epoch behind the rows, and one warp compares it with its own, with the deadline of
/// the call; behind a GEMM that fills the registers of all SMs that warp waits for a block to end.
/// All calls on a buffer use the same way. Words need no more slots than epochs while dispatch and combine alternate;
/// dispatches alone, that nothing keeps from following each other, take two slots in turn.
struct CopyArgs {
  A2aCall call;
  std::byte* const* peers = nullptr;           ///< host array [ranks]: the same addresses as call.peers
  const std::int32_t* send_rows = nullptr;     ///< host [ranks]: rows copied to each rank; null: max_tokens
  const std::int32_t* receive_rows = nullptr;  ///< host [ranks]: rows that came from each rank; null: max_tokens
  StreamMemoryOps memory_ops;                  ///< from find_stream_memory_ops; empty: arrival by epochs
};

[[nodiscard]] cudaError_t launch_copy_pack(const DispatchArgs& args, cudaStream_t stream);
/// Instead of a pack, to send the same rows again: advances the slot's epoch. Nothing to do when words tell the arrival
/// and no wire is emulated.
[[nodiscard]] cudaError_t launch_copy_advance(const A2aCall& call, cudaStream_t stream);
/// Row copies to the peers, each followed by its arrival. Uses send_rows.
[[nodiscard]] cudaError_t launch_copy_dispatch(const CopyArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_copy_dispatch_receive(const CopyArgs& args, cudaStream_t stream);
/// On the stream before copy_combine: tells the peers when this rank's outputs were ready. Does nothing without an
/// emulated wire.
[[nodiscard]] cudaError_t launch_copy_combine_stamp(const A2aCall& call, cudaStream_t stream);
/// Output copies to the ranks the rows came from. Uses receive_rows.
[[nodiscard]] cudaError_t launch_copy_combine(const CopyArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_copy_combine_receive(const CombineArgs& args, const CopyArgs& copies,
                                                      cudaStream_t stream);

[[nodiscard]] cudaError_t launch_nccl_pack(const DispatchArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_nccl_unpack(const A2aCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_nccl_reduce(const CombineArgs& args, cudaStream_t stream);

/// Estimates another GPU's %globaltimer minus this one's: `rounds` of question and answer through the clock boxes of
/// the two buffers, keeping the quickest. Launch it on both ranks of a pair at the same time, one of them as `asks`.
struct ClockProbeArgs {
  A2aCall call;  ///< uses base, peers, layout, deadline_ns
  int peer = 0;
  bool asks = false;
  int rounds = 64;
  std::int64_t* offset_ns = nullptr;  ///< device; written by the asking side: peer's clock minus ours
};
[[nodiscard]] cudaError_t launch_clock_probe(const ClockProbeArgs& args, cudaStream_t stream);

}  // namespace dbo::kernels
