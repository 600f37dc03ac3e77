// Launchers of the all-to-all kernels. All are asynchronous, allocate nothing, can be captured, and return
// cudaErrorInvalidValue for what they do not support. A call's buffers, order and spinning rules: call.h.
//
// Which launches make a call (views: layout.h; MLP = whatever fills expert_outputs):
//   lsa-ht       ht_dispatch | MLP | ht_combine
//   lsa-ll       ll_dispatch_send, ll_dispatch_receive | MLP | ll_combine_send, ll_combine_receive
//   copy-engine  copy_pack, copy_dispatch, copy_dispatch_receive | MLP | copy_combine, copy_combine_receive
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

/// How a copy-engine receive learns that the copies have arrived.
enum class Arrival : std::uint8_t {
  EpochCopy,  ///< the sender copies its epoch word behind the rows; a kernel compares it with its own (has a deadline)
  StreamMemory  ///< the sender's stream writes a word, the receiver's stream waits for it and clears it: no kernel, no
                ///< deadline
};

/// cuStreamWriteValue32 and cuStreamWaitValue32, looked up in the driver.
struct StreamMemoryOps {
  void* write32 = nullptr;
  void* wait32 = nullptr;
};
[[nodiscard]] cudaError_t find_stream_memory_ops(StreamMemoryOps* ops);

/// Copies of the copy-engine transport. `peers` and the row counts are read on the host, at the launch or the capture.
struct CopyArgs {
  A2aCall call;
  std::byte* const* peers = nullptr;           ///< host array [ranks]: the same addresses as call.peers
  const std::int32_t* send_rows = nullptr;     ///< host [ranks]: rows copied to each rank; null: max_tokens
  const std::int32_t* receive_rows = nullptr;  ///< host [ranks]: rows that came from each rank; null: max_tokens
  Arrival arrival = Arrival::EpochCopy;
  StreamMemoryOps memory_ops;  ///< for StreamMemory
};

[[nodiscard]] cudaError_t launch_copy_pack(const DispatchArgs& args, cudaStream_t stream);
/// Advances the slot's epoch without packing: sends the same rows again.
[[nodiscard]] cudaError_t launch_copy_advance(const A2aCall& call, cudaStream_t stream);
/// Row copies to the peers, each followed by its arrival. Uses send_rows.
[[nodiscard]] cudaError_t launch_copy_dispatch(const CopyArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_copy_dispatch_receive(const CopyArgs& args, cudaStream_t stream);
/// With an emulated wire, on the stream before copy_combine: tells the peers when this rank's outputs were ready.
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
